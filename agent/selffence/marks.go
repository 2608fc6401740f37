package selffence

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

const (
	// AnnotationPlannedShutdown is the annotation of a Node that has the time until which its shutdown is planned work.
	AnnotationPlannedShutdown = "evictd.io/planned-shutdown"
	// MaxPlannedShutdown limits how far ahead that time may be.
	MaxPlannedShutdown = 24 * time.Hour
	// AnnotationRejoin is the annotation of a Node that has the [Rejoin] of its agent.
	AnnotationRejoin = "evictd.io/rejoined"

	rejoinVersion = 1
	maxUID        = 64
	maxCount      = 100_000
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

// ParsePlannedShutdown parses the annotation. A time more than [MaxPlannedShutdown] after now is an error: a mark must
// expire.
func ParsePlannedShutdown(text string, now time.Time) (time.Time, error) {
	until, err := time.Parse(time.RFC3339, text)
	switch {
	case len(text) > len(time.RFC3339) || err != nil:
		return time.Time{}, fmt.Errorf("%.40q is not a time as 2006-01-02T15:04:05Z", text)
	case until.Sub(now) > MaxPlannedShutdown:
		return time.Time{}, fmt.Errorf("%s is more than %s ahead", text, MaxPlannedShutdown)
	}
	return until, nil
}

// Rejoin is the word of a node agent about the pods of a fence of its node: those that were released while the node ran.
type Rejoin struct {
	Version int `json:"v"`
	// FenceUID is the UID of the NodeFence, BootID the boot that is reported on.
	FenceUID string `json:"fenceUID"`
	BootID   string `json:"bootID"`
	// ContainersLeft is the number of containers of released pods that still exist, VolumesMounted that of their volumes
	// that are mounted.
	ContainersLeft int `json:"containersLeft"`
	VolumesMounted int `json:"volumesMounted"`
}

// ParseRejoin parses the annotation, which has exactly one form, that of [Rejoin.String].
func ParseRejoin(text string) (Rejoin, error) {
	var r Rejoin
	if err := parse(text, &r); err != nil {
		return Rejoin{}, err
	}
	switch {
	case r.Version != rejoinVersion:
		return Rejoin{}, fmt.Errorf("version %d; this release knows %d", r.Version, rejoinVersion)
	case r.FenceUID == "" || len(r.FenceUID) > maxUID || r.BootID == "" || len(r.BootID) > maxBootID:
		return Rejoin{}, errors.New("fence UID or boot ID is empty or too long")
	case r.ContainersLeft < 0 || r.ContainersLeft > maxCount || r.VolumesMounted < 0 || r.VolumesMounted > maxCount:
		return Rejoin{}, fmt.Errorf("counts are not between 0 and %d", maxCount)
	case r.String() != text:
		return Rejoin{}, errNotCanonical
	}
	return r, nil
}

// String returns the annotation's text.
func (r Rejoin) String() string {
	text, _ := json.Marshal(r) // numbers and strings do not fail
	return string(text)
}
