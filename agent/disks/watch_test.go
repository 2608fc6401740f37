package disks

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/cri"
	"github.com/evictd/evictd/kernel/disk"
	"github.com/evictd/evictd/kernel/kerneltest"
)

const mebibyte = 1 << 20

// fakeRuntime returns fs and err.
type fakeRuntime struct {
	mu  sync.Mutex
	fs  cri.ImageFs
	err error
}

func (r *fakeRuntime) ImageFsInfo(context.Context) (cri.ImageFs, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fs, r.err
}

func (r *fakeRuntime) set(fs cri.ImageFs, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fs, r.err = fs, err
}

func at(image, container string) cri.ImageFs {
	fs := cri.ImageFs{Image: []cri.Filesystem{{Mountpoint: image}}}
	if container != "" {
		fs.Container = []cri.Filesystem{{Mountpoint: container}}
	}
	return fs
}

func policy(t *testing.T, thresholds string) *evict.Policy {
	t.Helper()
	dir := kerneltest.Tree(t, map[string]string{"c.yaml": "apiVersion: evictd.io/v1alpha1\nkind: AgentConfiguration\nevictionHard: " + thresholds + "\n"})
	c, err := config.Load(config.Options{Path: filepath.Join(dir, "c.yaml"), PathGiven: true})
	if err != nil {
		t.Fatal(err)
	}
	return c.Policy(evict.SingleFs)
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after 20s: no %s", what)
		}
	}
}

// start runs a watch until the test ends.
func start(t *testing.T, w *Watch) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func observed(w *Watch) signal.Observations {
	var o signal.Observations
	w.Read(time.Now(), &o)
	return o
}

func TestLayouts(t *testing.T) {
	node := kerneltest.MountLoop(t, "ext4", 64*mebibyte, "")
	other := kerneltest.MountLoop(t, "btrfs", 256*mebibyte, "")
	third := kerneltest.MountLoop(t, "ext4", 32*mebibyte, "")
	bound := filepath.Join(t.TempDir(), "bound")
	for _, d := range []string{filepath.Join(node, "a"), filepath.Join(other, "b"), bound} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	kerneltest.Mount(t, filepath.Join(node, "a"), bound, "", unix.MS_BIND, "")
	for _, tt := range []struct {
		name             string
		image, container string
		want             evict.Layout
		imageMiB         int64
	}{
		{"all on one", node, filepath.Join(node, "a"), evict.SingleFs, 64},
		{"all on one, through a bind mount", bound, "", evict.SingleFs, 64},
		{"images and containers on another", other, filepath.Join(other, "b"), evict.ImageFs, 256},
		{"images on another", other, node, evict.SplitFs, 256},
		{"containers on another", node, other, evict.SplitFs, 64},
		{"three", third, other, evict.SplitFs, 32},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := &fakeRuntime{fs: at(tt.image, tt.container)}
			w := New(Options{Procfs: "/proc", NodePath: node, Runtime: r})
			w.SetPolicy(policy(t, "{nodefs.available: 10%}"))
			start(t, w)
			eventually(t, "reading of all filesystems", func() bool {
				o := observed(w)
				located := true
				for _, s := range w.Statuses(time.Now()) {
					located = located && s.Device != ""
				}
				return located && o[signal.NodeFsAvailable].Status == signal.Observed &&
					o[signal.ImageFsAvailable].Status == signal.Observed && o[signal.ContainerFsAvailable].Status == signal.Observed
			})
			eventually(t, "layout "+tt.want.String(), func() bool { return w.Layout() == tt.want })
			o := observed(w)
			for _, s := range []struct {
				signal signal.Signal
				mib    int64
			}{{signal.NodeFsAvailable, 64}, {signal.ImageFsAvailable, tt.imageMiB}} {
				got := o[s.signal]
				if got.Available <= 0 || got.Available > got.Capacity || got.Capacity > s.mib*mebibyte || got.Capacity < s.mib*mebibyte*3/4 {
					t.Errorf("%s = %+v; want a filesystem of %d MiB", s.signal, got, s.mib)
				}
			}
			if got := o[signal.NodeFsInodesFree]; got.Status != signal.Observed || got.Available <= 0 || got.Available >= got.Capacity {
				t.Errorf("nodefs.inodesFree = %+v", got)
			}
			// btrfs does not count inodes: the signal is not observed, which
			// differs from zero and from an error.
			want := signal.Observed
			if tt.image == other {
				want = signal.NotObserved
			}
			if got := o[signal.ImageFsInodesFree].Status; got != want {
				t.Errorf("imagefs.inodesFree has status %d; want %d", got, want)
			}
		})
	}
}

// The layout changes when a filesystem is mounted and when it is unmounted, without
// waiting for signal.KubeletInterval.
func TestLayoutChanges(t *testing.T) {
	node := kerneltest.MountLoop(t, "ext4", 16*mebibyte, "")
	images := filepath.Join(node, "images")
	if err := os.Mkdir(images, 0o755); err != nil {
		t.Fatal(err)
	}
	w := New(Options{Procfs: "/proc", NodePath: node, Runtime: &fakeRuntime{fs: at(images, "")}})
	start(t, w)
	eventually(t, "reading of imagefs", func() bool { return observed(w)[signal.ImageFsAvailable].Status == signal.Observed })
	if got := w.Layout(); got != evict.SingleFs {
		t.Fatalf("layout %v; want single", got)
	}
	began := time.Now()
	kerneltest.Mount(t, "tmpfs", images, "tmpfs", 0, "size=8m")
	eventually(t, "layout imagefs", func() bool {
		return w.Layout() == evict.ImageFs && observed(w)[signal.ImageFsAvailable].Capacity == 8*mebibyte
	})
	if took := time.Since(began); took > signal.KubeletInterval/2 {
		t.Errorf("a mount was seen after %v; want it by notification and not after signal.KubeletInterval", took)
	}
	kerneltest.Unmount(t, images)
	eventually(t, "layout single", func() bool {
		return w.Layout() == evict.SingleFs && observed(w)[signal.ImageFsAvailable].Capacity > 8*mebibyte
	})
}

// A threshold crossing of space or inodes is seen long before maxReadInterval has
// passed.
func TestCrossing(t *testing.T) {
	node := kerneltest.MountLoop(t, "ext4", 64*mebibyte, "", "-q", "-N", "4096")
	w := New(Options{Procfs: "/proc", NodePath: node})
	w.SetPolicy(policy(t, "{nodefs.available: 20Mi, nodefs.inodesFree: 2k}"))
	start(t, w)
	below := func(s signal.Signal, amount int64) func() bool {
		return func() bool { return observed(w)[s].Below(amount) }
	}
	eventually(t, "first reading", func() bool { return observed(w)[signal.NodeFsAvailable].Status == signal.Observed })
	for len(w.Crossed()) > 0 {
		<-w.Crossed()
	}
	began := time.Now()
	if err := os.WriteFile(filepath.Join(node, "big"), make([]byte, 40*mebibyte), 0o600); err != nil {
		t.Fatal(err)
	}
	select {
	case <-w.Crossed():
	case <-time.After(20 * time.Second):
		t.Fatal("no crossing after 20s")
	}
	if took := time.Since(began); took > maxReadInterval/2 {
		t.Errorf("the crossing was seen after %v; want it long before %v", took, maxReadInterval)
	}
	if !below(signal.NodeFsAvailable, 20*mebibyte)() {
		t.Errorf("nodefs.available = %+v; want less than 20 MiB", observed(w)[signal.NodeFsAvailable])
	}
	for i := range 2500 {
		f, err := os.Create(filepath.Join(node, "f"+string(rune('a'+i%26))+time.Now().Format("150405.000000000")))
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	eventually(t, "shortage of inodes", below(signal.NodeFsInodesFree, 2000))
	if err := os.Remove(filepath.Join(node, "big")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "return above the threshold", func() bool { return !below(signal.NodeFsAvailable, 20*mebibyte)() })
}

// A filesystem that hangs makes only its own signals unreadable, costs one thread,
// and is read again once it answers.
func TestHungFilesystem(t *testing.T) {
	node := kerneltest.MountLoop(t, "ext4", 16*mebibyte, "")
	hung := filepath.Join(t.TempDir(), "hung")
	if err := os.Mkdir(hung, 0o755); err != nil {
		t.Fatal(err)
	}
	release := kerneltest.MountHanging(t, hung)
	w := New(Options{Procfs: "/proc", NodePath: node, Runtime: &fakeRuntime{fs: at(hung, node)}})
	w.SetPolicy(policy(t, "{nodefs.available: 10%}"))
	start(t, w)
	eventually(t, "report of the hang", func() bool {
		o := observed(w)[signal.ImageFsAvailable]
		return o.Status == signal.Unreadable && strings.Contains(o.Err.Error(), "statfs of "+hung+" has not returned for")
	})
	eventually(t, "reading of the other filesystems", func() bool {
		o := observed(w)
		return o[signal.NodeFsAvailable].Status == signal.Observed && o[signal.ContainerFsAvailable].Status == signal.Observed
	})
	first := observed(w)[signal.NodeFsAvailable].Time
	if err := os.WriteFile(filepath.Join(node, "f"), make([]byte, 4*mebibyte), 0o600); err != nil {
		t.Fatal(err)
	}
	w.SetPolicy(policy(t, "{nodefs.available: 90%}"))
	eventually(t, "next reading of nodefs", func() bool { return observed(w)[signal.NodeFsAvailable].Time.After(first) })
	status := w.Statuses(time.Now())[Image]
	if !strings.Contains(status.Error, "has not returned") || status.Path != hung {
		t.Errorf("status of imagefs = %+v", status)
	}
	release()
	eventually(t, "end of the hang", func() bool {
		o := observed(w)[signal.ImageFsAvailable]
		return o.Status == signal.Unreadable && !strings.Contains(o.Err.Error(), "has not returned")
	})
	kerneltest.Unmount(t, hung)
	eventually(t, "reading of the filesystem below", func() bool { return observed(w)[signal.ImageFsAvailable].Status == signal.Observed })
}

// Readings report that the filesystem is read-only.
func TestReadOnlyFilesystem(t *testing.T) {
	node := kerneltest.MountLoop(t, "ext4", 16*mebibyte, "")
	w := New(Options{Procfs: "/proc", NodePath: node})
	start(t, w)
	for _, readOnly := range []bool{false, true, false} {
		flags := uintptr(unix.MS_REMOUNT)
		if readOnly {
			flags |= unix.MS_RDONLY
		}
		if err := unix.Mount("", node, "", flags, ""); err != nil {
			t.Fatal(err)
		}
		eventually(t, "reading with the present read-only state", func() bool {
			o := observed(w)
			bytes, inodes := o[signal.NodeFsAvailable], o[signal.NodeFsInodesFree]
			return bytes.Status == signal.Observed && inodes.Status == signal.Observed && bytes.ReadOnly == readOnly && inodes.ReadOnly == readOnly
		})
	}
}

func TestFilesystemUnmounted(t *testing.T) {
	node := kerneltest.MountLoop(t, "ext4", 16*mebibyte, "")
	dir := filepath.Join(node, "dir")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	w := New(Options{Procfs: "/proc", NodePath: dir})
	start(t, w)
	eventually(t, "reading", func() bool { return observed(w)[signal.NodeFsAvailable].Status == signal.Observed })
	kerneltest.Unmount(t, node)
	eventually(t, "unreadable signal", func() bool {
		o := observed(w)[signal.NodeFsAvailable]
		return o.Status == signal.Unreadable && errors.Is(o.Err, os.ErrNotExist)
	})
}

// The paths that the runtime has reported remain while it returns errors, and
// nodefs does not depend on the runtime.
func TestRuntimeErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &fakeRuntime{err: errors.New("boom")}
		w := New(Options{Procfs: "/nowhere", NodePath: "/n", Runtime: r})
		w.read = func(path string) (disk.Space, error) {
			return disk.Space{Bytes: 100, Free: uint64(len(path)), Available: uint64(len(path)), Inodes: 50, InodesFree: 40, CountsInodes: true}, nil
		}
		w.locate = func(path string) (disk.Mount, error) {
			return disk.Mount{ID: 1, Filesystem: disk.ID{Minor: uint32(len(path))}}, nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.Run(ctx) }()
		synctest.Wait()
		o := observed(w)
		if got := o[signal.NodeFsAvailable]; got.Status != signal.Observed || got.Available != 2 || got.Capacity != 100 {
			t.Errorf("nodefs.available = %+v; want 2 of 100", got)
		}
		if got := o[signal.ImageFsAvailable]; got.Status != signal.Unreadable || got.Err != errPathUnknown {
			t.Errorf("imagefs.available = %+v; want unreadable", got)
		}
		if s := w.Statuses(time.Now())[Image]; s.Readable || !strings.Contains(s.Error, "boom") {
			t.Errorf("status of imagefs = %+v; want boom", s)
		}
		r.set(at("/images", ""), nil)
		time.Sleep(2 * queryRetry)
		synctest.Wait()
		if got := observed(w)[signal.ImageFsInodesFree]; got.Status != signal.Observed || got.Available != 40 {
			t.Errorf("imagefs.inodesFree = %+v; want 40", got)
		}
		if got := w.Layout(); got != evict.ImageFs {
			t.Errorf("layout %v; want imagefs", got)
		}
		r.set(cri.ImageFs{}, errors.New("gone"))
		time.Sleep(2 * signal.KubeletInterval)
		synctest.Wait()
		if got := observed(w)[signal.ImageFsAvailable]; got.Status != signal.Observed || w.Layout() != evict.ImageFs {
			t.Errorf("imagefs.available = %+v, layout %v while the runtime returns errors; want the previous ones", got, w.Layout())
		}
		if s := w.Statuses(time.Now())[Image]; !strings.Contains(s.Error, "gone") {
			t.Errorf("status of imagefs = %+v; want the error", s)
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// An old reading is not used as the present one.
func TestStaleReading(t *testing.T) {
	now := time.Now()
	p := filesystem{path: "/x", at: now.Add(-5 * time.Second), period: 2 * time.Second}
	if err := p.unreadable(now); err == nil || !strings.Contains(err.Error(), "was 5s ago; the interval is 2s") {
		t.Errorf("unreadable = %v", err)
	}
	p.at = now.Add(-3 * time.Second)
	if err := p.unreadable(now); err != nil {
		t.Errorf("unreadable = %v; want nil", err)
	}
}

func TestNodePath(t *testing.T) {
	root := kerneltest.Tree(t, map[string]string{"var/lib/": ""})
	w := New(Options{Rootfs: root})
	if got := w.NodePath(); got != root {
		t.Errorf("NodePath() = %q; want %q", got, root)
	}
	kerneltest.Write(t, root, map[string]string{"var/lib/kubelet/": ""})
	if got, want := w.NodePath(), filepath.Join(root, KubeletDir); got != want {
		t.Errorf("NodePath() with a kubelet = %q; want %q", got, want)
	}
	w.o.NodePath = "/srv"
	if got, want := w.NodePath(), filepath.Join(root, "srv"); got != want {
		t.Errorf("NodePath() with NodePath = %q; want %q", got, want)
	}
}
