package logind

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel/kerneltest"
)

// A kubelet has looked at the limit once, and counts on it.
func TestLimitThatAKubeletCountsOn(t *testing.T) {
	b := start(t, 30*time.Second)
	b.until("the limit is raised", func() bool { return b.locked() && b.guard.Status().Limit == 30*time.Second })
	b.bus.Take(KubeletWho)
	b.guard.Want(0)
	b.until("the kubelet's lock is seen", func() bool { return b.guard.Status().Kubelet && b.locks() == 0 })
	b.guard.wake()
	b.event(false)
	b.event(false)
	b.stop()
	if got := b.dropIn(); got != "30" {
		t.Errorf("drop-in = %q with a kubelet's lock; want the 30 that there were", got)
	}
}

// What another process with the pid of an earlier run wrote is nobody's.
func TestLimitOfAPidThatIsAnothers(t *testing.T) {
	b := start(t, 30*time.Second, func(b *bed) { b.write(DropInDir+"/"+DropInName, string(content(1, startOf(1)+1, "20"))) })
	b.until("the limit is raised", func() bool { return b.locked() && b.guard.Status().Limit == 30*time.Second })
}

// Where another evictd has the say, status says so.
func TestTooLittleOfAnother(t *testing.T) {
	b := start(t, 30*time.Second, func(b *bed) { b.write(DropInDir+"/"+DropInName, string(content(1, startOf(1), "20"))) })
	b.until("a lock is held", b.locked)
	if s := b.guard.Status(); s.Error == "" {
		t.Errorf("status = %+v; want the process that wrote the drop-in", s)
	}
}

// deaf is a keeper that can't be told anything for a while.
type deaf struct{ refuses, kept atomic.Int32 }

func (d *deaf) Keep(int) error { d.kept.Add(1); return nil }

func (d *deaf) Forget() error {
	if d.refuses.Add(-1) >= 0 {
		return errors.New("resource temporarily unavailable")
	}
	d.kept.Store(0)
	return nil
}

// A service manager that is busy is told again to close the lock.
func TestForgetLater(t *testing.T) {
	b := start(t, 0)
	keeper := &deaf{}
	g := NewGuard(Options{Address: b.bus.Address(), Root: b.root, Log: slog.New(slog.DiscardHandler), Keeper: keeper})
	g.Want(5 * time.Second)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	g.take(newLock(dup(t, null)))
	keeper.refuses.Store(3)
	g.Done()
	b.until("the service manager has closed the lock", func() bool { return keeper.kept.Load() == 0 })
	// One that is kept since must stay.
	g.done = false
	g.take(newLock(dup(t, null)))
	keeper.refuses.Store(1)
	g.Done()
	g.done = false
	g.take(newLock(dup(t, null)))
	time.Sleep(3 * forgetAgain)
	if keeper.kept.Load() == 0 {
		t.Error("the service manager has closed the lock that it was given last")
	}
}

func dup(t *testing.T, f *os.File) int {
	t.Helper()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

// A drop-in of an earlier run that can be neither rewritten nor removed, or not even
// read, costs at most the limit, never the lock.
func TestLockWhereTheDropInStays(t *testing.T) {
	const path = DropInDir + "/" + DropInName
	for _, tt := range []struct {
		name, content string
		warns         bool // that logind allows less
	}{
		{"right", string(content(1, startOf(1)+1, "30")), false},
		{"too much", string(content(1, startOf(1)+1, "60")), false},
		{"too little", string(content(1, startOf(1)+1, "20")), true},
		{"unreadable", "", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := start(t, 30*time.Second, func(b *bed) {
				if tt.content == "" {
					b.write(path+"/in-the-way", "")
				} else {
					b.write(path, tt.content)
				}
				dir := filepath.Join(b.root, DropInDir)
				kerneltest.Mounted(t, dir, dir, "", unix.MS_BIND, "")
				if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
					t.Fatal(err)
				}
				b.bus.Reload()
			})
			b.until("a lock is held", b.locked)
			b.until("the status says how things stand", func() bool { s := b.guard.Status(); return s.Connected && (s.Error != "") == tt.warns })
			b.guard.Want(0)
			b.until("the lock is given up", func() bool { return b.locks() == 0 && !b.guard.Status().Locked && b.guard.Status().Connected })
		})
	}
}
