package bpf

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel/kerneltest"
)

func vmstat(t *testing.T) Node {
	t.Helper()
	page := uint64(os.Getpagesize())
	return Node{
		Valid:        true,
		Anon:         page * field(t, "/proc/vmstat", "nr_anon_pages"),
		File:         page * field(t, "/proc/vmstat", "nr_file_pages"),
		InactiveFile: page * field(t, "/proc/vmstat", "nr_inactive_file"),
		ActiveFile:   page * field(t, "/proc/vmstat", "nr_active_file"),
	}
}

// The figures are those of /proc/vmstat. Since other processes allocate, the test reads the
// file before and after, and repeats until the difference is small.
func TestNodeFigures(t *testing.T) {
	const little, near = 8 * mib, mib
	_, s := openSampler(t, Options{})
	figures := func(n Node) []uint64 { return []uint64{n.Anon, n.File, n.InactiveFile, n.ActiveFile} }
	differs := ""
	defer func() {
		if t.Failed() {
			t.Log(differs)
		}
	}()
	eventually(t, "sample with the figures of /proc/vmstat", func() bool {
		before := figures(vmstat(t))
		raw := tickNow(t, s)
		after := figures(vmstat(t))
		var sample Sample
		sample.set(&raw.Sample)
		for i, got := range figures(sample.Node) {
			low, high := min(before[i], after[i]), max(before[i], after[i])
			if high-low > little {
				return false
			}
			if got+near < low || got > high+near {
				differs = fmt.Sprintf("figure %d of %+v = %d; want %d to %d", i, sample.Node, got, low, high)
				return false
			}
		}
		return sample.Node.Valid
	})
	stats, err := s.Stats()
	if err != nil {
		t.Fatal(err)
	}
	if stats.Nodes < 1 || stats.Faults != 0 || stats.Drift == 0 {
		t.Errorf("Stats() = %+v; want nodes, a drift and no fault", stats)
	}
}

// thresholdBelow returns a threshold that is crossed when the node's working set has grown
// by room bytes.
func thresholdBelow(t *testing.T, s *Sampler, room, margin uint64) Threshold {
	t.Helper()
	raw := tickNow(t, s)
	var sample Sample
	sample.set(&raw.Sample)
	return Threshold{Key: 7, Capacity: sample.Node.WorkingSet() + 2*gib, Available: 2*gib - room, Margin: margin}
}

func TestCrossing(t *testing.T) {
	ring, s := openSampler(t, Options{})
	hog := startHog(t, makeCgroup(t))
	// Other processes may free memory, but less than the margin.
	th := thresholdBelow(t, s, 192*mib, 2*gib)
	arm(t, s, th)
	noRecord(t, ring, s, 3)

	hog.run("grow %d", 384*mib)
	record := nextRecord(t, ring)
	c := record.Crossing
	if record.Kind != KindCrossing || c.Key != 7 || c.Source != SourceNode || c.Threshold != th.Available {
		t.Fatalf("Next() = %+v; want a crossing of %+v", record, th)
	}
	if c.Available >= th.Available || c.Available != th.Capacity-c.Sample.Node.WorkingSet() {
		t.Errorf("available = %d with the working set %d; want the rest of %d, below %d", c.Available, c.Sample.Node.WorkingSet(), th.Capacity, th.Available)
	}
	if c.LastAbove <= 0 || c.LastAbove >= c.Seen || c.Sent < c.Seen {
		t.Errorf("last above %s, seen %s, sent %s; want them in order", c.LastAbove, c.Seen, c.Sent)
	}
	if c.Sample.Time != c.Seen || c.Sample.Node.Slope <= 0 {
		t.Errorf("sample of %s with slope %d; want that of %s, with a positive slope", c.Sample.Time, c.Sample.Node.Slope, c.Seen)
	}
	t.Logf("seen %s after it was above, %d KiB below, slope %d MiB/s", c.Seen-c.LastAbove, (th.Available-c.Available)>>10, c.Sample.Node.Slope>>20)
	noRecord(t, ring, s, 20)
}

// A threshold that is crossed when it is armed is reported at once, and again after Rearm,
// but at most every 10 ms.
func TestArmCrossed(t *testing.T) {
	ring, s := openSampler(t, Options{})
	th := thresholdBelow(t, s, 0, 0)
	th.Available += gib
	arm(t, s, Threshold{Key: 1, Capacity: th.Capacity, Available: 1}, th)
	first := nextRecord(t, ring).Crossing
	if first.Key != 7 || first.LastAbove != 0 {
		t.Errorf("crossing = %+v; want key 7, never above", first)
	}
	noRecord(t, ring, s, 20)

	if err := s.Rearm(0); err != nil { // not crossed
		t.Fatal(err)
	}
	noRecord(t, ring, s, 20)

	last := first.Sample.Time
	for range 50 {
		if err := s.Rearm(1); err != nil {
			t.Fatal(err)
		}
		tickNow(t, s)
	}
	records := takeRecords(t, ring)
	if len(records) == 0 {
		records = append(records, nextRecord(t, ring))
	}
	for _, r := range records {
		if r.Crossing.Sample.Time-last < 10*time.Millisecond {
			t.Errorf("crossings written at %s and %s; want 10 ms between them", last, r.Crossing.Sample.Time)
		}
		last = r.Crossing.Sample.Time
	}
	if err := s.Rearm(MaxThresholds); err == nil {
		t.Error("Rearm() beyond the last threshold = nil; want an error")
	}
}

// Active file pages count as used, or as available with CountCache.
func TestCountCache(t *testing.T) {
	ring, s := openSampler(t, Options{})
	raw := tickNow(t, s)
	var sample Sample
	sample.set(&raw.Sample)
	active := sample.Node.ActiveFile
	if active < 16*mib {
		t.Skipf("needs 16 MiB of active file pages: there are %d", active/mib)
	}
	th := Threshold{Key: 1, Capacity: sample.Node.WorkingSet() + gib, Available: gib + active/2}
	counting := th
	counting.Key, counting.CountCache = 2, true
	arm(t, s, counting, th)
	c := nextRecord(t, ring).Crossing
	if off := int64(c.Available) - gib; c.Key != 1 || max(off, -off) > int64(active/2) {
		t.Errorf("crossing = %+v; want only key 1, with about 1 GiB available", c)
	}
	noRecord(t, ring, s, 20)

	counting.Available = gib + 2*active
	arm(t, s, counting)
	c = nextRecord(t, ring).Crossing
	if off := int64(c.Available) - gib - int64(active); max(off, -off) > int64(active/2) {
		t.Errorf("crossing = %+v; want %d more bytes available for active file pages", c, active)
	}
}

func TestArmInvalid(t *testing.T) {
	ring, s := openSampler(t, Options{})
	th := thresholdBelow(t, s, 0, 0)
	th.Available += gib
	for _, thresholds := range [][]Threshold{
		make([]Threshold, MaxThresholds+1),
		{{Source: SourcePods + 1}},
		{{Available: 1 << 63, Margin: 1 << 63}},
	} {
		if err := s.Arm(thresholds); err == nil {
			t.Errorf("Arm(%+v) = nil; want an error", thresholds)
		}
	}
	noRecord(t, ring, s, 3)
	arm(t, s, slices.Repeat([]Threshold{th}, MaxThresholds)...)
	eventually(t, "a crossing of each threshold", func() bool { return s.latest.first().Stats.Raised >= uint64(MaxThresholds) })
	if got := len(takeRecords(t, ring)); got != MaxThresholds {
		t.Errorf("%d records; want %d", got, MaxThresholds)
	}
}

// The period is the time to the next threshold that is not crossed, at twice the
// fastest rate, within its bounds.
func TestPeriod(t *testing.T) {
	const minPeriod, maxPeriod = 300 * time.Microsecond, 20 * time.Millisecond
	ring, s := openSampler(t, Options{MinPeriod: minPeriod, MaxPeriod: maxPeriod})
	if got := time.Duration(tickNow(t, s).Stats.Period); got != maxPeriod {
		t.Errorf("period without thresholds = %s; want %s", got, maxPeriod)
	}

	// A threshold that is crossed affects the period for only a second.
	crossed := thresholdBelow(t, s, 0, 0)
	crossed.Available += gib
	arm(t, s, crossed)
	nextRecord(t, ring)
	if got := time.Duration(tickNow(t, s).Stats.Period); got > time.Millisecond {
		t.Errorf("period after a crossing = %s; want 1ms at most", got)
	}
	eventually(t, "the maximum period", func() bool { return time.Duration(tickNow(t, s).Stats.Period) == maxPeriod })

	// The working set changes, so it takes several attempts to be near a threshold.
	for _, test := range []struct {
		room uint64
		min  time.Duration
	}{{2 * gib, maxPeriod}, {64 * mib, 2 * minPeriod}, {mib, minPeriod}} {
		eventually(t, fmt.Sprintf("a period for %d MiB", test.room/mib), func() bool {
			th := thresholdBelow(t, s, test.room, 0)
			arm(t, s, th)
			raw := tickNow(t, s)
			var sample Sample
			sample.set(&raw.Sample)
			available := th.Capacity - sample.Node.WorkingSet()
			want := time.Duration((available - min(available, th.Available)) * 1000 / (2*(raw.Stats.Rate/1e6) + 1))
			want = min(max(want, minPeriod), maxPeriod)
			got := time.Duration(raw.Stats.Period)
			if available >= th.Available && got != want {
				t.Fatalf("period with %d bytes above the threshold and %d bytes per second = %s; want %s", available-th.Available, raw.Stats.Rate, got, want)
			}
			return got == want && got >= test.min
		})
	}
}

// A crossing while the ring is full is counted, and written when there is room.
func TestFullRing(t *testing.T) {
	ring, s := openSampler(t, Options{})
	th := thresholdBelow(t, s, 0, 0)
	th.Available += gib
	filled := 0
	for ; ; filled++ {
		err := s.Inject(Crossing{Key: 1})
		if errors.Is(err, ErrFull) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	arm(t, s, th)
	eventually(t, "the loss to be counted", func() bool { return tickNow(t, s).Stats.Lost == 1 })
	for range 10 {
		if got := tickNow(t, s).Stats.Lost; got != 1 {
			t.Fatalf("lost = %d; want 1 for one crossing", got)
		}
	}
	records := takeRecords(t, ring)
	if len(records) < filled {
		t.Fatalf("%d records; want %d at least", len(records), filled)
	}
	if len(records) == filled {
		records = append(records, nextRecord(t, ring))
	}
	last := records[len(records)-1].Crossing
	if last.Key != 7 || last.Sent <= last.Seen {
		t.Errorf("last record = %+v; want the crossing, sent later than seen", last)
	}
	if stats, err := s.Stats(); err != nil || stats.Lost != 1 || stats.Crossings != 1 {
		t.Errorf("Stats() = %+v, %v; want 1 crossing, and 1 lost", stats, err)
	}
}

func TestInject(t *testing.T) {
	ring, s := openSampler(t, Options{})
	want := Record{Kind: KindCrossing, Crossing: Crossing{
		Key: 1 << 63, Source: SourcePods, LastAbove: 1, Seen: 2, Sent: 3, Available: 4, Threshold: 5, Period: 6,
		Sample: Sample{
			Time: 7, Tick: 8,
			Node: Node{Valid: true, Anon: 9, File: 10, InactiveFile: 11, ActiveFile: 12, Slope: -13},
			Pods: Pods{Valid: true, Usage: 14, Walked: 15, InactiveFile: 16, ActiveFile: 17, Slope: -18},
		},
	}}
	// Enough records to wrap around the ring several times.
	for range 600 {
		if err := s.Inject(want.Crossing); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, nextRecord(t, ring)); diff != "" {
			t.Fatalf("Next() differs from what was injected (-want +got):\n%s", diff)
		}
	}
}

// runSampler runs a sampler and prints the id of the map that it writes to.
func runSampler(t *testing.T) {
	_, s := openSampler(t, Options{})
	info, err := s.maps.Latests.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	fmt.Println(uint32(id))
	_, _ = os.Stdin.Read(make([]byte, 1))
}

// The timer ends with its process, even if that is killed.
func TestTimerEndsWithProcess(t *testing.T) {
	_, clock := openSampler(t, Options{})
	cmd := helperProcess("sampler")
	in, out := kerneltest.Start(t, cmd)
	defer in.Close()
	var id ebpf.MapID
	if _, err := fmt.Fscan(out, &id); err != nil {
		t.Fatal(err)
	}
	latests, err := ebpf.NewMapFromID(id)
	if err != nil {
		t.Fatal(err)
	}
	defer latests.Close()
	latest, err := mapArray[samplerLatest](latests, unix.PROT_READ)
	if err != nil {
		t.Fatal(err)
	}
	defer latest.unmap()
	ticks := func() uint64 {
		var raw samplerLatest
		loadWords(&raw, latest.first())
		return raw.Sample.Tick
	}
	alive := ticks()
	eventually(t, "tick of the process", func() bool { return ticks() > alive+3 })
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	dead, start := ticks(), tickNow(t, clock).Sample.Time
	eventually(t, "half a second", func() bool {
		return tickNow(t, clock).Sample.Time > start+uint64(500*time.Millisecond)
	})
	if got := ticks(); got != dead {
		t.Errorf("%d ticks half a second after the process was killed, %d before; want no more", got, dead)
	}
}

func TestClosed(t *testing.T) {
	ring, s := openSampler(t, Options{})
	for range 2 {
		if err := s.Close(); err != nil {
			t.Errorf("Close() = %v; want nil", err)
		}
	}
	var sample Sample
	_, statsErr := s.Stats()
	_, _, rowsErr := s.Rows(nil)
	for name, err := range map[string]error{
		"Arm": s.Arm(nil), "Rearm": s.Rearm(0), "SetPods": s.SetPods(-1), "SetWalk": s.SetWalk(0),
		"Walk": s.Walk(time.Second), "Sample": s.Sample(&sample), "Stats": statsErr, "Rows": rowsErr,
	} {
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("%s() of a closed sampler = %v; want %v", name, err, os.ErrClosed)
		}
	}
	for range 2 {
		if err := ring.Close(); err != nil {
			t.Errorf("Close() = %v; want nil", err)
		}
	}
	if _, err := ring.Next(new(Record)); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Next() of a closed ring = %v; want %v", err, os.ErrClosed)
	}
}

func TestInvalidOptions(t *testing.T) {
	ring := openRing(t)
	for _, o := range []Options{
		{MinPeriod: -1}, {MaxPeriod: -1}, {CPUs: -1}, {Rows: -1}, {Rows: 1 << 20},
		{MinPeriod: time.Second, MaxPeriod: time.Millisecond},
	} {
		if s, err := OpenSampler(ring, o); err == nil {
			s.Close()
			t.Errorf("OpenSampler(%+v) = nil; want an error", o)
		} else if errors.Is(err, ErrUnavailable) {
			t.Errorf("OpenSampler(%+v) = %v; want another error", o, err)
		}
	}
}
