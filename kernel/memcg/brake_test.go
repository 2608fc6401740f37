package memcg

import (
	"errors"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel/cgroup"
)

var highs = []struct {
	text string
	want uint64
	ok   bool
}{
	{"max\n", Unlimited, true},
	{"0\n", 0, true},
	{"1073741824\n", 1 << 30, true},
	{"", 0, false},
	{"\n", 0, false},
	{"max", 0, false},
	{"10737", 0, false},
	{"-1\n", 0, false},
	{"MAX\n", 0, false},
	{"max\nmax\n", 0, false},
	{"4096\r\n", 0, false},
	{"99999999999999999999\n", 0, false},
}

func TestParseHigh(t *testing.T) {
	for _, tc := range highs {
		if got, err := parseHigh([]byte(tc.text)); got != tc.want || (err == nil) != tc.ok {
			t.Errorf("parseHigh(%q) = %d, %v; want %d, ok %v", tc.text, got, err, tc.want, tc.ok)
		}
	}
}

func FuzzParseHigh(f *testing.F) {
	for _, tc := range highs {
		f.Add([]byte(tc.text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		n, err := parseHigh(text)
		if err != nil {
			if n != 0 {
				t.Errorf("parseHigh(%q) = %d, %v", text, n, err)
			}
			return
		}
		// What is written back reads the same.
		again := strconv.FormatUint(n, 10) + "\n"
		if n == Unlimited {
			again = "max\n"
		}
		if got, err := parseHigh([]byte(again)); got != n || err != nil {
			t.Errorf("parseHigh(%q) = %d, and parseHigh(%q) = %d, %v", text, n, again, got, err)
		}
	})
}

// The soft limit of v1 takes and tells numbers as memory.high does, so that it
// stands in for it where there is none.
func brakeHere(t *testing.T, v2 bool) (*cgroup.Hierarchy, *cgroup.Cgroup, *Brake, string) {
	t.Helper()
	h, c := here(t, v2)
	name := "memory.high"
	if !v2 {
		name = "memory.soft_limit_in_bytes"
	}
	b, err := openBrake(place{h, c}, name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return h, c, b, name
}

func TestBrakeV1(t *testing.T) { testBrake(t, false) }
func TestBrakeV2(t *testing.T) { testBrake(t, true) }

func testBrake(t *testing.T, v2 bool) {
	h, c, b, name := brakeHere(t, v2)
	page := uint64(os.Getpagesize())
	was, err := b.High()
	if err != nil {
		t.Fatal(err)
	}
	if v2 && was != Unlimited {
		t.Errorf("High() of a new cgroup = %d; want Unlimited", was)
	}
	move := func(op string, move func(uint64) (uint64, error), to, want uint64) {
		t.Helper()
		if got, err := move(to); got != want || err != nil {
			t.Errorf("%s(%d) = %d, %v; want %d", op, to, got, err, want)
		}
		if got, err := b.High(); got != want || err != nil {
			t.Errorf("High() after %s(%d) = %d, %v; want %d", op, to, got, err, want)
		}
	}
	if err := b.Restore(); err != nil {
		t.Errorf("Restore() of what was not moved = %v; want nil", err)
	}
	move("Raise", b.Raise, 1<<20, was)
	move("Lower", b.Lower, 64<<20+1, 64<<20)
	move("Lower", b.Lower, 65<<20, 64<<20)
	move("Lower", b.Lower, 32<<20, 32<<20)
	move("Raise", b.Raise, 16<<20, 32<<20)
	move("Raise", b.Raise, 48<<20+page, 48<<20+page)
	for range 2 {
		if err := b.Restore(); err != nil {
			t.Errorf("Restore() = %v; want nil", err)
		}
		if got, err := b.High(); got != was || err != nil {
			t.Errorf("High() after Restore = %d, %v; want %d", got, err, was)
		}
	}

	// What its manager writes meanwhile is kept, and is what is found next time.
	move("Lower", b.Lower, 32<<20, 32<<20)
	write(t, h, c.Path(), name, strconv.Itoa(80<<20))
	if err := b.Restore(); !errors.Is(err, ErrTaken) {
		t.Errorf("Restore() = %v; want %v", err, ErrTaken)
	}
	if err := b.Restore(); err != nil {
		t.Errorf("second Restore() = %v; want nil", err)
	}
	if got, err := b.High(); got != 80<<20 || err != nil {
		t.Errorf("High() = %d, %v; want what another wrote", got, err)
	}
	move("Lower", b.Lower, 40<<20, 40<<20)
	write(t, h, c.Path(), name, strconv.Itoa(70<<20))
	move("Lower", b.Lower, 50<<20, 50<<20)
	if err := b.Restore(); err != nil {
		t.Errorf("Restore() = %v; want nil", err)
	}
	if got, err := b.High(); got != 70<<20 || err != nil {
		t.Errorf("High() after Restore = %d, %v; want what another wrote", got, err)
	}
	// Another brake goes on where this one ended.
	move("Lower", b.Lower, 24<<20, 24<<20)
	if now, high, on, err := b.Held(); now != 24<<20 || high != 70<<20 || !on || err != nil {
		t.Errorf("Held() = %d, %d, %t, %v; want %d, %d, held", now, high, on, err, 24<<20, 70<<20)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if b, err = openBrake(place{h, c}, name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	if err := b.Adopt(70<<20, 32<<20, 16<<20); !errors.Is(err, ErrTaken) {
		t.Errorf("Adopt() of other limits = %v; want %v", err, ErrTaken)
	}
	if _, _, on, err := b.Held(); on || err != nil {
		t.Errorf("Held() of what was not adopted = %t, %v; want false", on, err)
	}
	if err := b.Adopt(70<<20, 32<<20, 24<<20); err != nil {
		t.Errorf("Adopt() = %v; want nil", err)
	}
	if err := b.Restore(); err != nil {
		t.Errorf("Restore() of what was adopted = %v; want nil", err)
	}
	if got, err := b.High(); got != 70<<20 || err != nil {
		t.Errorf("High() after Restore = %d, %v; want %d", got, err, 70<<20)
	}
	if v2 {
		move("Raise", b.Raise, Unlimited, Unlimited)
	}

	if err := os.Remove(h.Memory.Path(c.Path())); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Lower(1 << 20); !errors.Is(err, cgroup.ErrGone) {
		t.Errorf("Lower() after the cgroup was removed = %v; want %v", err, cgroup.ErrGone)
	}
	for range 2 {
		if err := b.Close(); err != nil {
			t.Errorf("Close() = %v; want nil", err)
		}
	}
	if _, err := b.High(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("High() after Close = %v; want %v", err, os.ErrClosed)
	}
}

// The brake slows a process down, tells, and lets go.
func TestBrakeHolds(t *testing.T) {
	h, c, b, _ := brakeHere(t, true)
	g := grow(t, h, c)
	e := openHere(t, h, c)
	p := watch(t, e.FD(), unix.EPOLLPRI)
	free := time.Duration(-now())
	g.do(t, "grow %d 0", 8<<20)
	free += time.Duration(now())
	g.do(t, "drop")

	if _, err := b.Lower(usage(t, c) + 4<<20); err != nil {
		t.Fatal(err)
	}
	begun := now()
	g.begin(t, "grow %d 0", 8<<20)
	if events := wait(t, p, 10*time.Second); events != pri {
		t.Fatalf("events = %#x; want EPOLLPRI and EPOLLERR", events)
	}
	if err := b.Restore(); err != nil {
		t.Fatal(err)
	}
	g.end(t)
	t.Logf("8 MiB took %v, and %v with the brake on until it told", free, time.Duration(now()-begun))
}
