package lanes

import (
	"fmt"
	"time"
)

// partialFailure is an error in a part of a lane: kubepods, or one container. The rest of
// the lane, above all the part for the node, is not affected.
type partialFailure struct {
	err   error
	retry time.Time
}

// backingOff reports whether it is too early to try again.
func (t *partialFailure) backingOff(now time.Time) bool { return t.err != nil && now.Before(t.retry) }

// record records the result of an attempt; nil clears the failure.
func (t *partialFailure) record(now time.Time, err error) {
	t.err, t.retry = err, now.Add(partialRetryInterval)
}

// describe returns the failed part and the error; empty if there is none.
func (t *partialFailure) describe(what string) string {
	if t.err == nil {
		return ""
	}
	return fmt.Sprintf("%s: %v", what, t.err)
}

// podsPart names the part of a lane for kubepods.
const podsPart = "the pods' memory"
