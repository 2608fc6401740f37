package native_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/bpf"
	"github.com/evictd/evictd/tests/node"
)

// The alarms of these tests are not the kernel's: they are written into the ring buffer of the evictd that runs, by
// the program that is loaded for it. What follows of them is all evictd's.

// TestAlarmWithoutCause: alarms of a crossing that is over before it can be confirmed end nobody, whether memory is
// far from the threshold or about to cross it; nor do records that make no sense.
func TestAlarmWithoutCause(t *testing.T) {
	n := startNode(t, gibibyte)
	calm := runPod(t, n, node.PodSpec{Name: "calm", Containers: one(holding(500 * mebibyte))}).uses(500 * mebibyte)
	d := startDaemon(t, n, below("100Mi"), calm)
	d.laneIsUp(lanes.BPF)
	for _, threshold := range []string{
		"100Mi",
		"500Mi", // of 1024, of which a little more than 500 are in use
	} {
		d.configure(below(threshold))
		if s := d.reload(); s.Config.LastReloadError != "" {
			t.Fatalf("reload error = %q; want none", s.Config.LastReloadError)
		}
		s := d.sampler()
		before := d.lane(lanes.BPF).Raised
		const alarms = 100
		for i := range alarms {
			if !s.tell(bpf.KindCrossing, podsMark) {
				t.Fatalf("the ring is full after %d records; want room for more than %d", i, alarms)
			}
		}
		d.until("end of the alarms", func(s *control.Status) bool { return raised(s, lanes.BPF) >= before+alarms })
		if got := d.lane(lanes.BPF).Raised - before; got != alarms {
			t.Errorf("threshold %s: %d alarms raised; want %d, one per record", threshold, got, alarms)
		}
		if s := d.looks(3); len(s.Records) > 0 {
			t.Errorf("threshold %s: records %+v; want none", threshold, s.Records)
		}
		mustLive(t, calm)
	}
	s := d.sampler()
	for _, kind := range []bpf.Kind{0, bpf.KindGone, 99, 1 << 31} {
		s.tell(kind, podsMark)
	}
	for _, mark := range []signal.Mark{0, signal.Mark(signal.Marks) - 1, signal.Mark(signal.Marks), 255} {
		s.tell(bpf.KindCrossing, mark)
	}
	if s := d.looks(3); len(s.Records) > 0 {
		t.Errorf("records %+v; want none", s.Records)
	}
	mustLive(t, calm)

	// All this has done the lane no harm.
	d.laneIsUp(lanes.BPF)
	hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: one(growing(400 * mebibyte))})
	calm.remove()
	d.configure(below("700Mi"))
	d.reload()
	d.knows(1)
	hog.press()
	hog.mustDie()
	d.victims(hog)
}

// raised is how many alarms a lane has raised.
func raised(s *control.Status, lane string) uint64 {
	for _, l := range s.Lanes {
		if l.Name == lane {
			return l.Raised
		}
	}
	return 0
}

// TestLanesDisagree: all lanes raise at a crossing, and one of them goes on to tell of others that are none, before,
// during and after the kill. One pod dies, and not the next one with it.
func TestLanesDisagree(t *testing.T) {
	n := startNode(t, gibibyte)
	calm := runPod(t, n, node.PodSpec{Name: "calm", Containers: one(holding(250 * mebibyte))}).uses(250 * mebibyte)
	d := startDaemon(t, n, below("400Mi"), calm)
	d.laneIsUp(lanes.BPF)
	s := d.sampler()
	for _, name := range []string{"first", "second"} {
		hog := runPod(t, n, node.PodSpec{Name: name, Containers: one(growing(700 * mebibyte))})
		d.knows(2)
		hog.press()
		told := 0
		for end := time.Now().Add(patience); hog.containersLive() && time.Now().Before(end); told++ {
			s.tell(bpf.KindCrossing, podsMark)
			s.tell(bpf.KindCrossing, signal.MarkOf(&signal.Threshold{Signal: signal.MemoryAvailable}))
		}
		hog.mustDie()
		for range 20 {
			s.tell(bpf.KindCrossing, podsMark)
		}
		rec := d.ended(hog)
		killed(t, &rec, hog)
		t.Logf("%d alarms too many until the kill: raised by %s, %s", 2*told, rec.Lane, rec.Confirm)
		mustLive(t, calm)
		hog.remove()
		d.knows(1)
	}
	if s := d.looks(3); len(s.Records) != 2 {
		t.Errorf("%d records; want 2", len(s.Records))
	}
	mustLive(t, calm)
}

// TestRingOverrun: evictd is stopped, its ring buffer runs over, and the crossing finds no room in it. When evictd
// goes on, the hog dies all the same, and alone.
func TestRingOverrun(t *testing.T) {
	n := startNode(t, gibibyte)
	calm := runPod(t, n, node.PodSpec{Name: "calm", Containers: one(holding(200 * mebibyte))}).uses(200 * mebibyte)
	hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: one(growing(500 * mebibyte))})
	d := startDaemon(t, n, below("400Mi"), calm, hog)
	d.laneIsUp(lanes.BPF)
	s := d.sampler()
	if err := d.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	d.stopped()
	filled := 0
	for s.tell(bpf.KindCrossing, podsMark) {
		if filled++; filled > 1<<16 {
			t.Fatalf("the ring has room for %d records of an evictd that is stopped", filled)
		}
	}
	hog.press()
	hog.uses(500 * mebibyte)
	if s.tell(bpf.KindCrossing, podsMark) {
		t.Error("the ring has room again, and nobody has read it")
	}
	mustLive(t, calm, hog)
	if err := d.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	hog.mustDie()
	d.victims(hog)
	mustLive(t, calm)
	t.Logf("%d records found room", filled)

	// The ring is in use again.
	d.laneIsUp(lanes.BPF)
	s = d.sampler()
	before := d.lane(lanes.BPF).Raised
	if !s.tell(bpf.KindCrossing, podsMark) {
		t.Fatal("the ring has no room; want it read")
	}
	d.until("alarm after the overrun", func(s *control.Status) bool { return raised(s, lanes.BPF) > before })
	if s := d.looks(3); len(s.Records) != 1 {
		t.Errorf("records %+v; want the hog's alone", s.Records)
	}
	mustLive(t, calm)
}
