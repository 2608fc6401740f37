package lanes

import (
	"fmt"
	"time"
)

// partialFailure is an error in a part of a lane: kubepods, or one container. The rest of
// the lane, above all the part for the node, is not affected.
type partialFailure struct {
	err     error
	retryAt time.Time
}

// backingOff reports whether it is too early to try again.
func (f *partialFailure) backingOff(now time.Time) bool { return f.err != nil && now.Before(f.retryAt) }

// record records the result of an attempt; nil clears the failure.
func (f *partialFailure) record(now time.Time, err error) {
	f.err, f.retryAt = err, now.Add(partialRetryInterval)
}

// describe returns the failed part and the error; empty if there is none.
func (f *partialFailure) describe(what string) string {
	if f.err == nil {
		return ""
	}
	return fmt.Sprintf("%s: %v", what, f.err)
}

// podsPart names the part of a lane for kubepods.
const podsPart = "the pods' memory"
