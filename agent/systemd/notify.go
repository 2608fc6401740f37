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
	wake     chan struct{}

	mu      sync.Mutex
	pending []string // states, in order
	status  string   // the last, if it is not sent yet
	ready   bool     // has been told
	beat    bool     // the loop has turned since the last ping
	pinged  time.Time
	// extend says that the loop has turned since more time was asked for last.
	extend   bool
	extended time.Time
}

// While the service is not ready, every extendInterval the service manager is asked for
// startExtension more (EXTEND_TIMEOUT_USEC, since systemd 236).
const extendInterval, startExtension = 10 * time.Second, time.Minute

// NewNotifier reads from the environment where the service manager listens
// (NOTIFY_SOCKET), and how often it wants to hear of the service (WATCHDOG_USEC,
// WATCHDOG_PID). A malformed watchdog is an error, since the service would be
// killed for not knowing it.
func NewNotifier() (*Notifier, error) {
	n := &Notifier{enabled: os.Getenv("NOTIFY_SOCKET") != "", wake: make(chan struct{}, 1)}
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

// Ready tells that the service does its work, at the end of its start.
func (n *Notifier) Ready(status string) {
	n.mu.Lock()
	n.ready = true
	n.mu.Unlock()
	n.tell(daemon.SdNotifyReady, status)
}

// Reloading tells that a reload begins, and when. Before [Notifier.Ready] the service
// manager is not told: what ends a reload would end the start.
func (n *Notifier) Reloading() {
	if n.isReady() {
		n.tell(daemon.SdNotifyReloading+"\n"+strings.TrimSuffix(daemon.SdNotifyMonotonicUsec(), "\n"), "")
	}
}

// Reloaded tells that a reload has ended.
func (n *Notifier) Reloaded(status string) {
	if n.isReady() {
		n.tell(daemon.SdNotifyReady, status)
		return
	}
	n.Status(status)
}

func (n *Notifier) isReady() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.ready
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
// Until [Notifier.Ready] it extends the start of the service: a container runtime may come
// hours later, and a loop that hangs is for the service manager to end.
func (n *Notifier) Beat() {
	if !n.enabled {
		return
	}
	n.mu.Lock()
	n.beat = n.interval > 0 && time.Since(n.pinged) >= n.interval
	n.extend = !n.ready && time.Since(n.extended) >= extendInterval
	due := n.beat || n.extend
	n.mu.Unlock()
	if due {
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
	if n.extend {
		lines = append(lines, fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", startExtension.Microseconds()))
		n.extend, n.extended = false, time.Now()
	}
	if n.beat {
		lines = append(lines, daemon.SdNotifyWatchdog)
		n.beat, n.pinged = false, time.Now()
	}
	return strings.Join(lines, "\n")
}
