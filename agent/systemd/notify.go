package systemd

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// Notifier tells the service manager how the service is. Its methods may be
// called from any goroutine and never wait; without a service manager they do
// nothing.
type Notifier struct {
	enabled  bool
	interval time.Duration // between pings; 0 where there is no watchdog
	made     time.Time
	wake     chan struct{}

	mu      sync.Mutex
	pending []string // states, in order
	status  string   // the last, if it is not sent yet
	ready   bool     // has been told
	beat    bool     // the loop has turned since the last ping
	pinged  time.Time
}

// startPatience is how long a start may last although the loop turns: far less
// than the 90 s after which a service manager gives a start up.
const startPatience = 20 * time.Second

// incomplete is the status of a service that runs and lacks something.
const incomplete = "running, but not ready: evictctl status tells what is missing"

// NewNotifier reads from the environment where the service manager listens
// (NOTIFY_SOCKET), and how often it wants to hear of the service (WATCHDOG_USEC,
// WATCHDOG_PID). A malformed watchdog is an error, since the service would be
// killed for not knowing it.
func NewNotifier() (*Notifier, error) {
	n := &Notifier{enabled: os.Getenv("NOTIFY_SOCKET") != "", made: time.Now(), wake: make(chan struct{}, 1)}
	timeout, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return nil, fmt.Errorf("read watchdog settings: %w", err)
	}
	// Half of the timeout is what sd_watchdog_enabled(3) recommends; a quarter
	// leaves room for a turn of the loop that is late.
	n.interval = timeout / 4
	return n, nil
}

// Watchdog returns how often a beat is passed on, 0 where nobody watches. The
// loop should turn at least that often; four times as rarely, it is killed.
func (n *Notifier) Watchdog() time.Duration { return n.interval }

// Ready tells that the service does its work: at the end of its start, and of
// each reload.
func (n *Notifier) Ready(status string) {
	n.mu.Lock()
	n.ready = true
	n.mu.Unlock()
	n.tell(daemon.SdNotifyReady, status)
}

// Reloading tells that a reload begins, and when.
func (n *Notifier) Reloading() {
	n.tell(daemon.SdNotifyReloading+"\n"+strings.TrimSuffix(daemon.SdNotifyMonotonicUsec(), "\n"), "")
}

// Stopping tells that the service ends.
func (n *Notifier) Stopping() { n.tell(daemon.SdNotifyStopping, "") }

// Status tells, in words for systemctl status, what the service does. Of those
// that could not be sent yet only the last counts.
func (n *Notifier) Status(text string) { n.tell("", text) }

// Beat tells that the decision loop has turned. It is called from there and
// nowhere else, so that the watchdog fires when the loop hangs, whatever else
// still runs.
//
// A loop that has turned for 20 s without [Notifier.Ready] is told to be ready
// all the same: a boot, or the installation of a package, waits for the start of
// a service, and must not wait for a container runtime that never comes.
func (n *Notifier) Beat() {
	if !n.enabled {
		return
	}
	n.mu.Lock()
	late := !n.ready && time.Since(n.made) >= startPatience
	n.beat = n.interval > 0 && time.Since(n.pinged) >= n.interval
	due := n.beat
	n.mu.Unlock()
	switch {
	case late:
		n.Ready(incomplete)
	case due:
		n.signal()
	}
}

func (n *Notifier) tell(state, status string) {
	if !n.enabled {
		return
	}
	n.mu.Lock()
	if state != "" {
		n.pending = append(n.pending, state)
	}
	if status != "" {
		n.status = oneLine(status)
	}
	n.mu.Unlock()
	n.signal()
}

// oneLine keeps a text from being read as further assignments.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

func (n *Notifier) signal() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// Run sends what the Notifier is told until ctx ends, and then what it was told
// until then. An error of sending does not stop it; the first is returned at
// the end. A service manager that does not read holds up Run alone.
func (n *Notifier) Run(ctx context.Context) error {
	var first error
	send := func() {
		for message := n.take(); message != ""; message = n.take() {
			if _, err := daemon.SdNotify(false, message); err != nil && first == nil {
				first = fmt.Errorf("notify service manager: %w", err)
			}
		}
	}
	for {
		select {
		case <-n.wake:
			send()
		case <-ctx.Done():
			send()
			return first
		}
	}
}

// take returns the next message: one state, and with the last of them the
// status and the ping.
func (n *Notifier) take() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var lines []string
	if len(n.pending) > 0 {
		lines = append(lines, n.pending[0])
		n.pending = n.pending[1:]
	}
	if len(n.pending) > 0 {
		return lines[0]
	}
	if n.status != "" {
		lines = append(lines, "STATUS="+n.status)
		n.status = ""
	}
	if n.beat {
		lines = append(lines, daemon.SdNotifyWatchdog)
		n.beat, n.pinged = false, time.Now()
	}
	return strings.Join(lines, "\n")
}
