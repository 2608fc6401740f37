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

// LargestDirectories returns the largest directories of a filesystem without the usage of
// pods. A hung filesystem mounted below does not delay the survey.
func TestLargestDirectories(t *testing.T) {
	root := kerneltest.MountLoop(t, "ext4", 64*mebibyte, "")
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
	write(2, "pods/other")
	for i := range 50 {
		write(0, "home/a/mail", fmt.Sprint(i))
	}
	emptyDir(t, root, "u", "v", 16)
	hung := filepath.Join(root, "var/log/hung")
	if err := os.Mkdir(hung, 0o755); err != nil {
		t.Fatal(err)
	}
	kerneltest.MountHanging(t, hung)

	answered := make(chan []evict.DirectoryUsage, 1)
	o := UsageMeterOptions{Procfs: kernel.FS("/proc"), PodsDir: filepath.Join(root, "pods")}
	o.OnSurvey = func(point string, byBytes, _ []evict.DirectoryUsage) {
		if point != root {
			t.Errorf("survey of %s; want %s", point, root)
		}
		answered <- byBytes
	}
	u := measuring(t, o, nil)
	begin := time.Now()
	u.SetPods([]Pod{{UID: "u"}}, true)
	eventually(t, "measurement of the pod", func() bool { return u.Unmeasured(begin) == "" })
	if got := u.LargestDirectories(root, false); got != nil {
		t.Errorf("LargestDirectories() before the survey = %+v; want nil", got)
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
	byInodes := u.LargestDirectories(root, true)
	if len(byInodes) != surveyEntries || byInodes[0].Inodes != 51 || filepath.Base(byInodes[0].Path) != "mail" {
		t.Errorf("largest by inodes %+v; want the 51 of home/a/mail first", byInodes)
	}
	if got := u.LargestDirectories(root, false); !slices.Equal(got, byBytes) {
		t.Errorf("LargestDirectories() = %+v; want %+v", got, byBytes)
	}
	select {
	case <-answered:
		t.Error("a second survey right after the first")
	default:
	}
}

// A directory that hangs is skipped in the survey of its filesystem and does not
// delay surveys of others. It is tried again later, even if the first attempt has
// never returned.
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
	write(2, root, "small", "f")
	write(1, other, "dir", "f")
	for i := range 200 { // more than a walk counts between two pauses
		write(0, root, "var", "bad", fmt.Sprint(i))
	}
	write(3, root, "var", "bad", "f")
	synctest.Test(t, func(t *testing.T) {
		u := NewUsageMeter(UsageMeterOptions{Procfs: "/proc"})
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
		// largest starts a survey and returns its result.
		largest := func(point string) (first string) {
			u.LargestDirectories(point, false)
			time.Sleep(10 * time.Second)
			if all := u.LargestDirectories(point, false); len(all) > 0 {
				first = filepath.Base(all[0].Path)
			}
			return first
		}
		hangs.Store(true)
		if got := largest(root); got != "small" {
			t.Errorf("largest with a directory that hangs: %q; want small", got)
		}
		if got := largest(other); got != "dir" {
			t.Errorf("largest of another filesystem: %q; want dir", got)
		}
		hangs.Store(false)
		time.Sleep(surveyValidity)
		if got := largest(root); got != "bad" {
			t.Errorf("largest after the directory was tried again: %q; want bad", got)
		}
		close(released)
		synctest.Wait()
		u.mu.Lock()
		if s := u.surveys[root]; len(s.hung) > 0 || u.jobs.hung > 0 || len(u.jobs.detachedByPod) > 0 {
			t.Errorf("hung %+v, jobs %+v after all have returned; want none", s.hung, u.jobs)
		}
		u.mu.Unlock()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A filesystem whose root hangs is tried again at doubling intervals, with a
// bounded number of threads.
func TestSurveyRootHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := NewUsageMeter(UsageMeterOptions{Procfs: "/proc"})
		var attempts atomic.Int64
		released := make(chan struct{})
		u.surveyWalk = func(context.Context, *disk.Walker, string) (disk.Usage, error) {
			attempts.Add(1)
			<-released
			return disk.Usage{}, disk.ErrIncomplete
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- u.Run(ctx) }()
		within := func(period time.Duration) int64 {
			for end := time.Now().Add(period); time.Now().Before(end); time.Sleep(time.Minute) {
				u.LargestDirectories("/hung", false)
			}
			return attempts.Load()
		}
		if n := within(surveyValidity); n != 1 {
			t.Errorf("%d attempts in %v; want 1", n, surveyValidity)
		}
		if n := within(time.Hour); n != 3 {
			t.Errorf("%d attempts in another hour; want 3", n)
		}
		if n := within(48 * time.Hour); n != maxDetachedPerPod {
			t.Errorf("%d attempts in two days; want %d", n, maxDetachedPerPod)
		}
		close(released)
		synctest.Wait()
		if n := within(surveyValidity); n != maxDetachedPerPod+1 {
			t.Errorf("%d attempts after the earlier ones have returned; want one more", n)
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
	u := NewUsageMeter(UsageMeterOptions{Rootfs: "/host"})
	for path, want := range map[string]string{"/host": "/", "/host/var": "/var"} {
		if got := u.hostPath(path); got != want {
			t.Errorf("hostPath(%s) = %s; want %s", path, got, want)
		}
	}
	if got := NewUsageMeter(UsageMeterOptions{}).hostPath("/var"); got != "/var" {
		t.Errorf("hostPath(/var) = %s", got)
	}
}
