package agent

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/execute"
	"github.com/evictd/evictd/agent/loop"
	"github.com/evictd/evictd/agent/metrics"
	"github.com/evictd/evictd/agent/pods"
	"github.com/evictd/evictd/agent/signal"
)

// reports tells people and machines what the loop did, in the metrics and the log.
type reports struct {
	*daemon
	beat metrics.Heartbeat

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
	kubelets   []pods.TrustedKubelet // that were saved
	victims    int
}

func newReports(d *daemon) *reports {
	return &reports{daemon: d}
}

// keepWhileWaiting is how often the state is written while its timers run, so
// that a restart knows how long evictd was away.
const keepWhileWaiting = 2 * time.Second

// Stepped implements loop.Observer.
func (r *reports) Stepped(v *loop.View) {
	r.board.view.Store(v)
	r.shutdown.Changed()
	r.beat.Beat()
	r.notifier.Beat()
	if listed := v.Snapshot.Listed; !listed.Equal(r.listed) {
		r.listed = listed
		r.watchContainers(&v.Snapshot)
		if trusted := r.inventory.TrustedKubelets(); !slices.Equal(trusted, r.kubelets) {
			r.kubelets = trusted
			r.keeper.poke()
		}
	}
	r.measure(v)
	r.announce(v)
	if len(v.State.Timers) > 0 {
		r.cold.Poke()
	}
	running := len(v.State.Timers) > 0 || len(v.State.Victims) > 0 || len(v.State.Conditions) > 0
	ordered := len(v.Orders.Evict)+len(v.Orders.Adopted)+len(v.Orders.Harden) > 0
	if ordered || len(v.State.Victims) != r.victims || running && v.Time.Sub(r.saved) >= keepWhileWaiting {
		r.saved, r.victims = v.Time, len(v.State.Victims)
		r.keeper.poke()
	}
	if !r.ready && r.complete(v) {
		r.ready = true
		r.log.Info("ready", "pods", len(v.Snapshot.Pods), "eligible", v.Eligible())
		r.status = statusLine(v)
		r.notifier.Ready(r.status)
		if v.Eligible() == 0 {
			r.log.Warn("no pod may be evicted, pressure can't be relieved", "pods", len(v.Snapshot.Pods))
		}
	}
}

// Looked implements loop.Observer.
func (r *reports) Looked(v *loop.View) {
	r.board.view.Store(v)
	r.beat.Beat()
	r.notifier.Beat()
	r.metrics.Observed(v.Observations)
	r.metrics.Unaccounted(v.Node.Unaccounted)
}

// complete reports whether the observation lacks nothing that it should have.
func (r *reports) complete(v *loop.View) bool {
	s := r.inventory.Status()
	return v.Observations[signal.MemoryAvailable].Status == signal.Observed && (s.Connected || s.DeclaredAbsent)
}

func (r *reports) measure(v *loop.View) {
	m := r.metrics
	m.Observed(v.Observations)
	m.Unaccounted(v.Node.Unaccounted)
	m.Stepped(&v.State, &v.Orders, v.Took)
	m.Pods(len(v.Snapshot.Pods), v.Eligible())
	m.DryRun(v.Mode.DryRun)
	m.RuntimeConnected(r.inventory.Status().Connected)
	m.Records(len(r.board.records.List()))
}

// announce logs what has changed.
func (r *reports) announce(v *loop.View) {
	if changed(&r.conditions, fmt.Sprint(v.Orders.Conditions)) {
		r.log.Warn("node conditions", "conditions", v.Orders.Conditions)
	}
	line := statusLine(v)
	if !r.ready {
		line = notReadyLine(r.board.missing())
	}
	if line != r.status && (r.ready || !r.complete(v)) { // else it comes with READY
		r.status = line
		r.notifier.Status(line)
	}
	if changed(&r.unreadable, fmt.Sprint(v.Orders.Unreadable)) {
		for _, u := range unreadable(v) {
			r.log.Error("signals can't be read and are skipped", "signals", strings.Join(u.signals, ", "), "error", u.cause)
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
				r.log.Error("all pods that may be evicted use too little of the filesystem; no pod is evicted",
					"signal", f.Signal.String(), "deficit", f.Deficit, "coverage", f.Coverage,
					"largest_outside", largestDirectories(r.disks, r.usages, f.Signal))
				continue
			}
			r.log.Error("no pod may be evicted to relieve the signal", "signal", f.Signal.String(), "deficit", f.Deficit,
				"largest_outside", r.inventory.Outside(loop.Outsiders))
		}
	}
	if len(v.Orders.Met) == 0 {
		r.futile = ""
	}
	if changed(&r.held, fmt.Sprint(v.Orders.Waiting)) && len(v.Orders.Waiting) > 0 {
		r.log.Warn("file cache brought memory below the threshold; no pod is evicted for it yet", "thresholds", fmt.Sprint(v.Orders.Waiting))
	}
	for _, uid := range v.Orders.Revived {
		r.log.Warn("evicted pod came back", "uid", uid)
	}
	for _, uid := range v.Orders.Stuck {
		r.log.Error("victim is stuck, its processes do not go", "uid", uid)
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

// statusLine is that of the last view once evictd is ready.
func (b *board) statusLine() string {
	v, missing := b.view.Load(), b.missing()
	if v == nil || len(missing) > 0 {
		return notReadyLine(missing)
	}
	return statusLine(v)
}

// notReadyLine is what systemctl status shows of an evictd that is not ready.
func notReadyLine(missing []string) string { return "not ready: " + strings.Join(missing, "; ") }

// describeThresholds lists thresholds as the kubelet's flags have them.
func describeThresholds(p *evict.Policy) []string {
	var list []string
	for _, t := range p.Thresholds {
		text := t.Signal.String() + "<" + t.Value.String()
		if !t.Hard() {
			text += " for " + t.Grace.String()
		}
		list = append(list, text)
	}
	return list
}

// describeConfigured says why the configuration wants dry run, or "".
func describeConfigured(cfg *config.Config) string {
	if !cfg.DryRun {
		return ""
	}
	switch origin := cfg.Origin("dryRun"); origin {
	case config.OriginFlag:
		return "--dry-run was given"
	case config.OriginFile:
		return "the configuration says dryRun: true"
	}
	return "no AgentConfiguration was given"
}
