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

// Notifier sends the state of the service to the service manager. Its methods may be
// called from any goroutine and never block. Without a service manager they do
// nothing.
type Notifier struct {
	enabled  bool
	interval time.Duration // between watchdog pings; 0 without a watchdog
	wake     chan struct{}

	mu      sync.Mutex
	pending []string // states, in order
	status  string   // the last one, if it is not sent yet
	ready   bool     // Ready was called
	beat    bool     // a watchdog ping is due
	pinged  time.Time
	// extend is set if a request for more start time is due.
	extend   bool
	extended time.Time
}

// While the service is not ready, the Notifier requests startExtension more time
// every extendInterval (EXTEND_TIMEOUT_USEC, since systemd 236). The extension is
// several intervals long, so that a late iteration of the loop does not end the
// start.
const (
	extendInterval = 10 * time.Second
	startExtension = time.Minute
)

// NewNotifier reads from the environment the service manager's socket
// (NOTIFY_SOCKET) and the watchdog timeout (WATCHDOG_USEC, WATCHDOG_PID). A
// malformed timeout is an error, because the service manager would kill a service
// that sends no pings.
func NewNotifier() (*Notifier, error) {
	n := &Notifier{enabled: os.Getenv("NOTIFY_SOCKET") != "", wake: make(chan struct{}, 1)}
	timeout, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return nil, fmt.Errorf("read watchdog settings: %w", err)
	}
	// sd_watchdog_enabled(3) recommends half of the timeout. A quarter leaves time
	// for a late iteration of the loop.
	n.interval = timeout / 4
	return n, nil
}

// WatchdogInterval returns the interval of watchdog pings, 0 without a watchdog. The loop
// should iterate at least that often. The service manager aborts evictd after four
// intervals without an iteration.
func (n *Notifier) WatchdogInterval() time.Duration { return n.interval }

// Ready reports that the service has started.
func (n *Notifier) Ready(status string) {
	n.mu.Lock()
	n.ready = true
	n.mu.Unlock()
	n.notify(daemon.SdNotifyReady, status)
}

// Reloading reports that a reload begins, and when. Before [Notifier.Ready] it sends
// nothing, because READY=1, which ends a reload, would end the start.
func (n *Notifier) Reloading() {
	if n.isReady() {
		n.notify(daemon.SdNotifyReloading+"\n"+strings.TrimSuffix(daemon.SdNotifyMonotonicUsec(), "\n"), "")
	}
}

// Reloaded reports that a reload has ended.
func (n *Notifier) Reloaded(status string) {
	if n.isReady() {
		n.notify(daemon.SdNotifyReady, status)
		return
	}
	n.Status(status)
}

func (n *Notifier) isReady() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.ready
}

// Stopping reports that the service is stopping.
func (n *Notifier) Stopping() { n.notify(daemon.SdNotifyStopping, "") }

// Status sets the text for systemctl status. Only the last text that is not sent yet
// is sent.
func (n *Notifier) Status(text string) { n.notify("", text) }

// Beat reports an iteration of the decision loop. Only the loop calls it, so that the
// watchdog fires when the loop hangs, even if other goroutines run.
//
// Until [Notifier.Ready] it extends the start of the service: a container runtime
// may start hours later. If the loop hangs, the service manager ends the start.
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

func (n *Notifier) notify(state, status string) {
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

// oneLine joins the lines of a text, so that none is read as another assignment.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

func (n *Notifier) signal() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// Run sends notifications until ctx ends, and then those still queued. It continues
// after an error, and returns the first at the end. A service manager that does not
// read blocks only Run.
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

// take returns the next message: one state, and with the last state the status and
// the watchdog ping.
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
