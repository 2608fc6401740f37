package disks

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/disk"
	"github.com/evictd/evictd/kernel/kerneltest"
)

// The largest directories of a filesystem are named, without what pods hold in them,
// and a filesystem below that hangs holds nothing up.
func TestLargest(t *testing.T) {
	root := kerneltest.Loop(t, "ext4", 64*mebibyte, "")
	write := func(mib int, elem ...string) {
		path := filepath.Join(append([]string{root}, elem...)...)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, make([]byte, mib*mebibyte), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(9, "var/log/journal/id/system.journal")
	write(3, "var/swapfile")
	write(2, "pods/rest")
	for i := range 50 {
		write(0, "home/a/mail", fmt.Sprint(i))
	}
	emptyDir(t, root, "u", "v", 16)
	hung := filepath.Join(root, "var/log/hung")
	if err := os.Mkdir(hung, 0o755); err != nil {
		t.Fatal(err)
	}
	kerneltest.Hang(t, hung)

	answered := make(chan []evict.DirectoryUsage, 1)
	o := UsageOptions{Procfs: kernel.FS("/proc"), PodsDir: filepath.Join(root, "pods")}
	o.Surveyed = func(point string, byBytes, _ []evict.DirectoryUsage) {
		if point != root {
			t.Errorf("survey of %s; want %s", point, root)
		}
		answered <- byBytes
	}
	u := measuring(t, o, nil)
	begin := time.Now()
	u.Want([]Subject{{UID: "u"}}, true)
	eventually(t, "measurement of the pod", func() bool { return u.Unmeasured(begin) == "" })
	if got := u.Largest(root, false); got != nil {
		t.Errorf("Largest before the survey = %+v; want nothing", got)
	}
	byBytes := <-answered
	name := func(all []evict.DirectoryUsage) (names []string) {
		for _, d := range all[:3] {
			rel, err := filepath.Rel(root, d.Path)
			if err != nil {
				t.Error(err)
			}
			names = append(names, fmt.Sprint(rel, " ", d.Bytes>>20))
		}
		return names
	}
	if got, want := name(byBytes), []string{"var/log/journal 9", "var 3", "pods 2"}; !slices.Equal(got, want) {
		t.Errorf("largest by bytes %q; want %q", got, want)
	}
	byInodes := u.Largest(root, true)
	if len(byInodes) != surveyLargest || byInodes[0].Inodes != 51 || filepath.Base(byInodes[0].Path) != "mail" {
		t.Errorf("largest by inodes %+v; want the 51 of home/a/mail first", byInodes)
	}
	if got := u.Largest(root, false); !slices.Equal(got, byBytes) {
		t.Errorf("Largest = %+v; want %+v", got, byBytes)
	}
	select {
	case <-answered:
		t.Error("a second survey right after the first")
	default:
	}
}

// A directory that hangs is left out of the survey of its filesystem and holds up none of
// another one. It is tried again later, although the first attempt has never returned.
func TestSurveyHangs(t *testing.T) {
	root, other := t.TempDir(), t.TempDir()
	write := func(mib int, elem ...string) {
		path := filepath.Join(elem...)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, make([]byte, mib*mebibyte), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(2, root, "calm", "f")
	write(1, other, "dir", "f")
	for i := range 200 { // more than there are between two pauses of a walk
		write(0, root, "var", "bad", fmt.Sprint(i))
	}
	write(3, root, "var", "bad", "f")
	synctest.Test(t, func(t *testing.T) {
		u := NewUsages(UsageOptions{Procfs: "/proc"})
		var hangs atomic.Bool
		released := make(chan struct{})
		u.surveyWalk = func(ctx context.Context, w *disk.Walker, path string) (disk.Usage, error) {
			pause := w.Pause
			w.Pause = func() {
				if hangs.Load() {
					<-released
				}
				pause()
			}
			return w.Usage(ctx, path)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- u.Run(ctx) }()
		// largest asks, and again when a survey may have ended.
		largest := func(point string) (first string) {
			u.Largest(point, false)
			time.Sleep(10 * time.Second)
			if all := u.Largest(point, false); len(all) > 0 {
				first = filepath.Base(all[0].Path)
			}
			return first
		}
		hangs.Store(true)
		if got := largest(root); got != "calm" {
			t.Errorf("largest beside a directory that hangs: %q; want calm", got)
		}
		if got := largest(other); got != "dir" {
			t.Errorf("largest of another filesystem: %q; want dir", got)
		}
		hangs.Store(false)
		time.Sleep(hangRetry)
		if got := largest(root); got != "bad" {
			t.Errorf("largest when the directory is tried again: %q; want bad", got)
		}
		close(released)
		synctest.Wait()
		u.mu.Lock()
		if s := u.surveys[root]; len(s.hung) > 0 || u.jobs.hung > 0 || len(u.jobs.open) > 0 {
			t.Errorf("hung %+v, jobs %+v when all have returned; want none", s.hung, u.jobs)
		}
		u.mu.Unlock()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A filesystem whose root hangs is tried again after waits that double, and keeps a
// bounded number of threads.
func TestSurveyOfRootHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := NewUsages(UsageOptions{Procfs: "/proc"})
		var attempts atomic.Int64
		released := make(chan struct{})
		u.surveyWalk = func(context.Context, *disk.Walker, string) (disk.Usage, error) {
			attempts.Add(1)
			<-released
			return disk.Usage{}, disk.ErrAtLeast
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- u.Run(ctx) }()
		within := func(period time.Duration) int64 {
			for end := time.Now().Add(period); time.Now().Before(end); time.Sleep(time.Minute) {
				u.Largest("/hung", false)
			}
			return attempts.Load()
		}
		if n := within(surveyAgain); n != 1 {
			t.Errorf("%d attempts in %v; want 1", n, surveyAgain)
		}
		if n := within(time.Hour); n != 3 {
			t.Errorf("%d attempts in another hour; want 3", n)
		}
		if n := within(48 * time.Hour); n != maxOpenPerPod {
			t.Errorf("%d attempts in two days; want %d", n, maxOpenPerPod)
		}
		close(released)
		synctest.Wait()
		if n := within(surveyAgain); n != maxOpenPerPod+1 {
			t.Errorf("%d attempts when those before have returned; want one more", n)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestOutsidePods(t *testing.T) {
	pods := map[string]disk.Usage{"/a/b/c/pod": {Bytes: 7, Inodes: 2}, "/x": {Bytes: 5, Inodes: 1}}
	of := disk.Usage{Bytes: 10, Inodes: 3}
	for _, tt := range []struct {
		dir   string
		whole bool
		want  disk.Usage
	}{
		{"/a/b/c", true, disk.Usage{Bytes: 3, Inodes: 1}},
		{"/a/b", false, of},
		{"/a/b/c/pod", true, disk.Usage{}},
		{"/x", true, disk.Usage{}},
		{"/x/y", false, disk.Usage{}},
		{"/xy", true, of},
		{"/a/b/cd", true, of},
	} {
		if got := outsidePods(tt.dir, tt.whole, of, pods); got != tt.want {
			t.Errorf("outsidePods(%s, %t) = %+v; want %+v", tt.dir, tt.whole, got, tt.want)
		}
	}
	u := NewUsages(UsageOptions{Rootfs: "/host"})
	for path, want := range map[string]string{"/host": "/", "/host/var": "/var"} {
		if got := u.seenByHost(path); got != want {
			t.Errorf("seenByHost(%s) = %s; want %s", path, got, want)
		}
	}
	if got := NewUsages(UsageOptions{}).seenByHost("/var"); got != "/var" {
		t.Errorf("seenByHost(/var) = %s", got)
	}
}
