package config

import (
	"path"
	"time"

	"github.com/evictd/evictd/agent/selffence"
)

// SelfFencing configures the watchdog that resets the machine when the API server accepts no advert of it.
type SelfFencing struct {
	// Device is the watchdog device; empty means that self-fencing is off.
	Device string `yaml:"device"`
	// Timeout is what the watchdog is set to. FeedGap is for how long it is fed without an accepted advert.
	Timeout time.Duration `yaml:"timeout"`
	FeedGap time.Duration `yaml:"feedGap"`
	// Peers is set if it is also fed while a majority of all nodes cannot reach the API server.
	Peers bool `yaml:"peers"`
}

// minWatchdogTimeout is the shortest timeout in the configuration: evictd must be able to start again within it.
const minWatchdogTimeout = 10 * time.Second

func defaultSelfFencing() SelfFencing {
	return SelfFencing{Timeout: time.Minute, FeedGap: time.Minute}
}

func (c *Config) checkSelfFencing() {
	const device = "selfFencing.device"
	s := c.SelfFencing
	switch {
	case s.Device == "" || c.failed(device):
	case !path.IsAbs(s.Device):
		c.errorf(device, "%q is not an absolute path; want the path of a watchdog such as /dev/watchdog", s.Device)
	case c.Kube.UID == 0 && !c.failed("kube.uid"):
		c.errorf(device, "needs kube.uid: evictd-kube writes the advert of the watchdog to the API server")
	}
	if s.Peers && s.FeedGap+2*s.Timeout < selffence.MinPeerTimes && !c.failed("selfFencing.peers") {
		c.errorf("selfFencing.peers", "needs a feedGap and twice the timeout of %v together, not %v: the watchdog would fire before the other nodes say that they cannot reach the API server",
			selffence.MinPeerTimes, s.FeedGap+2*s.Timeout)
	}
	if s.Peers && s.FeedGap < selffence.MinPeerGap && !c.failed("selfFencing.peers") {
		c.errorf("selfFencing.peers", "needs a feedGap of at least %v, not %v", selffence.MinPeerGap, s.FeedGap)
	}
	for _, f := range []struct {
		field           string
		value, min, max time.Duration
	}{
		{"selfFencing.timeout", s.Timeout, minWatchdogTimeout, selffence.MaxTimeout},
		{"selfFencing.feedGap", s.FeedGap, selffence.MinFeedGap, selffence.MaxFeedGap},
	} {
		switch {
		case c.failed(f.field):
		case f.value < f.min || f.value > f.max:
			c.errorf(f.field, "is %v; want a duration from %v to %v", f.value, f.min, f.max)
		case f.value%time.Second != 0:
			c.errorf(f.field, "is %v; want whole seconds", f.value)
		}
	}
}
