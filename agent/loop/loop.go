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
	"github.com/evictd/evictd/agent/pace"
	"github.com/evictd/evictd/agent/pods"
	"github.com/evictd/evictd/agent/signal"
)

// Loop observes, decides and acts, again and again. All of it happens on one
// goroutine; what others want to see of it they get as a View.
type Loop struct {
	log       *slog.Logger
	memory    Memory
	inventory Inventory
	disks     Disks
	rearm     func(*evict.Policy) // with a policy of another layout
	tasks     Tasks
	usage     *DiskUsage
	reclaimer Reclaimer
	largest   func(signal.Signal) []evict.DirectoryUsage
	lanes     Lanes
	stalls    stalls
	hot       HotPath
	desk      Desk
	watchdog  Watchdog
	liveness  *Liveness
	holds     *holds
	own       hot.Striker // where the hot path does not answer
	ownLook   hot.Striker
	execute   *execute.Executor
	records   *execute.Records // that it adds
	observer  Observer
	facts     func(*config.Config) Facts
	drift     int64 // what per-CPU counters hold back, in bytes
	reloads   chan reload
	progress  chan act.Progress

	config   *config.Config
	policy   *evict.Policy
	state    evict.State
	mode     Mode
	outcomes []evict.Outcome
	met      []signal.Signal // in the last step
	// handles are those of the last step, reclaiming tells that an order is under way.
	handles    map[string]pods.Handle
	reclaiming bool
	repeats    reclaimRepeats
	kills      []hot.Kill // of the hot path, that no step has adopted yet

	unexplained evict.Unexplained
	node        memory.Node // the last that told what all pods use
	stalled     bool        // what the last step took reclaim to do

	view       *View                      // of the last turn
	stepped    time.Time                  // when the last step was
	generation uint64                     // of the table that was published last
	raise      lanes.Raise                // the alarm that began this episode
	unfinished map[string]bool            // victims of an earlier run, by UID
	futile     []evict.Futility           // as long as it holds
	crossing   [signal.Count]crossingTime // of hard thresholds
	episode    [signal.Count]time.Time    // when it began; zero while not low
}

// reload is a configuration that is to be in force from now on. inForce is closed
// when it is: also the hot path then decides by it.
type reload struct {
	config  *config.Config
	inForce chan struct{}
}

// Reload puts a configuration into force and returns when it is: also the hot path
// then decides by it. It fails when ctx ends before that.
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

// Run steps until ctx ends: at every alarm, whenever something it waits for
// happens, and by its own pace.
func (l *Loop) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		listed := l.inventory.Changed()
		var reloaded chan struct{}
		called := true
		select {
		case <-ctx.Done():
			return
		case <-listed:
		case l.raise = <-l.desk.News():
		case p := <-l.progress:
			if p.Stage == act.Refused {
				l.outcomes = append(l.outcomes, evict.Outcome{UID: p.UID, Err: p.Err})
			}
			if p.Stage != act.LastGone && p.Stage != act.Refused {
				continue // nothing that the decision waits for
			}
			l.gone(p.UID, p.Stage)
			l.inventory.Refresh()
		case report := <-l.reclaimer.Done():
			l.reclaimed(&report)
		case r := <-l.reloads:
			l.config, l.policy = r.config, r.config.Policy(l.disks.Layout())
			l.repeats.reset()
			reloaded = r.inForce
		case <-l.disks.Crossed():
		case <-l.tasks.Crossed():
		case <-timer.C:
			called = false
		}
		start := time.Now()
		var view *View
		if !called && start.Sub(l.raise.Seen) >= calm {
			view = l.quiet(start)
		}
		tell := l.observer.Looked
		if view == nil {
			view, tell = l.step(ctx, start), l.observer.Stepped
		}
		if reloaded != nil {
			close(reloaded)
		}
		view.Took = time.Since(start)
		l.view = view
		l.turned(time.Now())
		tell(view)
		wait := rest(view, l.raise)
		if wait == calm {
			wait = pace.Together(time.Now(), calm)
		}
		timer.Reset(wait)
	}
}

// turned notes the end of a turn.
func (l *Loop) turned(now time.Time) {
	l.liveness.note(now, l.policy.SettleTimeout)
	l.watchdog.Rewind()
}

// step is one turn: observe, decide, act, note.
func (l *Loop) step(ctx context.Context, now time.Time) *View {
	l.rearrange()
	v, in, generation := l.decide(ctx, now)
	l.state, l.outcomes, l.met = v.State, nil, v.Orders.Met
	l.repeats.follow(l.handles, v)
	l.handles = v.Snapshot.Handles
	v.Futile = l.trackFutile(v)
	l.adopt(ctx, v, l.kills)
	l.kills = nil
	l.trackCrossings(v)
	l.act(ctx, v)
	// The ranking of all, also where nobody had to be chosen: the hot path is
	// prepared for whoever comes first.
	guard := l.inventory.Guard()
	ranked, _ := l.policy.Rank(v.Snapshot.Pods, signal.MemoryAvailable, &l.state, v.Time)
	l.holds.follow(&v.Snapshot, ranked, guard, v.Time)
	table := l.holds.table(in, v, ranked, guard, generation)
	table.Node = l.node
	l.watchdog.Publish(table.Clone())
	l.hot.Publish(table)
	l.stepped, l.generation, l.stalled = v.Time, generation, in.ReclaimStalled
	return v
}

// rearrange goes by the layout of the filesystems that is known now.
func (l *Loop) rearrange() {
	if layout := l.disks.Layout(); layout != l.policy.Layout {
		l.policy = l.config.Policy(layout)
		l.rearm(l.policy)
	}
}

// decide observes and decides, again while somebody kills or has killed
// meanwhile, but not for ever. What it orders for hard memory thresholds is
// claimed: it rests on an observation that nobody has overtaken.
func (l *Loop) decide(ctx context.Context, now time.Time) (v *View, in *evict.Inputs, generation uint64) {
	var until time.Time // others are waited for
	var answered []evict.Key
	for {
		l.kills, generation = l.desk.Kills(l.kills)
		v = &View{Time: now, Config: l.config, Policy: l.policy}
		answered = append(answered, l.answered()...) // before the reading that is held against it
		l.observe(v)
		v.Mode = l.decideMode(&v.Snapshot)
		l.state = untouched(l.state, l.unfinished, v)
		in = &evict.Inputs{
			Policy: l.policy, Observations: v.Observations, Pods: v.Snapshot.Pods, Unlisted: v.Snapshot.Listed.IsZero() && len(v.Snapshot.Pods) == 0,
			Outcomes: append(slices.Clone(l.outcomes), refusals(l.kills)...), Fired: fired(l.kills),
			Measured: true, Unexplained: l.unexplained.Known(), DryRun: v.Mode.DryRun, ReclaimStalled: l.stalls.check(now), Contention: l.contention(),
			PodsReclaimStalled: l.stalls.checkPods(now, l.config.CgroupRoot, slices.Contains(l.met, signal.AllocatableMemoryAvailable)),
			Answered:           answered, Drift: l.drift, NothingReclaimed: l.repeats.inVain(now),
		}
		v.State, v.Orders = evict.Step(l.state, *in, now)
		if l.newcomer(ctx, v) {
			l.decideAgain(v, in)
		}
		for l.readAgain(v, now) {
			l.decideAgain(v, in)
		}
		if !slices.ContainsFunc(v.Orders.Evict, func(o evict.Order) bool { return urgent(&o) }) {
			return v, in, generation
		}
		if l.desk.Claim(generation) {
			return v, in, generation + 1
		}
		if until.IsZero() {
			until = time.Now().Add(longestKilling)
		} else if time.Now().After(until) && l.desk.Seize(generation) {
			l.log.Error("the hot path hangs while it kills, deciding without it")
			return v, in, generation + 2
		}
		select {
		case <-ctx.Done():
			v.State, v.Orders.Evict = l.state, nil
			return v, in, generation
		case <-time.After(killing):
		}
		now = time.Now()
	}
}

// decideAgain observes and decides as if nothing had been decided yet.
func (l *Loop) decideAgain(v *View, in *evict.Inputs) {
	v.Time = time.Now()
	l.observe(v)
	v.Mode = l.decideMode(&v.Snapshot) // a newcomer may be a kubelet's
	in.Pods, in.Observations, in.DryRun, in.Unexplained = v.Snapshot.Pods, v.Observations, v.Mode.DryRun, l.unexplained.Known()
	v.State, v.Orders = evict.Step(l.state, *in, v.Time)
}

// readAgain reports whether a pod is about to be evicted whose files were last read
// before the turn began, and has the next observation read them: no walk tells what
// of its memory has become tmpfs, which a kill does not give back.
func (l *Loop) readAgain(v *View, began time.Time) bool {
	var uids []string
	for i := range v.Snapshot.Pods {
		uid := v.Snapshot.Pods[i].UID
		if v.Snapshot.Read[i].Before(began) && slices.ContainsFunc(v.Orders.Evict, func(o evict.Order) bool { return o.UID == uid }) {
			uids = append(uids, uid)
		}
	}
	if len(uids) == 0 {
		return false
	}
	l.inventory.Forget(uids...)
	return true
}

// killing is about how long somebody else's kill takes, and longestKilling how long
// it may: a thread that takes longer hangs in the kernel.
const killing, longestKilling = time.Millisecond, 500 * time.Millisecond

// observe reads the pods and the node. The pods first: what a victim gives back
// between the two readings is then counted twice, and not left out, which would
// take a second victim for it.
func (l *Loop) observe(v *View) {
	v.Snapshot = l.inventory.Measure(v.Time)
	l.readNode(v)
	l.readDisks(v)
	l.fillDisks(v)
}

// readNode reads the node's memory, after the pods of the view. Where it is not
// known what all pods use together, the most that it can be stands for it: who is
// not listed is rather asked for in vain.
func (l *Loop) readNode(v *View) {
	v.Node = l.memory.Read(v.Time, &v.Observations)
	l.lanes.Seen(v.Time, &v.Observations)
	if !v.Node.KubepodsKnown {
		v.Node.Kubepods = v.Node.Most(&l.node)
		return
	}
	l.node = v.Node
	l.sum(v)
}

// readDisks takes what is known of the filesystems and of the tasks.
func (l *Loop) readDisks(v *View) {
	l.disks.Read(v.Time, &v.Observations)
	l.tasks.Read(v.Time, &v.Observations)
}

// fillDisks puts into pods that were just measured what they hold on the disks.
func (l *Loop) fillDisks(v *View) {
	// Nobody goes for a filesystem that is read-only, so nobody has to be measured for it.
	met := slices.DeleteFunc(slices.Clone(l.met), func(s signal.Signal) bool { return v.Observations[s].ReadOnly })
	l.usage.Fill(&v.Snapshot, met, v.Time, l.reclaimer.ImageBytes)
	v.Holdings = l.usage.holdings
}

func (l *Loop) decideMode(s *pods.Snapshot) Mode {
	f := l.facts(l.config)
	f.Kubelet = string(l.config.Kubelet)
	f.Found = s.Kubelet
	f.Outdated = !s.Listed.IsZero() && s.Kubelet.Absent != (l.config.Kubelet == config.KubeletAbsent)
	m := decideMode(f)
	if !m.equal(l.mode) {
		l.repeats.reset()
		if m.DryRun {
			l.log.Warn("dry run: nothing is evicted", "why", m.Why)
		} else {
			l.log.Info("enforcing: pods are evicted when a threshold is met")
		}
	}
	l.mode = m
	return m
}

// untouched returns the state with the victims of an earlier run as if they had
// been ordered to go now, as long as they have not been taken up: until then
// nobody is killing them, so they are not late.
func untouched(s evict.State, unfinished map[string]bool, v *View) evict.State {
	if v.Mode.DryRun || len(unfinished) == 0 {
		return s
	}
	s = s.Clone()
	for i := range s.Victims {
		if victim := &s.Victims[i]; unfinished[victim.UID] && victim.Status == evict.Unsettled {
			victim.Fell = v.Time
		}
	}
	return s
}

// trackFutile keeps what was found futile until the state forgets it.
func (l *Loop) trackFutile(v *View) []evict.Futility {
	known := slices.DeleteFunc(slices.Clone(l.futile), func(f evict.Futility) bool {
		replaced := slices.ContainsFunc(v.Orders.Futile, func(n evict.Futility) bool { return n.Signal == f.Signal })
		return replaced || !slices.Contains(v.Orders.Met, f.Signal)
	})
	l.futile = append(known, v.Orders.Futile...)
	return l.futile
}
