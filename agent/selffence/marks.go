package selffence

import "time"

const (
	// AnnotationPlannedShutdown is the annotation of a Node that has the time until which its shutdown is planned work.
	AnnotationPlannedShutdown = "evictd.io/planned-shutdown"
	// MaxPlannedShutdown limits how far ahead that time may be: a mark must expire.
	MaxPlannedShutdown = 24 * time.Hour
)

// FormatPlannedShutdown returns the annotation's text for a shutdown that is planned until a time, which it rounds up to
// seconds.
func FormatPlannedShutdown(until time.Time) string {
	rounded := until.UTC().Truncate(time.Second)
	if rounded.Before(until) {
		rounded = rounded.Add(time.Second)
	}
	return rounded.Format(time.RFC3339)
}
