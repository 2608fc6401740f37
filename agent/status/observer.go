package status

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/execute"
	"github.com/evictd/evictd/agent/loop"
	"github.com/evictd/evictd/agent/metrics"
	"github.com/evictd/evictd/agent/pods"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/agent/systemd"
)

// ObserverOptions are what an Observer needs.
type ObserverOptions struct {
	Log      *slog.Logger
	Metrics  *metrics.Metrics
	Notifier *systemd.Notifier
	Beat     *metrics.Heartbeat // of the loop
	View     *atomic.Pointer[loop.View]
	Board    *Board
	// Changed is called with each new view, Listed with each new list of pods, and
	// Waiting while a threshold's grace period runs. None may block.
	Changed func()
	Listed  func(*pods.Snapshot)
	Waiting func()
	// RequestSave asks for the state to be saved soon.
	RequestSave func()
}

// Observer reports what the loop did: in the view that others see, the metrics, the
// log and to the service manager. It implements loop.Observer.
type Observer struct {
	o ObserverOptions

	// What was told last, so that only changes are. The loop's goroutine alone
	// uses these.
	ready      bool
	status     string // for systemctl status
	conditions string
	unreadable string
	futile     string
	held       string
	saved      time.Time
	listed     time.Time
	kubelets   []evict.KubeletProcess // that were saved
	victims    int
}

// NewObserver returns an Observer.
func NewObserver(o ObserverOptions) *Observer { return &Observer{o: o} }

// keepWhileWaiting is how often the state is written while its timers run, so
// that a restart knows how long evictd was away.
const keepWhileWaiting = 2 * time.Second

// Stepped implements loop.Observer.
func (r *Observer) Stepped(v *loop.View) {
	r.o.View.Store(v)
	r.o.Changed()
	r.o.Beat.Beat()
	r.o.Notifier.Beat()
	if listed := v.Snapshot.Listed; !listed.Equal(r.listed) {
		r.listed = listed
		r.o.Listed(&v.Snapshot)
		if trusted := r.o.Board.o.Inventory.TrustedKubelets(); !slices.Equal(trusted, r.kubelets) {
			r.kubelets = trusted
			r.o.RequestSave()
		}
	}
	r.measure(v)
	r.announce(v)
	if len(v.State.Timers) > 0 {
		r.o.Waiting()
	}
	running := len(v.State.Timers) > 0 || len(v.State.Victims) > 0 || len(v.State.Conditions) > 0
	ordered := len(v.Orders.Evict)+len(v.Orders.Adopted)+len(v.Orders.Harden) > 0
	if ordered || len(v.State.Victims) != r.victims || running && v.Time.Sub(r.saved) >= keepWhileWaiting {
		r.saved, r.victims = v.Time, len(v.State.Victims)
		r.o.RequestSave()
	}
	if !r.ready && r.complete(v) {
		r.ready = true
		r.o.Log.Info("ready", "pods", len(v.Snapshot.Pods), "eligible", v.Eligible())
		r.status = statusLine(v)
		r.o.Notifier.Ready(r.status)
		if v.Eligible() == 0 {
			r.o.Log.Warn("no pod may be evicted, pressure can't be relieved", "pods", len(v.Snapshot.Pods))
		}
	}
}

// Looked implements loop.Observer.
func (r *Observer) Looked(v *loop.View) {
	r.o.View.Store(v)
	r.o.Beat.Beat()
	r.o.Notifier.Beat()
	r.o.Metrics.Observed(v.Observations)
	r.o.Metrics.Unaccounted(v.Node.Unaccounted)
}

// complete reports whether the observation lacks nothing that it should have.
func (r *Observer) complete(v *loop.View) bool {
	s := r.o.Board.o.Inventory.Status()
	return v.Observations[signal.MemoryAvailable].Status == signal.Observed && (s.Connected || s.DeclaredAbsent)
}

func (r *Observer) measure(v *loop.View) {
	m := r.o.Metrics
	m.Observed(v.Observations)
	m.Unaccounted(v.Node.Unaccounted)
	m.Stepped(&v.State, &v.Orders, v.Took)
	m.Pods(len(v.Snapshot.Pods), v.Eligible())
	m.DryRun(v.Mode.DryRun)
	m.RuntimeConnected(r.o.Board.o.Inventory.Status().Connected)
	m.Records(len(r.o.Board.o.Records.List()))
}

// announce logs what has changed.
func (r *Observer) announce(v *loop.View) {
	if changed(&r.conditions, fmt.Sprint(v.Orders.Conditions)) {
		r.o.Log.Warn("node conditions", "conditions", v.Orders.Conditions)
	}
	line := statusLine(v)
	if !r.ready {
		line = notReadyLine(r.o.Board.missing())
	}
	if line != r.status && (r.ready || !r.complete(v)) { // else it comes with READY
		r.status = line
		r.o.Notifier.Status(line)
	}
	if changed(&r.unreadable, fmt.Sprint(v.Orders.Unreadable)) {
		for _, u := range unreadable(v) {
			r.o.Log.Error("signals can't be read and are skipped", "signals", strings.Join(u.signals, ", "), "error", u.cause)
		}
	}
	var futile []signal.Signal
	for _, f := range v.Orders.Futile {
		futile = append(futile, f.Signal)
	}
	// Where a pod was evicted all the same, the loop has told it with that.
	if len(futile) > 0 && changed(&r.futile, fmt.Sprint(futile)) && len(v.Orders.Evict) == 0 {
		for _, f := range v.Orders.Futile {
			if f.Signal.IsDisk() {
				// Where the directories are not known yet, a log line with them follows.
				r.o.Log.Error("all pods that may be evicted use too little of the filesystem; no pod is evicted",
					"signal", f.Signal.String(), "deficit", f.Deficit, "coverage", f.Coverage,
					"largest_outside", Largest(r.o.Board.o.Disks, r.o.Board.o.Usages, f.Signal))
				continue
			}
			r.o.Log.Error("no pod may be evicted to relieve the signal", "signal", f.Signal.String(), "deficit", f.Deficit,
				"largest_outside", r.o.Board.o.Inventory.Outside(loop.Outsiders))
		}
	}
	if len(v.Orders.Met) == 0 {
		r.futile = ""
	}
	if changed(&r.held, fmt.Sprint(v.Orders.Waiting)) && len(v.Orders.Waiting) > 0 {
		r.o.Log.Warn("file cache brought memory below the threshold; no pod is evicted for it yet", "thresholds", fmt.Sprint(v.Orders.Waiting))
	}
	for _, uid := range v.Orders.Revived {
		r.o.Log.Warn("evicted pod came back", "uid", uid)
	}
	for _, uid := range v.Orders.Stuck {
		r.o.Log.Error("victim is stuck, its processes do not go", "uid", uid)
	}
}

// skipped are the signals that can't be read for one cause.
type skipped struct {
	cause   string
	signals []string
}

// unreadable groups the signals that can't be read by their cause: one runtime
// that is missing leaves four of them unread.
func unreadable(v *loop.View) (all []skipped) {
	for _, s := range v.Orders.Unreadable {
		cause := "unknown"
		if err := v.Observations[s].Err; err != nil {
			cause = err.Error()
		}
		at := slices.IndexFunc(all, func(u skipped) bool { return u.cause == cause })
		if at < 0 {
			at = len(all)
			all = append(all, skipped{cause: cause})
		}
		all[at].signals = append(all[at].signals, s.String())
	}
	return all
}

// unreadableText is unreadable in one line.
func unreadableText(v *loop.View) string {
	var texts []string
	for _, u := range unreadable(v) {
		texts = append(texts, strings.Join(u.signals, ", ")+" can't be read: "+u.cause)
	}
	return strings.Join(texts, "; ")
}

// changed remembers what is told, and reports whether it is news. The first
// empty list is none.
func changed(told *string, now string) bool {
	if *told == now || *told == "" && now == "[]" {
		return false
	}
	*told = now
	return true
}

// statusLine is what systemctl status shows. It is sent when it changes, so it
// has no reading, which would be old when it is read.
func statusLine(v *loop.View) string {
	line := execute.InDryRun(v.Mode.DryRun, "enforcing", "dry run, nothing is evicted")
	if len(v.Orders.Conditions) == 0 {
		return line + "; no pressure"
	}
	for _, c := range v.Orders.Conditions {
		line += "; " + string(c)
	}
	return line
}

// StatusLine is that of the last view once evictd is ready.
func (b *Board) StatusLine() string {
	v, missing := b.o.View(), b.missing()
	if v == nil || len(missing) > 0 {
		return notReadyLine(missing)
	}
	return statusLine(v)
}

// notReadyLine is what systemctl status shows of an evictd that is not ready.
func notReadyLine(missing []string) string { return "not ready: " + strings.Join(missing, "; ") }
