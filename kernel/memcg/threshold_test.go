package memcg

import (
	"errors"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
)

// armHere arms a threshold, or skips the test if the kernel has none.
func armHere(t *testing.T, h *cgroup.Hierarchy, c *cgroup.Cgroup, bytes uint64) *Threshold {
	t.Helper()
	start := time.Now()
	threshold, err := ArmUsage(h, c, bytes)
	if errors.Is(err, kernel.ErrUnavailable) {
		t.Skip("needs a kernel with thresholds, without PREEMPT_RT: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("armed in %v", time.Since(start))
	t.Cleanup(func() { threshold.Close() })
	return threshold
}

func TestThresholdFires(t *testing.T) {
	h, c := here(t, false)
	g := grow(t, h, c)
	const below, size = 16 << 20, 48 << 20
	before := usage(t, c)
	threshold := armHere(t, h, c, before+below)
	p := watch(t, threshold.FD(), unix.EPOLLIN)

	// Far below the threshold there is no event.
	g.do(t, "grow %d 0", below/2)
	if events := wait(t, p, 0); events != 0 {
		t.Errorf("events below the threshold = %#x; want none", events)
	}
	g.do(t, "drop")

	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var latencies []time.Duration
	for range 20 {
		before := usage(t, c)
		g.begin(t, "grow %d %d", size, threshold.Bytes()-before)
		if events := wait(t, p, 10*time.Second); events != unix.EPOLLIN {
			t.Fatalf("events above the threshold = %#x; want EPOLLIN", events)
		}
		woken := now()
		latencies = append(latencies, time.Duration(woken-g.end(t)))
		if n, err := threshold.Drain(); n == 0 || err != nil {
			t.Errorf("Drain() after the threshold was crossed = %d, %v; want 1 or more", n, err)
		}
		if events := wait(t, p, 0); events != 0 {
			t.Errorf("events after Drain = %#x; want none", events)
		}
		if got := usage(t, c); got < threshold.Bytes() {
			t.Errorf("usage = %d; want %d or more", got, threshold.Bytes())
		}

		g.do(t, "drop")
		if events := wait(t, p, 10*time.Second); events != unix.EPOLLIN {
			t.Fatalf("events on the way down = %#x; want EPOLLIN", events)
		}
		if n, err := threshold.Drain(); n == 0 || err != nil {
			t.Errorf("Drain() on the way down = %d, %v; want 1 or more", n, err)
		}
	}
	slices.Sort(latencies)
	t.Logf("woken after the page at the threshold was touched: median %v, longest %v (negative: charged earlier in a batch)", latencies[len(latencies)/2], latencies[len(latencies)-1])
}

func TestRearm(t *testing.T) {
	h, c := here(t, false)
	g := grow(t, h, c)
	before := usage(t, c)
	old := armHere(t, h, c, before+8<<20)
	c.Close() // Rearm does not need it
	next, err := old.Rearm(before + 32<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	if next.Bytes() != before+32<<20 {
		t.Errorf("Bytes() = %d; want %d", next.Bytes(), before+32<<20)
	}
	first, second := watch(t, old.FD(), unix.EPOLLIN), watch(t, next.FD(), unix.EPOLLIN)
	g.do(t, "grow %d 0", 16<<20)
	if events := wait(t, first, 10*time.Second); events != unix.EPOLLIN {
		t.Errorf("events of the old threshold = %#x; want EPOLLIN", events)
	}
	if n, err := next.Drain(); n != 0 || err != nil {
		t.Errorf("Drain() of the new threshold = %d, %v; want 0", n, err)
	}
	start := time.Now()
	for range 2 {
		if err := old.Close(); err != nil {
			t.Errorf("Close() = %v; want nil", err)
		}
	}
	t.Logf("closed in %v", time.Since(start))
	if fd := old.FD(); fd != -1 {
		t.Errorf("FD() after Close = %d; want -1", fd)
	}
	if _, err := old.Drain(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Drain() after Close = %v; want %v", err, os.ErrClosed)
	}
	g.do(t, "grow %d 0", 32<<20)
	if events := wait(t, second, 10*time.Second); events != unix.EPOLLIN {
		t.Errorf("events of the new threshold = %#x; want EPOLLIN", events)
	}
	if events := wait(t, first, 0); events != 0 {
		t.Errorf("events of the old threshold after Close = %#x; want none", events)
	}
}

// The removal of a cgroup wakes a waiting poller.
func TestThresholdGone(t *testing.T) {
	h, c := here(t, false)
	threshold := armHere(t, h, c, 1<<20)
	p := watch(t, threshold.FD(), unix.EPOLLIN)
	if err := os.Remove(h.Memory.Path(c.Path())); err != nil {
		t.Fatal(err)
	}
	if events := wait(t, p, 10*time.Second); events != unix.EPOLLIN {
		t.Errorf("events after the cgroup was removed = %#x; want EPOLLIN", events)
	}
	if err := c.Check(); !errors.Is(err, cgroup.ErrGone) {
		t.Errorf("Check() = %v; want %v", err, cgroup.ErrGone)
	}
	gone := func(when string) {
		t.Helper()
		_, again := threshold.Rearm(2 << 20)
		_, fresh := ArmUsage(h, c, 2<<20)
		_, pressure := ArmPressure(h, c, Low, Local)
		for op, err := range map[string]error{"Rearm": again, "ArmUsage": fresh, "ArmPressure": pressure} {
			if !errors.Is(err, cgroup.ErrGone) {
				t.Errorf("%s: %s() = %v; want %v", when, op, err, cgroup.ErrGone)
			}
		}
	}
	gone("removed")
	if err := os.Mkdir(h.Memory.Path(c.Path()), 0o755); err != nil {
		t.Fatal(err)
	}
	gone("replaced")
}

func TestPressureArguments(t *testing.T) {
	for _, tt := range []struct {
		level Level
		mode  Mode
		want  string
	}{
		{Low, Default, "low"},
		{Medium, Hierarchy, "medium,hierarchy"},
		{Critical, Local, "critical,local"},
		{0, Default, ""},
		{Critical + 1, Default, ""},
		{Low, Local + 1, ""},
		{Low, -1, ""},
	} {
		if got, err := pressureArguments(tt.level, tt.mode); got != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("pressureArguments(%v, %v) = %q, %v; want %q", tt.level, tt.mode, got, err, tt.want)
		}
	}
}

// Reading a file larger than the limit of the cgroup makes it reclaim.
func TestPressureFires(t *testing.T) {
	h, c := here(t, false)
	write(t, h, c.Path(), "memory.limit_in_bytes", "33554432")
	file := t.TempDir() + "/sparse"
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, 256<<20); err != nil {
		t.Fatal(err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(file, &fs); err != nil {
		t.Fatal(err)
	}
	if fs.Type == unix.TMPFS_MAGIC || fs.Type == unix.RAMFS_MAGIC {
		t.Skip("needs a temporary directory on a disk, whose files are cached")
	}
	g := grow(t, h, c)
	for _, mode := range []Mode{Default, Hierarchy, Local} {
		pressure, err := ArmPressure(h, c, Low, mode)
		if errors.Is(err, kernel.ErrUnavailable) {
			t.Skip("needs a kernel with pressure levels, without PREEMPT_RT: ", err)
		}
		if err != nil {
			t.Fatal(err)
		}
		defer pressure.Close()
		if n, err := pressure.Drain(); n != 0 || err != nil {
			t.Errorf("%s: Drain() before any pressure = %d, %v; want 0", mode, n, err)
		}
		p := watch(t, pressure.FD(), unix.EPOLLIN)
		g.begin(t, "read %s", file)
		if events := wait(t, p, 10*time.Second); events != unix.EPOLLIN {
			t.Errorf("%s: events = %#x; want EPOLLIN", mode, events)
		}
		g.end(t)
		if n, err := pressure.Drain(); n == 0 || err != nil {
			t.Errorf("%s: Drain() = %d, %v; want 1 or more", mode, n, err)
		}
		pressure.Close()
	}
}
