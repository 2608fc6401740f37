package act

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/process"
)

// never is an interval that does not end within a test.
const never = time.Hour

// fakePidfd returns a descriptor that becomes readable when exit is called, as a pidfd does.
func fakePidfd(t *testing.T) (fd int, exit func()) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return int(r.Fd()), func() { w.Write([]byte{0}) }
}

// drainWith begins a drain of the test's cgroup that looks at it only after events.
func (p *testCgroup) drainWith(ctx context.Context, change func(*victim)) (ended chan error, first chan struct{}) {
	p.t.Helper()
	v, err := open(p.hierarchy, p.container("c1"), hardJob().Guard)
	if err != nil {
		p.t.Fatal(err)
	}
	change(v)
	ended, first = make(chan error), make(chan struct{}, 1)
	w := newExitWatch(never)
	go func() {
		defer w.close()
		defer v.close()
		err := v.drainWatched(ctx, "/proc", func() {
			select {
			case first <- struct{}{}:
			default:
			}
		}, w)
		ended <- err
	}()
	return ended, first
}

func wantEnd(t *testing.T, ended chan error, want error) {
	t.Helper()
	select {
	case err := <-ended:
		if !errors.Is(err, want) {
			t.Errorf("drain = %v; want %v", err, want)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the drain has not ended")
	}
}

// A drain ends when the last process has exited, without a timer: by the descriptors of the
// kill, and by those that it opens itself.
func TestDrainByEvents(t *testing.T) {
	t.Run("descriptors of the kill", func(t *testing.T) {
		p := newTestCgroup(t)
		fd1, exit1 := fakePidfd(t)
		fd2, exit2 := fakePidfd(t)
		ended, first := p.drainWith(t.Context(), func(v *victim) {
			v.exiting, v.preSignalled = []pidfd{{pid: -1, fd: fd1}, {pid: -2, fd: fd2}}, 2
		})
		exit1()
		<-first
		select {
		case err := <-ended:
			t.Fatalf("drain = %v; want it to wait for the second process", err)
		case <-time.After(50 * time.Millisecond):
		}
		exit2()
		wantEnd(t, ended, nil)
	})
	t.Run("listed processes", func(t *testing.T) {
		p := newTestCgroup(t)
		p.run("for i in 1 2 3 4 5 6; do sleep 1000 & done; wait")
		p.waitFor("all run", func() bool { return len(p.pids()) == 7 })
		ended, _ := p.drainWith(t.Context(), func(*victim) {})
		wantEnd(t, ended, nil)
		if left := p.pids(); len(left) > 0 {
			t.Errorf("processes left: %v", left)
		}
	})
	t.Run("more than are watched", func(t *testing.T) {
		p := newTestCgroup(t)
		p.run("exec perl -e 'for (1..200) { fork or sleep 1000 } sleep 1000'")
		p.waitFor("all run", func() bool { return len(p.pids()) == 201 })
		ended, _ := p.drainWith(t.Context(), func(*victim) {})
		wantEnd(t, ended, nil)
	})
}

// The end of its context ends a drain that waits for an event.
func TestDrainByEventsCanceled(t *testing.T) {
	p := newTestCgroup(t)
	fd, _ := fakePidfd(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended, _ := p.drainWith(ctx, func(v *victim) { v.exiting = []pidfd{{pid: -1, fd: fd}} })
	select {
	case err := <-ended:
		t.Fatalf("drain = %v; want it to wait", err)
	case <-time.After(50 * time.Millisecond):
	}
	cancel()
	wantEnd(t, ended, context.Canceled)
}

// On v2 the kernel reports that a cgroup is empty, also if no process of it is open.
func TestWatchCgroupEvents(t *testing.T) {
	p := newTestCgroup(t)
	if p.hierarchy.Version != cgroup.V2 {
		t.Skip("needs cgroup v2")
	}
	cmd := p.run("exec sleep 1000")
	group, err := p.hierarchy.Open(p.path)
	if err != nil {
		t.Fatal(err)
	}
	defer group.Close()
	if populated, err := group.Populated(); !populated || err != nil {
		t.Fatalf("Populated() = %t, %v; want true", populated, err)
	}
	w := newExitWatch(never)
	defer w.close()
	w.watch(&victim{group: group})
	cmd.Process.Kill()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for populated := true; populated; populated, err = group.Populated() {
		if err := errors.Join(err, w.wait(ctx)); err != nil {
			t.Fatal(err)
		}
	}
}

// Without an event the interval counts, and doubles. The same holds without an epoll instance,
// and after too many events.
func TestWatchInterval(t *testing.T) {
	for name, change := range map[string]func(*exitWatch){
		"watched":         func(*exitWatch) {},
		"no epoll":        func(w *exitWatch) { w.epoll.Close(); w.epoll = nil },
		"too many events": func(w *exitWatch) { w.looks = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			fd, _ := fakePidfd(t)
			w := newExitWatch(time.Millisecond)
			w.addProcess(1, fd, nil)
			change(w)
			defer w.close()
			began := time.Now()
			for range 3 {
				if err := w.wait(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if took := time.Since(began); took < 7*time.Millisecond || w.interval != 8*time.Millisecond {
				t.Errorf("three waits took %v, and the interval is %v; want 1+2+4 ms and 8 ms", took, w.interval)
			}
		})
	}
}

// Exits cause a bounded number of looks.
func TestWatchBound(t *testing.T) {
	w := newExitWatch(never)
	defer w.close()
	for i := range maxEventLooks {
		fd, exit := fakePidfd(t)
		w.addProcess(i+1, fd, nil)
		exit()
		if !w.awaitEvent(t.Context(), time.Now().Add(never)) {
			t.Fatal("an exit has caused no look")
		}
	}
	if w.looks != 0 {
		t.Errorf("%d looks are left; want none", w.looks)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	fd, exit := fakePidfd(t)
	w.addProcess(maxEventLooks+1, fd, nil)
	exit()
	if w.awaitEvent(ctx, time.Now().Add(never)) {
		t.Error("another event has caused a look")
	}
}

// The watch closes what it has opened, also a process that does not exit.
func TestWatchCloses(t *testing.T) {
	w := newExitWatch(never)
	p, err := process.Open(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Use(func(fd int) error { w.addProcess(os.Getpid(), fd, p); return nil }); err != nil {
		t.Fatal(err)
	}
	w.close()
	if err := p.Signal(unix.Signal(0)); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Signal after close = %v; want %v", err, os.ErrClosed)
	}
}
