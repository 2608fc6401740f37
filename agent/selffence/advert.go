package selffence

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// AnnotationWatchdog is the annotation of a Node that has the [Advert] of its watchdog.
const AnnotationWatchdog = "evictd.io/watchdog"

const (
	// Margin is the part of [Advert.Bound] for what is not timed: the granularity of the watchdog, the feeding thread's
	// delay, and the reset itself.
	Margin = 30 * time.Second
	// MinTimeout and MaxTimeout limit the timeout of a watchdog whose advert proves.
	MinTimeout = 5 * time.Second
	MaxTimeout = 10 * time.Minute
	// MinFeedGap and MaxFeedGap limit how long a node feeds without an accepted advert.
	MinFeedGap = 10 * time.Second
	MaxFeedGap = 10 * time.Minute
	// MaxAnnotation is the length limit of the annotations of this package in bytes.
	MaxAnnotation = 1024
	// SoftwareWatchdog is the identity of Linux's softdog. It dies with the kernel, and proves nothing.
	SoftwareWatchdog = "Software Watchdog"
	// Version is that of the advert's form.
	Version = 1

	maxIdentity = 64
	maxBootID   = 64
)

// Advert is what a node says about its watchdog.
type Advert struct {
	Version int `json:"v"`
	// Armed is set while the watchdog runs and evictd feeds it by the rules of this package.
	Armed bool `json:"armed"`
	// Identity is the name that the driver gives the device.
	Identity string `json:"identity"`
	// TimeoutSeconds is what the driver took, and before the device is open what it will be asked for; 0 without
	// self-fencing.
	TimeoutSeconds int `json:"timeoutSeconds"`
	// NoWayOut is set if the watchdog cannot be disarmed.
	NoWayOut bool `json:"nowayout"`
	// FeedGapSeconds is how long the node feeds without an accepted advert, RenewSeconds how often it writes one.
	FeedGapSeconds int `json:"feedGapSeconds"`
	RenewSeconds   int `json:"renewSeconds"`
	// Peers is set if the node also feeds because of a majority of nodes, and is counted in that of others ([Count]).
	Peers bool `json:"peers,omitempty"`
	// PeerNodes is how many nodes the list has whose majority the node may use; it uses that of no larger one. 0 is none.
	PeerNodes int `json:"peerNodes,omitempty"`
	// BootID is the boot that the advert is about (/proc/sys/kernel/random/boot_id).
	BootID string `json:"bootID"`
	// Sequence differs between the adverts of a boot and grows.
	Sequence uint64 `json:"sequence"`
	// ArmedAt and RenewedAt are times of the node's clock, to be shown. Whether an advert was renewed must be decided by
	// the reader's clock and a change of the annotation.
	ArmedAt   time.Time `json:"armedAt"`
	RenewedAt time.Time `json:"renewedAt"`
}

// ParseAdvert parses the annotation. An advert has exactly one form, that of [Advert.String]: unknown, repeated and
// reordered keys are errors, and so are values out of range.
func ParseAdvert(text string) (Advert, error) {
	var a Advert
	if err := parse(text, &a); err != nil {
		return Advert{}, err
	}
	if err := a.check(); err != nil {
		return Advert{}, err
	}
	if a.String() != text {
		return Advert{}, errNotCanonical
	}
	return a, nil
}

var errNotCanonical = errors.New("not in the form that evictd writes: keys that are unknown, repeated or in another order, or blanks")

// parse decodes JSON of bounded length.
func parse(text string, into any) error {
	if len(text) > MaxAnnotation {
		return fmt.Errorf("has %d bytes, more than %d", len(text), MaxAnnotation)
	}
	if err := json.Unmarshal([]byte(text), into); err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	return nil
}

func (a Advert) check() error {
	switch {
	case a.Version != Version:
		return fmt.Errorf("version %d; this release knows %d", a.Version, Version)
	case len(a.Identity) > maxIdentity:
		return fmt.Errorf("identity has %d bytes, more than %d", len(a.Identity), maxIdentity)
	case len(a.BootID) > maxBootID:
		return fmt.Errorf("boot ID has %d bytes, more than %d", len(a.BootID), maxBootID)
	}
	if a.PeerNodes < 0 || a.PeerNodes > MaxNodes {
		return fmt.Errorf("%d nodes are not between 0 and %d", a.PeerNodes, MaxNodes)
	}
	for _, n := range []int{a.TimeoutSeconds, a.FeedGapSeconds, a.RenewSeconds} {
		if n < 0 || n > int(MaxTimeout.Seconds()) {
			return fmt.Errorf("%d seconds are not between 0 and %d", n, int(MaxTimeout.Seconds()))
		}
	}
	return nil
}

// String returns the annotation's text.
func (a Advert) String() string {
	a.ArmedAt, a.RenewedAt = a.ArmedAt.UTC().Truncate(time.Second), a.RenewedAt.UTC().Truncate(time.Second)
	text, err := json.Marshal(a)
	if err != nil { // only a year outside 0 to 9999 fails
		return ""
	}
	return string(text)
}

// Bound returns for how long an armed advert must have been unchanged, since a reader saw it first, until the boot that
// wrote it has ended. The package comment says why it has the timeout twice.
func (a Advert) Bound() time.Duration {
	return time.Duration(a.RenewSeconds+a.FeedGapSeconds+2*a.TimeoutSeconds)*time.Second + Margin
}

// Proves reports whether the advert, unchanged for its bound, proves that its boot has ended. If not, why says so.
func (a Advert) Proves() (ok bool, why string) {
	seconds := func(n int) time.Duration { return time.Duration(n) * time.Second }
	switch {
	case !a.Armed:
		return false, "the watchdog is not armed"
	case a.BootID == "":
		return false, "the advert has no boot ID"
	case a.Identity == "":
		return false, "the advert does not name the watchdog"
	case a.Identity == SoftwareWatchdog:
		return false, "softdog dies with the kernel that it would reset"
	case seconds(a.TimeoutSeconds) < MinTimeout || seconds(a.TimeoutSeconds) > MaxTimeout:
		return false, fmt.Sprintf("the watchdog's timeout of %d s is not between %s and %s", a.TimeoutSeconds, MinTimeout, MaxTimeout)
	case seconds(a.FeedGapSeconds) < MinFeedGap || seconds(a.FeedGapSeconds) > MaxFeedGap:
		return false, fmt.Sprintf("the feed gap of %d s is not between %s and %s", a.FeedGapSeconds, MinFeedGap, MaxFeedGap)
	case a.Peers && seconds(a.FeedGapSeconds) < MinPeerGap:
		return false, fmt.Sprintf("the feed gap of %d s is less than the %s of a node that asks its peers", a.FeedGapSeconds, MinPeerGap)
	case a.RenewSeconds < 1 || a.RenewSeconds > a.FeedGapSeconds:
		return false, fmt.Sprintf("the advert's period of %d s is not between 1 s and the feed gap of %d s", a.RenewSeconds, a.FeedGapSeconds)
	}
	return true, ""
}

// Withdraws reports whether the advert is of a node without self-fencing: it is written only in place of another one.
func (a Advert) Withdraws() bool { return !a.Armed && a.TimeoutSeconds == 0 }

// Replaces reports whether a node's agent may write an advert in place of the current annotation, which may be absent or
// not valid: not in place of one of the same boot with the same or a higher sequence. That was written by a later
// session of the agent.
func (a Advert) Replaces(current string) bool {
	c, err := ParseAdvert(current)
	return err != nil || c.BootID != a.BootID || c.Sequence < a.Sequence
}
