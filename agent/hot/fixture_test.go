package hot

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/agent/memory"
	"github.com/evictd/evictd/agent/signal"
)

const mi = 1 << 20

// fakePod is a pod with the given usage, in bytes.
type fakePod struct {
	name                          string
	usage, workingSet, anonymous  int64
	unproven, closed              bool
	memoryReads, usageReads, refs int
}

func (p *fakePod) Usage() (int64, bool) { p.usageReads++; return p.usage, true }
func (p *fakePod) Memory() (int64, int64, bool) {
	p.memoryReads++
	return p.workingSet, p.anonymous, true
}
func (p *fakePod) Direct() bool { return !p.unproven }
func (p *fakePod) Unref()       { p.refs-- }
func (p *fakePod) Close()       { p.closed = true }

func (p *fakePod) Ref() bool {
	if p.closed {
		return false
	}
	p.refs++
	return true
}

// uses sets the pod's usage, all of it anonymous.
func (p *fakePod) uses(bytes int64) { p.usage, p.workingSet, p.anonymous = bytes, bytes, bytes }

// fakeKiller records the pods that it kills.
type fakeKiller struct {
	killed [64]string
	n      int
	during func()
	refuse string // a pod whose kill is refused
}

func (s *fakeKiller) Kill(p Handle, _ *evict.Guard) act.KillResult {
	s.killed[s.n%len(s.killed)] = p.(*fakePod).name
	s.n++
	if s.during != nil {
		s.during()
	}
	if p.(*fakePod).name == s.refuse {
		return act.KillResult{Err: &act.WrongVictimError{Essential: true}}
	}
	return act.KillResult{Processes: 1, FirstSignal: time.Now()}
}

func (s *fakeKiller) names() []string { return s.killed[:s.n] }

// fakeReader reads the given available memory of 64 GiB, and usage for kubepods with page
// cache. With noKubepods nothing else is known of kubepods. With late, memory.stat can't be
// read in time.
type fakeReader struct {
	available, cache, kubepods, usage int64
	shmem                             uint64
	noKubepods, late                  bool
	podReads                          int // reads of memory.stat
}

func (r *fakeReader) Read(now, _ time.Time, into *signal.Observations) memory.Node {
	into[signal.MemoryAvailable] = signal.Observation{Status: signal.Observed, Available: r.available, Cache: r.cache, Capacity: 64 << 30, Time: now}
	if r.noKubepods {
		return memory.Node{KubepodsUsage: r.usage}
	}
	return memory.Node{Shmem: r.shmem, Kubepods: r.kubepods, KubepodsUsage: r.usage, KubepodsKnown: true}
}

func (r *fakeReader) ReadPod(p memory.Pod, limit time.Duration) (workingSet, anonymous int64, ok bool) {
	r.podReads++
	if r.late || limit <= 0 {
		return 0, 0, false
	}
	return p.Memory()
}

// fixture is a decider with fakes. Its threshold is 1 GiB available.
type fixture struct {
	t            *testing.T
	arbiter      *Arbiter
	reader       *fakeReader
	killer       *fakeKiller
	dryRunKiller *fakeKiller
	pods         []*fakePod
	state        evict.State
	in           evict.Inputs
	decider
}

// newFixture has pods of the given sizes, in MiB.
func newFixture(t *testing.T, sizes ...int64) *fixture {
	t.Helper()
	value, err := signal.ParseThreshold("1Gi")
	if err != nil {
		t.Fatal(err)
	}
	s := &fixture{t: t, arbiter: NewArbiter(), reader: &fakeReader{available: 2048 * mi}, killer: &fakeKiller{}, dryRunKiller: &fakeKiller{}}
	s.in = evict.Inputs{
		Policy: &evict.Policy{
			Thresholds: []evict.Threshold{{Threshold: signal.Threshold{Signal: signal.MemoryAvailable, Value: value}}},
			MaxVictims: 3, SettleTimeout: time.Second,
		},
		Measured: true,
	}
	for i, size := range sizes {
		p := &fakePod{name: fmt.Sprint("p", i)}
		p.uses(size * mi)
		s.pods = append(s.pods, p)
		s.in.Pods = append(s.in.Pods, evict.Pod{UID: p.name, Name: p.name, HasStats: true, Usage: evict.PodUsage{Memory: size * mi, Freeable: size * mi}})
	}
	s.setReader(s.reader)
	return s
}

// setReader sets the reader, with enough time for memory.stat on a busy machine.
func (s *fixture) setReader(r Reader) {
	s.setUp(&Options{Arbiter: s.arbiter, Reader: r, Killer: s.killer, DryRunKiller: s.dryRunKiller})
	s.readTimeout, s.readTimeoutAfterWalk = time.Minute, time.Minute
}

// table makes a table from the usage of the pods now.
func (s *fixture) table(generation uint64, taken time.Time) *Table {
	t := &Table{
		Decision: evict.NewTable(&s.in, &s.state, taken), Pods: s.in.Pods, Guard: &evict.Guard{}, DryRun: s.in.DryRun, Generation: generation,
		Prepare: func(int) (Handle, error) { return nil, errors.New("no handle") },
	}
	for i, p := range s.pods {
		t.Rows = append(t.Rows, NewRow(p, &s.in.Pods[i], []uint64{uint64(i)}, p.workingSet))
	}
	return t
}

// alarm processes an alarm of a lane.
func (s *fixture) alarm(lane string) Result {
	s.t.Helper()
	return s.process(lanes.Alarm{Lane: lane, Seen: time.Now()})
}

// takeKills returns the queued kills, by UID.
func (s *fixture) takeKills() (uids []string, generation uint64) {
	kills, generation := s.arbiter.TakeKills(nil)
	for _, k := range kills {
		uids = append(uids, k.Pod.UID)
	}
	return uids, generation
}
