package loop

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/execute"
	"github.com/evictd/evictd/agent/hot"
	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/agent/memory"
	"github.com/evictd/evictd/agent/pods"
	"github.com/evictd/evictd/agent/pollinterval"
	"github.com/evictd/evictd/agent/signal"
)

// Loop observes, decides and acts in iterations, all on the goroutine of Run. Other
// goroutines see it through Views.
type Loop struct {
	log                *slog.Logger
	memory             Memory
	inventory          Inventory
	disks              Disks
	onLayoutChange     func(*evict.Policy) // called when the layout has changed
	tasks              Tasks
	usage              *DiskUsage
	reclaimer          Reclaimer
	largestDirectories func(signal.Signal) []evict.DirectoryUsage
	lanes              Lanes
	reclaimStalls      stallDetector
	hot                HotPath
	arbiter            Arbiter
	watchdog           Watchdog
	liveness           *Liveness
	killHandles        *handleCache
	ownKiller          hot.Killer // used when the hot path does not answer
	ownDryRun          hot.Killer
	execute            *execute.Executor
	records            *execute.Records // of execute
	observer           Observer
	newPods            func(since, now time.Time) []evict.Pod        // Options.Arrivals
	hasOrder           func(uid string) bool                         // Options.Ordered
	refuse             func(o *evict.Order, decided time.Time) error // Options.Refuse
	modeFacts          func(*config.Config) Facts
	kubeletThresholds  func() []signal.Threshold
	drift              int64 // how far per-CPU counters may be off, in bytes
	reloads            chan reload
	progress           chan act.Progress

	config   *config.Config
	policy   *evict.Policy
	state    evict.State
	mode     Mode
	outcomes []evict.Outcome
	met      []signal.Signal // in the last step
	// handles are those of the last step; reclaiming is set while an order is in flight.
	handles        map[string]pods.Handle
	reclaiming     bool
	reclaimBackoff reclaimBackoff
	hotKills       []hot.Kill // not adopted by a step yet

	unaccounted evict.UnaccountedBaseline
	node        memory.Node // the last reading in which kubepods was readable
	stalled     bool        // whether reclaim stalled at the last step

	view       *View // of the last iteration
	lastStep   time.Time
	generation uint64                     // of the last published table
	alarm      lanes.Alarm                // the last one
	toResume   map[string]bool            // victims of an earlier run whose eviction goes on, by UID
	factsUntil time.Time                  // until when those wait for facts; zero before the first enforcing iteration
	futile     []evict.Futility           // of the signals that are still met
	crossing   [signal.Count]crossingTime // of hard thresholds
	episode    [signal.Count]time.Time    // when the signal was first below its hard threshold; zero while it is not
}

// reload is a configuration that Run puts into force. Run closes inForce when the hot
// path decides by it, too.
type reload struct {
	config  *config.Config
	inForce chan struct{}
}

// Reload puts a configuration into force. It returns nil when the loop and the hot path
// decide by it, and ctx's error when ctx ends first.
func (l *Loop) Reload(ctx context.Context, cfg *config.Config) error {
	r := reload{config: cfg, inForce: make(chan struct{})}
	select {
	case l.reloads <- r:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-r.inForce:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Run iterates until ctx ends: at every alarm, on every other input, and at its own
// interval.
func (l *Loop) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		listed := l.inventory.Changed()
		var reloaded chan struct{}
		onTimer := false
		select {
		case <-ctx.Done():
			return
		case <-listed:
		case l.alarm = <-l.arbiter.Alarms():
		case p := <-l.progress:
			if p.Stage == act.Refused {
				l.outcomes = append(l.outcomes, evict.Outcome{UID: p.UID, Err: p.Err})
			}
			if p.Stage != act.LastGone && p.Stage != act.Refused {
				continue // the decision does not depend on it
			}
			l.evictionEnded(p.UID, p.Stage)
			l.inventory.Refresh()
		case report := <-l.reclaimer.Done():
			l.reclaimed(&report)
		case r := <-l.reloads:
			l.config, l.policy = r.config, r.config.Policy(l.disks.Layout())
			l.reclaimBackoff.reset()
			reloaded = r.inForce
		case <-l.disks.Crossed():
		case <-l.tasks.Crossed():
		case <-timer.C:
			onTimer = true
		}
		start := time.Now()
		var view *View
		if onTimer && start.Sub(l.alarm.Seen) >= idleInterval {
			view = l.iterateUnchanged(start)
		}
		publish := l.observer.Unchanged
		if view == nil {
			view, publish = l.iterate(ctx, start), l.observer.Stepped
		}
		view.Took = time.Since(start)
		l.view = view
		l.endIteration(time.Now())
		publish(view)
		if reloaded != nil {
			close(reloaded)
		}
		wait := nextInterval(view, l.alarm)
		if wait == idleInterval {
			wait = pollinterval.AlignedWait(time.Now(), idleInterval)
		}
		timer.Reset(wait)
	}
}

// endIteration records the end of the iteration in the liveness, and resets the watchdog.
func (l *Loop) endIteration(now time.Time) {
	l.liveness.note(now, l.policy.SettleTimeout)
	l.watchdog.Reset()
}

// iterate is an iteration with a step: it observes, decides, acts and publishes a table
// for the hot path.
func (l *Loop) iterate(ctx context.Context, now time.Time) *View {
	l.updateLayout()
	v, in, generation := l.decide(ctx, now)
	l.state, l.outcomes, l.met = v.State, nil, v.Orders.Met
	l.reclaimBackoff.update(l.handles, v)
	l.handles = v.Snapshot.Handles
	v.Futile = l.trackFutile(v)
	l.adoptHotKills(ctx, v, l.hotKills)
	l.hotKills = nil
	l.trackCrossings(v)
	l.act(ctx, v)
	// All pods are ranked, even when no threshold is met: the hot path needs the
	// ranking and open handles before the next alarm.
	guard := l.inventory.Guard()
	ranked, _ := l.policy.Rank(v.Snapshot.Pods, signal.MemoryAvailable, &l.state, v.Time)
	l.killHandles.update(&v.Snapshot, ranked, guard, v.Time)
	table := l.killHandles.table(in, v, ranked, guard, generation)
	table.Node = l.node
	l.watchdog.Publish(table.Clone())
	l.hot.Publish(table)
	l.lastStep, l.generation, l.stalled = v.Time, generation, in.ReclaimStalled
	return v
}

// updateLayout makes the policy follow the layout of the filesystems, which evictd
// finds out after its start.
func (l *Loop) updateLayout() {
	if layout := l.disks.Layout(); layout != l.policy.Layout {
		l.policy = l.config.Policy(layout)
		l.onLayoutChange(l.policy)
	}
}

// decide observes and decides. Before it returns orders for hard memory thresholds it
// acquires the generation of the observation, so that no kill of the hot path came between
// observation and order. While the hot path kills, or has killed since the observation,
// decide repeats both. If a kill takes longer than hotKillTimeout, decide steals its
// generation. The returned generation is that of the table which the iteration publishes.
func (l *Loop) decide(ctx context.Context, now time.Time) (v *View, in *evict.Inputs, generation uint64) {
	var until time.Time // the end of the wait for the hot path
	var answered []evict.ThresholdKey
	for {
		l.hotKills, generation = l.arbiter.TakeKills(l.hotKills)
		v = &View{Time: now, Config: l.config, Policy: l.policy}
		answered = append(answered, l.answered()...) // before the reading that it is compared with
		l.observe(v)
		v.Mode = l.updateMode(&v.Snapshot)
		v.KubeletHard = l.kubeletHard(&v.Snapshot)
		l.state = restartSettleTimeouts(l.state, l.toResume, v)
		in = &evict.Inputs{
			Policy: l.policy, Observations: v.Observations, Pods: v.Snapshot.Pods, PodsUnknown: v.Snapshot.Listed.IsZero() && len(v.Snapshot.Pods) == 0,
			Outcomes: append(slices.Clone(l.outcomes), refusals(l.hotKills)...), HotKills: hotKillInputs(l.hotKills),
			Measured: true, UnaccountedBaseline: l.unaccounted.Bytes(), DryRun: v.Mode.DryRun, ReclaimStalled: l.reclaimStalls.check(now), Contention: l.contention(),
			PodsReclaimStalled: l.reclaimStalls.checkPods(now, l.config.CgroupRoot, slices.Contains(l.met, signal.AllocatableMemoryAvailable)),
			ActNow:             answered, CounterDrift: l.drift, Arrivals: l.arrivals(v), NothingReclaimed: l.reclaimBackoff.deferred(now), KubeletHard: v.KubeletHard,
		}
		v.State, v.Orders = evict.Step(l.state, *in, now)
		if l.mustRepeatForUnlistedPod(ctx, v) {
			l.repeatDecision(v, in)
		}
		for l.invalidateStale(v, now) {
			l.repeatDecision(v, in)
		}
		if !slices.ContainsFunc(v.Orders.Evict, func(o evict.Order) bool { return urgent(&o) }) {
			return v, in, generation
		}
		if l.arbiter.Acquire(generation) {
			return v, in, generation + 1 // Acquire begins the next generation
		}
		if until.IsZero() {
			until = time.Now().Add(hotKillTimeout)
		} else if time.Now().After(until) && l.arbiter.Steal(generation) {
			l.log.Error("hot path hangs in a kill; the loop decides without it")
			return v, in, generation + 2 // Steal skips the one that the hanging thread would begin
		}
		select {
		case <-ctx.Done():
			v.State, v.Orders.Evict, v.Orders.Refuse = l.state, nil, nil
			return v, in, generation
		case <-time.After(acquireRetryInterval):
		}
		now = time.Now()
	}
}

// repeatDecision observes again and replaces the decision in v.
func (l *Loop) repeatDecision(v *View, in *evict.Inputs) {
	v.Time = time.Now()
	l.observe(v)
	v.Mode = l.updateMode(&v.Snapshot) // a new pod may be a kubelet's
	v.KubeletHard = l.kubeletHard(&v.Snapshot)
	in.KubeletHard, in.Arrivals = v.KubeletHard, l.arrivals(v)
	in.Pods, in.Observations, in.DryRun, in.UnaccountedBaseline = v.Snapshot.Pods, v.Observations, v.Mode.DryRun, l.unaccounted.Bytes()
	v.State, v.Orders = evict.Step(l.state, *in, v.Time)
}

// invalidateStale makes the next observation read the cgroup files of the pods that the
// orders evict, if those were last read before the iteration began. It returns false if
// there is no such pod. The BPF walk does not distinguish tmpfs, which a kill does not
// free, from anonymous memory.
func (l *Loop) invalidateStale(v *View, began time.Time) bool {
	var uids []string
	for i := range v.Snapshot.Pods {
		uid := v.Snapshot.Pods[i].UID
		if v.Snapshot.ReadAt[i].Before(began) && slices.ContainsFunc(v.Orders.Evict, func(o evict.Order) bool { return o.UID == uid }) {
			uids = append(uids, uid)
		}
	}
	if len(uids) == 0 {
		return false
	}
	l.inventory.InvalidateReadings(uids...)
	return true
}

// acquireRetryInterval is about as long as a kill of the hot path takes. hotKillTimeout
// bounds the wait for one: a thread that takes longer hangs in the kernel.
const acquireRetryInterval, hotKillTimeout = time.Millisecond, 500 * time.Millisecond

// observe reads the pods before the node. Memory freed between the two readings is then
// counted twice; the other order would miss it and kill a second pod.
func (l *Loop) observe(v *View) {
	v.Snapshot = l.inventory.Measure(v.Time)
	l.readNode(v)
	l.readDisks(v)
	l.applyDiskUsage(v)
}

// readNode reads the node's memory into the view. While the usage of kubepods can't be
// read, readNode uses its upper bound ([memory.Node.MaxKubepods]). If that is too high, the
// loop may request a list of the pods without need.
func (l *Loop) readNode(v *View) {
	v.Node = l.memory.Read(v.Time, &v.Observations)
	l.lanes.Observe(v.Time, &v.Observations)
	if !v.Node.KubepodsKnown {
		v.Node.Kubepods = v.Node.MaxKubepods(&l.node)
		return
	}
	l.node = v.Node
	l.updateUnaccounted(v)
}

// readDisks copies the last readings of the filesystems and of the tasks.
func (l *Loop) readDisks(v *View) {
	l.disks.Read(v.Time, &v.Observations)
	l.tasks.Read(v.Time, &v.Observations)
}

// applyDiskUsage adds the disk usage of the pods to the snapshot.
func (l *Loop) applyDiskUsage(v *View) {
	// No pod is evicted for a read-only filesystem, so no usage is needed for it.
	met := slices.DeleteFunc(slices.Clone(l.met), func(s signal.Signal) bool { return v.Observations[s].ReadOnly })
	l.usage.Apply(&v.Snapshot, met, v.Time, l.reclaimer.ExclusiveImageBytes)
	v.DiskUsage = l.usage.byUID
}

// updateMode determines the mode and returns it. When the mode changes, updateMode logs it
// and resets the back-offs of node-level reclaim.
func (l *Loop) updateMode(s *pods.Snapshot) Mode {
	f := l.modeFacts(l.config)
	f.Kubelet = string(l.config.Kubelet)
	f.KubeletFound = s.Kubelet
	f.KubeletSettingChanged = !s.Listed.IsZero() && s.Kubelet.Absent != (l.config.Kubelet == config.KubeletAbsent)
	m := decideMode(f)
	if !m.equal(l.mode) {
		l.reclaimBackoff.reset()
		if m.DryRun {
			l.log.Warn("dry run: nothing is evicted", "why", m.Reasons)
		} else {
			l.log.Info("enforcing: pods are evicted when a threshold is met", "evictions_reported", m.Reporting)
		}
	}
	l.mode = m
	return m
}

// restartSettleTimeouts returns the state with the settle timeouts of the victims in toResume
// starting now: they can't make progress before their evictions are resumed.
func restartSettleTimeouts(s evict.State, toResume map[string]bool, v *View) evict.State {
	if v.Mode.DryRun || len(toResume) == 0 {
		return s
	}
	s = s.Clone()
	for i := range s.Victims {
		if victim := &s.Victims[i]; toResume[victim.UID] && victim.Status == evict.Unsettled {
			victim.ProgressAt = v.Time
		}
	}
	return s
}

// trackFutile returns the signals that were found futile and are still met.
func (l *Loop) trackFutile(v *View) []evict.Futility {
	known := slices.DeleteFunc(slices.Clone(l.futile), func(f evict.Futility) bool {
		replaced := slices.ContainsFunc(v.Orders.Futile, func(n evict.Futility) bool { return n.Signal == f.Signal })
		return replaced || !slices.Contains(v.Orders.Met, f.Signal)
	})
	l.futile = append(known, v.Orders.Futile...)
	return l.futile
}
