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

// ObserverOptions configure an Observer.
type ObserverOptions struct {
	Log      *slog.Logger
	Metrics  *metrics.Metrics
	Notifier *systemd.Notifier
	Beat     *metrics.Heartbeat // of the loop
	View     *atomic.Pointer[loop.View]
	Backend  *Backend
	// Changed is called for each new view, Listed for each new list of pods, and
	// Waiting in each step while a grace period runs. None may block.
	Changed func()
	Listed  func(*pods.Snapshot)
	Waiting func()
	// RequestSave requests a save of the state and does not wait for it.
	RequestSave func()
}

// Observer publishes the results of the loop: as the view, in metrics and log, and
// to the service manager. It implements loop.Observer.
type Observer struct {
	o ObserverOptions

	// The last published values, so that only changes are logged or sent. Only the
	// loop's goroutine uses them.
	ready      bool
	status     string // for systemctl status
	conditions string
	unreadable string
	futile     string
	waiting    string
	saved      time.Time
	listed     time.Time
	kubelets   []evict.KubeletProcess
	victims    int
}

// NewObserver returns an Observer.
func NewObserver(o ObserverOptions) *Observer { return &Observer{o: o} }

// saveInterval is how often the state is saved while timers run. After a restart the
// time of the last save shows how long evictd was not running: soft grace carries
// over only across less than 10 s.
const saveInterval = 2 * time.Second

// Stepped implements loop.Observer.
func (r *Observer) Stepped(v *loop.View) {
	r.o.View.Store(v)
	r.o.Changed()
	r.o.Beat.Beat()
	r.o.Notifier.Beat()
	if listed := v.Snapshot.Listed; !listed.Equal(r.listed) {
		r.listed = listed
		r.o.Listed(&v.Snapshot)
		if trusted := r.o.Backend.o.Inventory.TrustedKubelets(); !slices.Equal(trusted, r.kubelets) {
			r.kubelets = trusted
			r.o.RequestSave()
		}
	}
	r.setMetrics(v)
	r.reportChanges(v)
	if len(v.State.Timers) > 0 {
		r.o.Waiting()
	}
	timing := len(v.State.Timers) > 0 || len(v.State.Victims) > 0 || len(v.State.Conditions) > 0
	ordered := len(v.Orders.Evict)+len(v.Orders.Adopted)+len(v.Orders.Escalate) > 0
	if ordered || len(v.State.Victims) != r.victims || timing && v.Time.Sub(r.saved) >= saveInterval {
		r.saved, r.victims = v.Time, len(v.State.Victims)
		r.o.RequestSave()
	}
	if !r.ready && r.complete(v) {
		r.ready = true
		r.o.Log.Info("ready", "pods", len(v.Snapshot.Pods), "eligible", v.Eligible())
		r.status = statusLine(v)
		r.o.Notifier.Ready(r.status)
		if v.Eligible() == 0 {
			r.o.Log.Warn("no pod is eligible for eviction; pressure can't be relieved", "pods", len(v.Snapshot.Pods))
		}
	}
}

// Unchanged implements loop.Observer.
func (r *Observer) Unchanged(v *loop.View) {
	r.o.View.Store(v)
	r.o.Beat.Beat()
	r.o.Notifier.Beat()
	r.o.Metrics.Observed(v.Observations)
	r.o.Metrics.Unaccounted(v.Node.KernelUsage)
}

// complete reports whether memory was read and the runtime, if any, is connected.
func (r *Observer) complete(v *loop.View) bool {
	s := r.o.Backend.o.Inventory.Status()
	return v.Observations[signal.MemoryAvailable].Status == signal.Observed && (s.Connected || s.DeclaredAbsent)
}

func (r *Observer) setMetrics(v *loop.View) {
	m := r.o.Metrics
	m.Observed(v.Observations)
	m.Unaccounted(v.Node.KernelUsage)
	m.Stepped(&v.State, &v.Orders, v.Took)
	m.Pods(len(v.Snapshot.Pods), v.Eligible())
	m.DryRun(v.Mode.DryRun)
	m.RuntimeConnected(r.o.Backend.o.Inventory.Status().Connected)
	m.Records(len(r.o.Backend.o.Records.List()))
}

// reportChanges logs changes since the last step, and sends them to the service
// manager.
func (r *Observer) reportChanges(v *loop.View) {
	if changed(&r.conditions, fmt.Sprint(v.Orders.Conditions)) {
		r.o.Log.Warn("node conditions changed", "conditions", v.Orders.Conditions)
	}
	line := statusLine(v)
	if !r.ready {
		line = notReadyLine(r.o.Backend.missing())
	}
	if line != r.status && (r.ready || !r.complete(v)) { // otherwise READY has it
		r.status = line
		r.o.Notifier.Status(line)
	}
	if changed(&r.unreadable, fmt.Sprint(v.Orders.Unreadable)) {
		for _, u := range unreadable(v) {
			r.o.Log.Error("could not read signals; they are skipped", "signals", strings.Join(u.signals, ", "), "error", u.cause)
		}
	}
	var futile []signal.Signal
	for _, f := range v.Orders.Futile {
		futile = append(futile, f.Signal)
	}
	// If a pod was evicted anyway, the loop has logged it with the eviction.
	if len(futile) > 0 && changed(&r.futile, fmt.Sprint(futile)) && len(v.Orders.Evict) == 0 {
		for _, f := range v.Orders.Futile {
			if f.Signal.IsDisk() {
				// Another log line follows if the directories are not known yet.
				r.o.Log.Error("all eligible pods use too little of the filesystem; no pod is evicted",
					"signal", f.Signal.String(), "deficit", f.Deficit, "coverage", f.Coverage,
					"largest_outside", LargestDirectories(r.o.Backend.o.Disks, r.o.Backend.o.UsageMeter, f.Signal))
				continue
			}
			r.o.Log.Error("no pod is eligible for eviction; the signal can't be relieved", "signal", f.Signal.String(), "deficit", f.Deficit,
				"largest_outside", r.o.Backend.o.Inventory.SystemCgroups(loop.MaxSystemCgroups))
		}
	}
	if len(v.Orders.Met) == 0 {
		r.futile = ""
	}
	if changed(&r.waiting, fmt.Sprint(v.Orders.Waiting)) && len(v.Orders.Waiting) > 0 {
		r.o.Log.Warn("file cache caused the crossing of a memory threshold; no pod is evicted yet", "thresholds", fmt.Sprint(v.Orders.Waiting))
	}
	for _, uid := range v.Orders.Revived {
		r.o.Log.Warn("evicted pod is running again", "uid", uid)
	}
	for _, uid := range v.Orders.Stuck {
		r.o.Log.Error("victim is stuck; its processes have not exited", "uid", uid)
	}
}

// unreadableSignals are the signals that can't be read for one cause.
type unreadableSignals struct {
	cause   string
	signals []string
}

// unreadable groups the signals that can't be read by cause: a missing runtime
// makes four of them unreadable.
func unreadable(v *loop.View) (groups []unreadableSignals) {
	for _, s := range v.Orders.Unreadable {
		cause := "unknown"
		if err := v.Observations[s].Err; err != nil {
			cause = err.Error()
		}
		at := slices.IndexFunc(groups, func(u unreadableSignals) bool { return u.cause == cause })
		if at < 0 {
			at = len(groups)
			groups = append(groups, unreadableSignals{cause: cause})
		}
		groups[at].signals = append(groups[at].signals, s.String())
	}
	return groups
}

// unreadableText returns the result of unreadable in one line.
func unreadableText(v *loop.View) string {
	var texts []string
	for _, u := range unreadable(v) {
		texts = append(texts, strings.Join(u.signals, ", ")+" can't be read: "+u.cause)
	}
	return strings.Join(texts, "; ")
}

// changed sets last to now and reports whether that is a change. An empty list is
// no change from the initial "".
func changed(last *string, now string) bool {
	if *last == now || *last == "" && now == "[]" {
		return false
	}
	*last = now
	return true
}

// statusLine returns the text for systemctl status. It is only sent when it
// changes, so it has no readings, which would be outdated.
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

// StatusLine returns the text for systemctl status from the last view.
func (b *Backend) StatusLine() string {
	v, missing := b.o.View(), b.missing()
	if v == nil || len(missing) > 0 {
		return notReadyLine(missing)
	}
	return statusLine(v)
}

// notReadyLine returns the text for systemctl status while evictd is not ready.
func notReadyLine(missing []string) string { return "not ready: " + strings.Join(missing, "; ") }
