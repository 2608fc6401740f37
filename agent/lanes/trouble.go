package lanes

import (
	"fmt"
	"time"
)

// troubleLasts is how long it is before what failed is tried again.
const troubleLasts = 5 * time.Second

// trouble is what keeps a lane from a part of what it watches: the pods' cgroup,
// or a container. The rest of the lane goes on, above all for the node.
type trouble struct {
	err   error
	retry time.Time
}

// waits reports whether it is too early to try again.
func (t *trouble) waits(now time.Time) bool { return t.err != nil && now.Before(t.retry) }

// set takes in how a try went.
func (t *trouble) set(now time.Time, err error) {
	t.err, t.retry = err, now.Add(troubleLasts)
}

// note says what it is about, and what it is; nothing where there is none.
func (t *trouble) note(what string) string {
	if t.err == nil {
		return ""
	}
	return fmt.Sprintf("%s: %v", what, t.err)
}

// ofPods names the part of a lane that is about the pods together.
const ofPods = "the pods' memory"
