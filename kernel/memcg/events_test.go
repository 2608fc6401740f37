package memcg

import (
	"errors"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/kerneltest"
)

const zero = "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n"

var counts = []struct {
	name, text string
	want       Counts
	ok         bool
}{
	{"zero", zero, Counts{HasOOMGroupKill: true}, true},
	{"non-zero", "low 1\nhigh 26\nmax 1043\noom 4\noom_kill 3\noom_group_kill 2\n", Counts{1, 26, 1043, 4, 3, 2, true}, true},
	{"before 5.17", "low 0\nhigh 26\nmax 0\noom 0\noom_kill 3\n", Counts{High: 26, OOMKill: 3}, true},
	{"an unknown key", "low 0\nhigh 26\nmax 0\noom 0\noom_kill 3\noom_group_kill 0\nsock_throttled x\n", Counts{High: 26, OOMKill: 3, HasOOMGroupKill: true}, true},
	{"empty", "", Counts{}, false},
	{"a key missing", "low 0\nhigh 26\nmax 0\noom_kill 3\n", Counts{}, false},
	{"a duplicate key", "low 0\nhigh 26\nhigh 27\nmax 0\noom 0\noom_kill 3\n", Counts{}, false},
	{"negative", "low 0\nhigh -26\nmax 0\noom 0\noom_kill 3\n", Counts{}, false},
	{"no number", "low\nhigh 26\nmax 0\noom 0\noom_kill 3\n", Counts{}, false},
	{"too large", "low 18446744073709551616\nhigh 26\nmax 0\noom 0\noom_kill 3\n", Counts{}, false},
	{"cut short", "low 0\nhigh 26\nmax 0\noom 0\noom_kill 3", Counts{}, false},
	{"CRLF", "low 0\r\nhigh 26\r\nmax 0\r\noom 0\r\noom_kill 3\r\n", Counts{}, false},
}

func TestParseCounts(t *testing.T) {
	for _, tc := range counts {
		got, err := parseCounts([]byte(tc.text))
		if got != tc.want || (err == nil) != tc.ok {
			t.Errorf("%s: parseCounts(%q) = %+v, %v; want %+v, ok %v", tc.name, tc.text, got, err, tc.want, tc.ok)
		}
	}
}

func FuzzParseCounts(f *testing.F) {
	for _, tc := range counts {
		f.Add([]byte(tc.text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := parseCounts(text)
		if err != nil && c != (Counts{}) || !c.HasOOMGroupKill && c.OOMGroupKill != 0 {
			t.Errorf("parseCounts(%q) = %+v, %v", text, c, err)
		}
	})
}

func TestEvents(t *testing.T) {
	h, c := fixture(t, map[string]string{"memory.events": zero, "memory.events.local": zero})
	e, err := OpenEvents(h, c)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	local, err := OpenLocalEvents(h, c)
	if err != nil {
		t.Fatal(err)
	}
	defer local.Close()
	kerneltest.Write(t, string(h.Memory), map[string]string{"pod/memory.events": counts[1].text})
	if got, err := e.Read(); got != counts[1].want || err != nil {
		t.Errorf("Read() = %+v, %v; want %+v", got, err, counts[1].want)
	}
	if got, err := local.Read(); got != counts[0].want || err != nil {
		t.Errorf("Read() of the local file = %+v, %v; want %+v", got, err, counts[0].want)
	}
	kerneltest.Write(t, string(h.Memory), map[string]string{"pod/memory.events": "low 0\n"})
	if got, err := e.Read(); err == nil {
		t.Errorf("Read() of a broken file = %+v; want an error", got)
	}
	for range 2 {
		if err := e.Close(); err != nil {
			t.Errorf("Close() = %v; want nil", err)
		}
	}
	if fd := e.FD(); fd != -1 {
		t.Errorf("FD() after Close = %d; want -1", fd)
	}
	if _, err := e.Read(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Read() after Close = %v; want %v", err, os.ErrClosed)
	}
}

// openHere opens memory.events of a cgroup of this machine.
func openHere(t *testing.T, h *cgroup.Hierarchy, c *cgroup.Cgroup) *Events {
	t.Helper()
	e, err := OpenEvents(h, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

const pri = unix.EPOLLPRI | unix.EPOLLERR

func TestEventsFire(t *testing.T) {
	h, c := here(t, true)
	g := grow(t, h, c)
	e := openHere(t, h, c)
	local, err := OpenLocalEvents(h, c)
	if err != nil {
		t.Fatal(err)
	}
	defer local.Close()
	before, err := e.Read()
	if err != nil {
		t.Fatal(err)
	}
	p := watch(t, e.FD(), unix.EPOLLPRI)
	if events := wait(t, p, 0); events != 0 {
		t.Errorf("events after a read = %#x; want none", events)
	}

	// Only a little above memory.high: the kernel throttles a task by its excess.
	const below = 16 << 20
	high := usage(t, c) + below
	write(t, h, c.Path(), "memory.high", strconv.FormatUint(high, 10))
	offset := high - usage(t, c)
	g.begin(t, "grow %d %d", below+256<<10, offset)
	if events := wait(t, p, 20*time.Second); events != pri {
		t.Fatalf("events above memory.high = %#x; want EPOLLPRI and EPOLLERR", events)
	}
	woken := now()
	t.Logf("woken %v after the page at memory.high was touched (negative: charged earlier in a batch)", time.Duration(woken-g.end(t)))
	eventually(t, "no further event", func() bool { // a second event may come 10 ms later
		after, err := e.Read()
		if err != nil || after.High <= before.High || after.OOMKill != before.OOMKill {
			t.Errorf("Read() = %+v, %v; want high above that of %+v and the same oom_kill", after, err, before)
		}
		return wait(t, p, 0) == 0
	})
	if got, err := local.Read(); err != nil || got.High == 0 {
		t.Errorf("Read() of the local file = %+v, %v; want high above 0", got, err)
	}
}

func TestEventsOOM(t *testing.T) {
	h, c := here(t, true)
	write(t, h, c.Path(), "memory.max", strconv.Itoa(32<<20))
	if err := os.WriteFile(h.Memory.Path(c.Path(), "memory.swap.max"), []byte("0"), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	write(t, h, c.Path(), "memory.oom.group", "1")
	g := grow(t, h, c)
	e := openHere(t, h, c)
	p := watch(t, e.FD(), unix.EPOLLPRI)
	g.begin(t, "grow %d 0", 64<<20)
	var got Counts
	eventually(t, "oom kill", func() bool {
		if events := wait(t, p, 10*time.Second); events != pri {
			t.Errorf("events = %#x; want EPOLLPRI and EPOLLERR", events)
		}
		var err error
		if got, err = e.Read(); err != nil {
			t.Fatal(err)
		}
		return got.OOMKill > 0 && (!got.HasOOMGroupKill || got.OOMGroupKill > 0)
	})
	if got.Max == 0 || got.OOM == 0 {
		t.Errorf("Read() = %+v; want max and oom above 0", got)
	}
	t.Logf("%+v", got)
	if err := g.cmd.Wait(); err == nil {
		t.Error("the process exited normally; want it killed")
	}
}

func TestEventsGone(t *testing.T) {
	h, c := here(t, true)
	e := openHere(t, h, c)
	p := watch(t, e.FD(), unix.EPOLLPRI)
	if err := os.Remove(h.Memory.Path(c.Path())); err != nil {
		t.Fatal(err)
	}
	t.Logf("events of a wait that began before the removal: %#x", wait(t, p, time.Second))
	if _, err := e.Read(); !errors.Is(err, cgroup.ErrGone) {
		t.Errorf("Read() = %v; want %v", err, cgroup.ErrGone)
	}
	p = watch(t, e.FD(), unix.EPOLLPRI)
	if events := wait(t, p, 0); events != pri {
		t.Errorf("events after the cgroup was removed = %#x; want EPOLLPRI and EPOLLERR", events)
	}
}
