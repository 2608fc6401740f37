package hot

import (
	"sync/atomic"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/agent/memory"
	"github.com/evictd/evictd/agent/signal"
)

// Reader takes the readings that confirm an alarm. It does not allocate or block.
type Reader = memory.Reader

// Result is the outcome of an alarm.
type Result uint8

// The results.
const (
	// Killed: pods were killed, or would have been killed in dry run.
	Killed Result = iota
	// NotConfirmed: in a fresh reading no hard threshold is crossed.
	NotConfirmed
	// Declined: Decide chose no victim; evict.VerdictReason lists why.
	Declined
	// Unlisted: kubepods uses memory that no listed pod accounts for.
	Unlisted
	// NoHandle: no kill handle of a victim could be opened.
	NoHandle
	// Superseded: another thread has killed since the table was made, or is killing; or the
	// queue has no room; or the loop has stolen the generation during the kill, and then
	// some of the pods may have been killed.
	Superseded
	// NotReady: there is no table yet.
	NotReady

	// Results is the number of the results above, and not a result itself.
	Results
)

// String returns the name of the result. With "_" for each space it is a label value of
// evictd_hot_alarms_total, which stays when a result is renamed: struck, victim_not_held
// and outrun.
func (r Result) String() string {
	return [...]string{
		Killed: "struck", NotConfirmed: "not confirmed", Declined: "declined", Unlisted: "pod not listed",
		NoHandle: "victim not held", Superseded: "outrun", NotReady: "not ready", Results: "unknown",
	}[min(r, Results)]
}

// decider confirms alarms, decides and kills. It belongs to one thread.
type decider struct {
	arbiter      *Arbiter
	queue        *killQueue
	reader       Reader
	walk         WalkReader // the reader, if it implements that
	killer       Killer
	dryRunKiller Killer
	nextTable    atomic.Pointer[Table]
	counts       [Results]atomic.Uint64

	// answered are the hard thresholds whose crossing a lane has answered. They are kept
	// apart from the alarms: Thread.Raise drops an alarm while another one waits, and
	// Thread.recheck decides again for an early alarm. takeAnswers moves them into the
	// table when a crossing is confirmed; dropAnswers drops them when it is over.
	answered answers

	table    *Table
	observed signal.Observations
	headroom int64 // in the last reading, bytes
	// Times of the current decision, for the record.
	confirmedAt, chosenAt time.Time
	// readTimeout bounds the reads of memory.stat for one alarm, which end at readDeadline.
	readTimeout, readTimeoutAfterWalk time.Duration
	readDeadline                      time.Time
	chosen                            [maxKills]choice
}

// choice is a pod that is about to be killed.
type choice struct {
	ranked evict.Ranked
	handle Handle
	// unprepared means that refVictims opened the handle, so unrefVictims closes it.
	unprepared bool
	// refused means that the pod contains an essential process and can't be ended.
	refused bool
}

// setUp sets what the decider works with, and adds its queue to the arbiter. It is called
// before any thread uses the arbiter.
func (d *decider) setUp(o *Options) {
	d.arbiter, d.reader, d.killer, d.dryRunKiller = o.Arbiter, o.Reader, o.Killer, o.DryRunKiller
	d.queue, d.readTimeout, d.readTimeoutAfterWalk = o.Arbiter.newQueue(), memory.ReadTimeout, readTimeoutAfterWalk
	d.walk, _ = o.Reader.(WalkReader)
}

// publish sets the decider's next table.
func (d *decider) publish(t *Table) { d.nextTable.Store(t) }

// recordAnswer records whether an alarm answers a crossing, for the decider and the loop.
// It is safe for concurrent use.
func (d *decider) recordAnswer(alarm *lanes.Alarm) {
	d.answered.record(alarm)
	d.arbiter.answered.record(alarm)
}

// takeAnswers moves the recorded answers into the table.
func (d *decider) takeAnswers() {
	for id := range d.answered {
		if d.answered[id].Load() && d.answered[id].Swap(false) {
			d.table.Decision.ActNow(signal.ThresholdID(id).Signal())
		}
	}
}

// dropAnswers drops the recorded answers of a crossing that is over.
func (d *decider) dropAnswers() {
	for id := range d.answered {
		d.answered[id].Store(false)
	}
}

// process decides on an alarm and passes it to the loop.
func (d *decider) process(alarm lanes.Alarm) Result {
	d.recordAnswer(&alarm)
	result := d.decide(alarm, alarm.Seen)
	d.report(result, alarm)
	return result
}

// report counts the result of an alarm and passes the alarm to the loop.
func (d *decider) report(result Result, alarm lanes.Alarm) {
	d.counts[result].Add(1)
	d.arbiter.notify(alarm)
}

// Count returns the number of alarms with the result r.
func (d *decider) Count(r Result) uint64 { return d.counts[r].Load() }

// decided returns the number of alarms that need no other thread. Victims were killed, a
// fresh reading crosses no hard threshold, or a valid table has no victim or leaves the
// decision to the loop. After any other result, a thread with another table may still
// find a pod that it can kill.
func (d *decider) decided() (n uint64) {
	for _, r := range []Result{Killed, NotConfirmed, Declined, Unlisted} {
		n += d.Count(r)
	}
	return n
}

// processed returns the number of alarms with any result.
func (d *decider) processed() (n uint64) {
	for i := range d.counts {
		n += d.counts[i].Load()
	}
	return n
}

// takeTable replaces the table by the last published one, unless another thread has killed
// since the observation of that one: then a newer table will follow.
func (d *decider) takeTable() {
	if t := d.nextTable.Swap(nil); t != nil && (d.table == nil || d.arbiter.Valid(t.Generation)) {
		d.table = t
	}
}

// decide confirms an alarm, chooses and kills. The reading that confirms the alarm is not
// older than since. The usage by which pods are ranked may be up to maxRankingAge old.
func (d *decider) decide(alarm lanes.Alarm, since time.Time) Result {
	d.takeTable()
	t := d.table
	if t == nil {
		return NotReady
	}
	now := time.Now()
	t.updateKilled()
	node := d.reader.Read(now, since, &d.observed)
	if d.headroom = t.Decision.Headroom(&d.observed); d.headroom >= 0 {
		if t.Decision.Observe(&d.observed, now); d.headroom >= recheckMargin {
			d.dropAnswers() // the crossing is over
		}
		return NotConfirmed
	}
	if !d.arbiter.Valid(t.Generation) {
		return Superseded
	}
	d.confirmedAt = time.Now()
	kubepods := node.MaxKubepods(&t.Node)
	t.shmemGrown = max(0, int64(node.Shmem)-int64(t.Node.Shmem))
	d.takeAnswers()
	v, fresh := d.choose(kubepods, now)
	age := now.Sub(t.Decision.UsageTime)
	if fresh {
		age = 0
	}
	if v.N == 0 {
		return Declined
	}
	if t.Decision.HasUnlistedPod(kubepods) {
		return Unlisted
	}
	// As many are killed as the queue has room for. The loop's next step, which this alarm
	// wakes it for, orders the others. Only this thread queues kills, so the room remains.
	if v.N = min(v.N, d.queue.room()); v.N == 0 {
		return Superseded
	}
	if !d.refVictims(&v) {
		d.unrefVictims(0)
		return NoHandle
	}
	d.chosenAt = time.Now()
	queued, result := d.kill(&v, alarm, now, age)
	if result != Killed {
		d.unrefVictims(queued)
	}
	return result
}

// refVictims takes a reference of a kill handle for each victim. It prepares a handle that
// is missing or closed. It returns false if a victim has none; the caller then drops the
// references that were taken.
func (d *decider) refVictims(v *evict.Verdict) bool {
	clear(d.chosen[:])
	for i := range v.N {
		c := &d.chosen[i]
		c.ranked = v.Ranking[i]
		at := c.ranked.Index()
		if h := d.table.Rows[at].Handle; h != nil && h.Ref() {
			c.handle = h
			continue
		}
		h, err := d.table.Prepare(at)
		if err != nil {
			return false // the loop tries again and reports the error
		}
		if !h.Ref() {
			h.Close()
			return false
		}
		c.handle, c.unprepared = h, true
	}
	return true
}

// unrefVictims drops the references of refVictims from the first-th victim on, and closes
// the handles that were prepared for them. The loop does so for the queued kills.
func (d *decider) unrefVictims(first int) {
	for i := range d.chosen[first:] {
		c := &d.chosen[first+i]
		if c.handle == nil {
			return
		}
		c.handle.Unref()
		if c.unprepared {
			c.handle.Close()
		}
	}
}

// kill acquires the table's generation and kills the victims, for which the queue has room.
// It returns how many kills it has queued for the loop. The result is Superseded if it could
// not acquire the generation, or if the loop has stolen it since.
func (d *decider) kill(v *evict.Verdict, alarm lanes.Alarm, now time.Time, age time.Duration) (queued int, _ Result) {
	t := d.table
	if !d.arbiter.acquireUntilRelease(t.Generation) {
		return 0, Superseded
	}
	killer := d.killer
	if t.DryRun {
		killer = d.dryRunKiller
	}
	for queued < v.N {
		c := &d.chosen[queued]
		result := killer.Kill(c.handle, t.Guard)
		c.refused = result.Refused()
		if !d.arbiter.owned(t.Generation) {
			// The kill took so long that the loop has stolen the generation. It does not
			// expect this kill, so the kill is not queued; for its record see Arbiter.Steal.
			break
		}
		k := d.queue.next()
		*k = Kill{
			Pod: &t.Pods[c.ranked.Index()], Memory: c.ranked.Usage, Freeable: c.ranked.Expected,
			Handle: c.handle, Result: result, DryRun: t.DryRun,
			Threshold: *v.Threshold, Observation: v.Observation, Deficit: v.Deficit, Expected: c.ranked.Expected,
			Alarm: alarm, Decided: now, Confirmed: d.confirmedAt, Chosen: d.chosenAt, RankingAge: age, Unprepared: c.unprepared,
		}
		k.ranked = copy(k.candidates[:], v.Ranking)
		d.queue.commit()
		queued++
	}
	if queued < v.N {
		return queued, Superseded // the loop publishes a table of a newer generation
	}
	t.Decision.AddVictims(v)
	for i := range v.N {
		c := &d.chosen[i]
		t.markKilled(c)
		if c.refused {
			t.Decision.MarkFailed(c.ranked.UID)
		}
	}
	d.arbiter.release(t.Generation)
	t.Generation++ // the table has the kills, so it is valid in the next generation too
	return queued, Killed
}
