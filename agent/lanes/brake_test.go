package lanes

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/kerneltest"
	"github.com/evictd/evictd/kernel/memcg"
)

func TestBrakeLimit(t *testing.T) {
	const mib, gib = 1 << 20, 1 << 30
	below := func(usage uint64) uint64 { return wholePages(usage - usage/brakeShare) }
	for _, tc := range []struct {
		name     string
		usage    uint64
		left     int64
		now, was uint64
		held     bool
		want     uint64 // 0: it stays
	}{
		{"first", 10 * gib, 40 * gib, memcg.Unlimited, memcg.Unlimited, false, below(50 * gib)},
		{"where it should be", 10 * gib, 40 * gib, below(50 * gib), memcg.Unlimited, true, 0},
		{"the cache has grown by little", 10 * gib, 40*gib + mib, below(50 * gib), memcg.Unlimited, true, 0},
		{"the cache has grown", 12 * gib, 40 * gib, below(50 * gib), memcg.Unlimited, true, below(52 * gib)},
		{"the cache has shrunk", 10 * gib, 38 * gib, below(50 * gib), memcg.Unlimited, true, below(48 * gib)},
		{"held back without need", below(50 * gib), 2 * gib, below(50 * gib), memcg.Unlimited, true, wholePages((below(50*gib) + 2*gib) / 64 * 63)},
		{"crossed: it stays, however much is used", 51 * gib, -gib, below(50 * gib), memcg.Unlimited, true, 0},
		{"what is low is not the pods'", 10 * gib, -gib, below(50 * gib), memcg.Unlimited, true, wholePages(10*gib + 10*gib/64)},
		{"and they take no more", 10*gib + 100*mib, -gib, wholePages(10*gib + 10*gib/64), memcg.Unlimited, true, 0},
		{"a small cgroup", 0, 0, memcg.Unlimited, memcg.Unlimited, false, leastStep},
		{"another's limit is lower", 10 * gib, 40 * gib, 20 * gib, 20 * gib, false, 0},
		{"another's limit is higher", 10 * gib, 40 * gib, 60 * gib, 60 * gib, false, below(50 * gib)},
		{"it is not raised beyond another's", 10 * gib, 60 * gib, 40 * gib, 50 * gib, true, 50 * gib},
		{"what another has set is not raised", 10 * gib, 60 * gib, 40 * gib, 40 * gib, false, 0},
	} {
		got, ok := limit(tc.usage, tc.left, tc.now, tc.was, tc.held)
		if ok != (tc.want != 0) || ok && max(got, tc.want)-min(got, tc.want) > 1<<16 {
			t.Errorf("%s: limit(%d, %d, %d, %d, %t) = %d, %t; want %d", tc.name, tc.usage, tc.left, tc.now, tc.was, tc.held, got, ok, tc.want)
		}
	}
}

// kept is a Keeper, and what it was told.
type kept struct {
	mu    sync.Mutex
	b     Braked
	there bool
	err   error
}

func (k *kept) LoadBrake() (Braked, bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.b, k.there, k.err
}

func (k *kept) SaveBrake(b Braked) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err == nil {
		k.b, k.there = b, true
	}
	return k.err
}

func (k *kept) ClearBrake() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.b, k.there = Braked{}, false
	return k.err
}

// limitFile is a memory.high as memcg.Brake keeps it, and checks that a move is
// written down before it is made.
type limitFile struct {
	keep     *kept
	now, was uint64
	set      uint64
	on       bool
	slow     chan struct{} // a write waits for it, where there is one
	unkept   bool
}

func (f *limitFile) Held() (now, was uint64, on bool, err error) {
	return f.now, f.was, f.on && f.now == f.set, nil
}

func (f *limitFile) Lower(to uint64) (uint64, error) { return f.move(to) }
func (f *limitFile) Raise(to uint64) (uint64, error) { return f.move(to) }

func (f *limitFile) move(to uint64) (uint64, error) {
	if f.slow != nil {
		<-f.slow
	}
	if b, ok, _ := f.keep.LoadBrake(); !ok || b.To != to || b.From != f.now {
		f.unkept = true
	}
	if !f.on || f.now != f.set {
		f.was = f.now
	}
	f.on, f.now, f.set = true, to, to
	return to, nil
}

func (f *limitFile) Restore() error {
	if f.on && f.now == f.set {
		f.now = f.was
	}
	f.on = false
	return nil
}

func (f *limitFile) Close() error { return nil }

// braking is a lane on a v2 tree whose limit is not the kernel's.
type braking struct {
	*brake
	file    *limitFile
	keep    *kept
	tree    string
	allowed bool
}

func newBraking(t *testing.T) *braking {
	t.Helper()
	b := &braking{keep: &kept{}, allowed: true}
	b.tree = kerneltest.Tree(t, map[string]string{
		"cgroup.controllers":       "cpu memory pids\n",
		"kubepods/memory.stat":     v2Stat(0, 0, 0, 0),
		"kubepods/memory.current":  fmt.Sprintln(gib),
		"kubepods/memory.max":      fmt.Sprintln(8 * gib),
		"kubepods/memory.high":     "max\n",
		"kubepods/cgroup.procs":    "",
		"kubepods/memory.events":   calmCounts,
		"kubepods/cgroup.kill":     "",
		"kubepods/cgroup.freeze":   "0\n",
		"kubepods/cgroup.events":   "populated 0\nfrozen 0\n",
		"kubepods/memory.pressure": "",
	})
	h, err := cgroup.Find(kernel.FS(b.tree))
	if err != nil {
		t.Fatal(err)
	}
	b.file = &limitFile{keep: b.keep, now: memcg.Unlimited}
	b.brake = &brake{o: SetOptions{
		MemoryOptions: MemoryOptions{Hierarchy: h, CgroupRoot: "/"},
		Brake: BrakeOptions{
			Mode: Auto, Allowed: func() bool { return b.allowed }, Keep: b.keep,
			open: func(*cgroup.Cgroup) (high, error) { return b.file, nil },
		},
	}}
	return b
}

// left is what is watched where so much can be used until 1 GiB is left.
func left(t *testing.T, bytes int64) *watched {
	t.Helper()
	w := &watched{thresholds: thresholds(t, map[string]time.Duration{"1Gi": 0})}
	w.observed[signal.MemoryAvailable] = signal.Observation{Status: signal.Observed, Capacity: 64 * gib, Available: gib + bytes}
	return w
}

func (b *braking) turn(t *testing.T, w *watched) {
	t.Helper()
	if err := b.tend(time.Now(), w); err != nil {
		t.Fatalf("tend() = %v; want nil", err)
	}
}

// The limit stands below the threshold, is written down before, moves, and is
// given back whenever pods may not be slowed down.
func TestBrakeFollows(t *testing.T) {
	b := newBraking(t)
	if err := b.open(time.Now(), left(t, 3*gib)); err != nil {
		t.Fatal(err)
	}
	at := func(want uint64, why string) {
		t.Helper()
		if _, there, _ := b.keep.LoadBrake(); b.file.now != want || there != (want != memcg.Unlimited) || !strings.Contains(b.note(), why) || (why == "") != (b.note() == "") {
			t.Errorf("limit %d, written down: %t, note %q; want %d, note %q", b.file.now, there, b.note(), want, why)
		}
	}
	at(4*gib/64*63, "")
	b.turn(t, left(t, 7*gib))
	at(8*gib/64*63, "")
	b.turn(t, left(t, 4*gib-1))
	b.allowed = false
	b.turn(t, left(t, 3*gib))
	at(memcg.Unlimited, "dry run")
	b.allowed = true
	b.turn(t, left(t, 3*gib))
	at(4*gib/64*63, "")
	b.turn(t, &watched{})
	at(memcg.Unlimited, "no hard threshold")
	b.turn(t, left(t, 3*gib))
	if b.keep.err = errors.New("disk full"); b.tend(time.Now(), left(t, 7*gib)) == nil || b.file.now != 4*gib/64*63 {
		t.Errorf("a limit of %d that could not be written down; want it unmoved, and an error", b.file.now)
	}
	b.keep.err = nil
	for range 2 {
		if err := b.close(); err != nil {
			t.Errorf("close() = %v; want nil", err)
		}
		at(memcg.Unlimited, "")
	}
	if b.file.unkept {
		t.Error("the limit was moved before that was written down")
	}
}

// What another writes meanwhile is theirs: a lower limit stays, a higher one is
// what is given back.
func TestBrakeLeavesTheLimitsOfOthers(t *testing.T) {
	b := newBraking(t)
	if err := b.open(time.Now(), left(t, 3*gib)); err != nil {
		t.Fatal(err)
	}
	b.file.now = 2 * gib
	b.turn(t, left(t, 3*gib))
	if b.file.now != 2*gib {
		t.Errorf("limit %d; want the lower one that another has set", b.file.now)
	}
	b.file.now = 16 * gib
	b.turn(t, left(t, 3*gib))
	if b.file.now != 4*gib/64*63 {
		t.Errorf("limit %d; want it lowered again", b.file.now)
	}
	if err := b.close(); err != nil || b.file.now != 16*gib {
		t.Errorf("close() = %v, limit %d; want what another has set", err, b.file.now)
	}
}

// A write that takes long holds nothing up, and is waited for at the end.
func TestBrakeThatReclaims(t *testing.T) {
	b := newBraking(t)
	b.file.slow = make(chan struct{})
	if err := b.open(time.Now(), left(t, 3*gib)); err != nil {
		t.Fatal(err)
	}
	b.turn(t, left(t, 3*gib))
	if b.note() == "" {
		t.Error("no note; want one about the write under way")
	}
	err := b.close()
	if _, there, _ := b.keep.LoadBrake(); err == nil || !there {
		t.Errorf("close() = %v, written down: %t; want an error, and what the next start needs", err, there)
	}
	close(b.file.slow)
	if err := b.close(); err != nil || b.file.now != memcg.Unlimited || b.keep.there {
		t.Errorf("close() = %v, limit %d; want it given back", err, b.file.now)
	}
}

// slowKeeper keeps when it is told to.
type slowKeeper struct {
	*kept
	may chan struct{}
}

func (k slowKeeper) SaveBrake(b Braked) error {
	<-k.may
	return k.kept.SaveBrake(b)
}

// Nor does a disk that takes long, and the limit waits for it.
func TestBrakeOnASlowDisk(t *testing.T) {
	b := newBraking(t)
	slow := slowKeeper{b.keep, make(chan struct{})}
	b.o.Brake.Keep = slow
	opened := make(chan error, 1)
	go func() { opened <- b.open(time.Now(), left(t, 3*gib)) }()
	select {
	case err := <-opened:
		if err != nil || b.file.now != memcg.Unlimited || b.note() == "" {
			t.Errorf("open() = %v, limit %d, note %q; want a limit unmoved, and why", err, b.file.now, b.note())
		}
	case <-time.After(10 * time.Second):
		close(slow.may)
		t.Fatal("open() waits for the disk; want it to go on")
	}
	close(slow.may)
	if done, err := b.settled(time.Minute); !done || err != nil || b.file.now != 4*gib/64*63 || b.file.unkept {
		t.Errorf("settled() = %t, %v, limit %d; want it moved once that is written down", done, err, b.file.now)
	}
}

func TestBrakeWithoutPods(t *testing.T) {
	b := newBraking(t)
	if err := b.open(time.Now(), left(t, 3*gib)); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(b.tree + "/kubepods"); err != nil {
		t.Fatal(err)
	}
	b.turn(t, left(t, 3*gib))
	if b.keep.there || !strings.Contains(b.note(), "no cgroup of the pods") {
		t.Errorf("written down: %t, note %q; want nothing of a cgroup that is gone", b.keep.there, b.note())
	}
	if err := b.close(); err != nil {
		t.Errorf("close() = %v; want nil", err)
	}
	v1 := &brake{o: SetOptions{MemoryOptions: MemoryOptions{Hierarchy: &cgroup.Hierarchy{Version: cgroup.V1}}}}
	if err := v1.open(time.Now(), &watched{}); !never(err) {
		t.Errorf("open() on v1 = %v; want an error that says never", err)
	}
}

// TestBrakeHere is for a machine with cgroup v2: the kernel's limit is moved, and
// given back by a brake that is closed, and by the next where one was not.
func TestBrakeHere(t *testing.T) {
	h, root := kubepods(t, 512*mib)
	if h.Version != cgroup.V2 {
		t.Skip("needs memory in a v2 tree")
	}
	keep := &kept{}
	o := SetOptions{
		MemoryOptions: MemoryOptions{Procfs: "/proc", Hierarchy: h, CgroupRoot: root},
		Brake:         BrakeOptions{Mode: Auto, Allowed: func() bool { return true }, Keep: keep},
	}
	group, err := h.Open(root + "/kubepods")
	if err != nil {
		t.Fatal(err)
	}
	defer group.Close()
	read, err := OpenMemory(o.MemoryOptions)
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	w := &watched{thresholds: thresholds(t, map[string]time.Duration{"256Mi": 0})}
	w.thresholds[0].Signal = signal.AllocatableMemoryAvailable
	look := func() *watched {
		read.Read(time.Now(), &w.observed)
		return w
	}
	limitIs := func(l *brake, from, to uint64) {
		t.Helper()
		f, err := memcg.OpenBrake(h, group)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		eventually(t, "the limit", func() bool {
			if l != nil {
				if err := l.tend(time.Now(), look()); err != nil {
					t.Fatal(err)
				}
			}
			now, err := f.High()
			return err == nil && from <= now && now <= to
		})
	}
	first := &brake{o: o}
	if err := first.open(time.Now(), look()); err != nil {
		t.Fatal(err)
	}
	limitIs(first, 248*mib, 256*mib)
	// A hog that takes 300 MiB goes on, slowly, and is not killed.
	dir := h.Memory.Path(root, "kubepods")
	stop := hog(t, dir, 300*mib)
	eventually(t, "a pod that was held back", func() bool {
		counts, err := os.ReadFile(dir + "/memory.events.local")
		if err != nil {
			t.Fatal(err)
		}
		return !strings.Contains(string(counts), "high 0\n") && strings.Contains(string(counts), "oom_kill 0\n")
	})
	limitIs(first, 248*mib, 256*mib)
	stop()
	// It is not closed, as in a crash.
	second := &brake{o: o}
	if err := second.open(time.Now(), look()); err != nil {
		t.Fatal(err)
	}
	limitIs(second, 248*mib, 256*mib)
	if b, ok, _ := keep.LoadBrake(); !ok || b.Was != memcg.Unlimited {
		t.Errorf("written down %+v, %t; want what was before the first brake", b, ok)
	}
	if err := second.close(); err != nil {
		t.Errorf("close() = %v; want nil", err)
	}
	limitIs(nil, math.MaxUint64, math.MaxUint64)
	if released, err := ReleaseBrake(h, keep); released != "" || err != nil {
		t.Errorf("ReleaseBrake() of nothing = %q, %v; want nothing", released, err)
	}
	third := &brake{o: o}
	if err := third.open(time.Now(), look()); err != nil {
		t.Fatal(err)
	}
	limitIs(third, 248*mib, 256*mib)
	if released, err := ReleaseBrake(h, keep); released != group.Path() || err != nil || keep.there {
		t.Errorf("ReleaseBrake() = %q, %v; want %q", released, err, group.Path())
	}
	limitIs(nil, math.MaxUint64, math.MaxUint64)
}
