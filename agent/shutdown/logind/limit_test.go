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

// A kubelet reads the limit once and relies on it.
func TestLimitWithKubeletLock(t *testing.T) {
	b := start(t, 30*time.Second)
	b.waitFor("the raised limit", func() bool { return b.locked() && b.delayLock.Status().Limit == 30*time.Second })
	b.bus.Inhibit(KubeletWho)
	b.delayLock.SetDelay(0)
	b.waitFor("the kubelet's lock in the status", func() bool { return b.delayLock.Status().Kubelet && b.locks() == 0 })
	b.delayLock.notify()
	b.event(false)
	b.event(false)
	b.stop()
	if got := b.dropIn(); got != "30" {
		t.Errorf("drop-in = %q with a kubelet's lock; want the previous 30", got)
	}
}

// A drop-in of an earlier run whose pid was reused by another process is replaced.
func TestLimitOfReusedPID(t *testing.T) {
	b := start(t, 30*time.Second, func(b *fixture) { b.write(DropInDir+"/"+DropInName, string(content(1, startTime(1)+1, "20"))) })
	b.waitFor("the raised limit", func() bool { return b.locked() && b.delayLock.Status().Limit == 30*time.Second })
}

// If another evictd's drop-in sets too low a limit, the status reports it.
func TestTooLowLimitOfOtherEvictd(t *testing.T) {
	b := start(t, 30*time.Second, func(b *fixture) { b.write(DropInDir+"/"+DropInName, string(content(1, startTime(1), "20"))) })
	b.waitFor("a lock", b.locked)
	if s := b.delayLock.Status(); s.Error == "" {
		t.Errorf("status = %+v; want the process that wrote the drop-in", s)
	}
}

// failingFDStore is an FDStore whose Remove fails for a number of calls.
type failingFDStore struct{ failures, stored atomic.Int32 }

func (s *failingFDStore) Store(int) error { s.stored.Add(1); return nil }

func (s *failingFDStore) Remove() error {
	if s.failures.Add(-1) >= 0 {
		return errors.New("resource temporarily unavailable")
	}
	s.stored.Store(0)
	return nil
}

// The removal of the lock from the service manager is retried.
func TestRemoveRetried(t *testing.T) {
	b := start(t, 0)
	store := &failingFDStore{}
	d := NewDelayLock(Options{Address: b.bus.Address(), Root: b.root, Log: slog.New(slog.DiscardHandler), FDStore: store})
	d.SetDelay(5 * time.Second)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	d.setLock(newLock(dup(t, null)))
	store.failures.Store(3)
	d.Release()
	b.waitFor("the lock closed by the service manager", func() bool { return store.stored.Load() == 0 })
	// A lock stored after the failure must stay.
	d.done = false
	d.setLock(newLock(dup(t, null)))
	store.failures.Store(1)
	d.Release()
	d.done = false
	d.setLock(newLock(dup(t, null)))
	time.Sleep(3 * removalBackoff)
	if store.stored.Load() == 0 {
		t.Error("the service manager has closed the lock that was stored last")
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

// A drop-in that can't be rewritten, removed or read reduces at most the limit; the
// lock is taken.
func TestLockWithReadOnlyDropIn(t *testing.T) {
	const path = DropInDir + "/" + DropInName
	for _, tt := range []struct {
		name, content string
		warns         bool // that logind allows less than needed
	}{
		{"right", string(content(1, startTime(1)+1, "30")), false},
		{"too much", string(content(1, startTime(1)+1, "60")), false},
		{"too little", string(content(1, startTime(1)+1, "20")), true},
		{"unreadable", "", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := start(t, 30*time.Second, func(b *fixture) {
				if tt.content == "" {
					b.write(path+"/in-the-way", "")
				} else {
					b.write(path, tt.content)
				}
				dir := filepath.Join(b.root, DropInDir)
				kerneltest.Mount(t, dir, dir, "", unix.MS_BIND, "")
				if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
					t.Fatal(err)
				}
				b.bus.Reload()
			})
			b.waitFor("a lock", b.locked)
			b.waitFor("the status", func() bool { s := b.delayLock.Status(); return s.Connected && (s.Error != "") == tt.warns })
			b.delayLock.SetDelay(0)
			b.waitFor("the release of the lock", func() bool {
				return b.locks() == 0 && !b.delayLock.Status().Inhibited && b.delayLock.Status().Connected
			})
		})
	}
}
