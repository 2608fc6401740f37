package disks

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/kernel/disk"
	"github.com/evictd/evictd/kernel/kerneltest"
	"github.com/evictd/evictd/kernel/process"
)

// Directories of a pod that hang cost a bounded number of threads, do not delay
// other pods, and are measured again once they have returned.
//
// Complexity: the course of one hang, with a check after each step.
//
//gocyclo:ignore
func TestHungDirectories(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var mu sync.Mutex
		walks := map[string]int{}
		root := t.TempDir()
		u := NewUsageMeter(UsageMeterOptions{Procfs: "/nowhere"})
		u.measure = func(_ context.Context, _ *disk.Walker, path string, _ bool) (Measurement, error) {
			name := filepath.Base(path)
			mu.Lock()
			walks[name]++
			mu.Unlock()
			if strings.HasPrefix(name, "hung") {
				<-release
			}
			return Measurement{Usage: disk.Usage{Bytes: 5, Inodes: 1}, Method: "walk"}, nil
		}
		newPod := func(uid string, names ...string) Pod {
			s := Pod{UID: uid}
			for _, name := range names {
				s.Containers = append(s.Containers, evict.RunningContainer{ID: name, Name: name, LogPath: filepath.Join(root, name, "0.log")})
			}
			return s
		}
		var many []string
		for i := range 2 * maxDetachedPerPod {
			many = append(many, "hung"+strconv.Itoa(i))
		}
		// By name the hung directories come first; that must not put their pods
		// first.
		hung, partly, other := newPod("a", many...), newPod("b", "hung", "log"), newPod("c", "main")
		pods := []Pod{hung, partly, other}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- u.Run(ctx) }()
		u.SetPods(pods, true)
		time.Sleep(3 * stallTimeout)
		synctest.Wait()
		if got := u.Usage(&other).Logs["main"]; got.Bytes != 5 {
			t.Errorf("after %v the other pod is %+v; want it measured", 3*stallTimeout, got)
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if h := u.Usage(&partly); !h.Known || h.Logs["log"].Bytes != 5 || !h.Logs["hung"].At.IsZero() {
			t.Errorf("pod with one hung directory: %+v; want the other directory measured", h)
		}
		if h := u.Usage(&hung); h.Known {
			t.Errorf("pod without a measurement: %+v; want Known = false", h)
		}
		if lacks := u.Unmeasured(time.Now().Add(-time.Second)); lacks != "" {
			t.Errorf("Unmeasured = %q; want none, because only hung directories are not measured", lacks)
		}
		mu.Lock()
		total := 0
		for name, n := range walks {
			if strings.HasPrefix(name, "hung") {
				total += n
			}
		}
		mu.Unlock()
		if want := maxDetachedPerPod + 1; total != want {
			t.Errorf("%d walks hang; want %d", total, want)
		}
		later := newPod("d", "late")
		u.SetPods(append(pods, later), true)
		time.Sleep(stallTimeout)
		synctest.Wait()
		if got := u.Usage(&later).Logs["late"]; got.Bytes != 5 {
			t.Errorf("pod that started later is %+v; want it measured", got)
		}
		close(release)
		time.Sleep(time.Minute)
		synctest.Wait()
		if h := u.Usage(&hung); h.Logs["hung0"].Bytes != 5 || h.Logs[many[len(many)-1]].Bytes != 5 {
			t.Errorf("after all returned: %+v; want all measured", h)
		}
		if u.jobs.hung != 0 || u.jobs.slow != 0 || len(u.jobs.slowByPod) != 0 || len(u.jobs.detachedByPod) != 0 {
			t.Errorf("after all returned: %+v; want one thread and no detached job", u.jobs)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// threadTimes is the simulated processor time of threads.
type threadTimes struct {
	mu  sync.Mutex
	of  map[int]time.Duration
	sum time.Duration
}

func (c *threadTimes) read() (time.Duration, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.of[unix.Gettid()], nil
}

func (c *threadTimes) work(d time.Duration) {
	time.Sleep(d)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[int]time.Duration{}
	}
	c.of[unix.Gettid()] += d
	c.sum += d
}

func (c *threadTimes) total() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sum
}

// Large directories of a pod, whose walks take long, do not delay other pods.
func TestLargeDirectories(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := NewUsageMeter(UsageMeterOptions{Procfs: "/nowhere"})
		var cpu threadTimes
		u.cpu = cpu.read
		u.measure = func(ctx context.Context, w *disk.Walker, path string, _ bool) (Measurement, error) {
			for ctx.Err() == nil && strings.HasPrefix(path, "/logs/a") {
				cpu.work(time.Millisecond)
				w.Pause()
			}
			return Measurement{Usage: disk.Usage{Bytes: 5}, Method: "walk"}, nil
		}
		large, other := Pod{UID: "a"}, Pod{UID: "b"}
		for i := range 2 * maxDetachedPerPod {
			name := "a" + strconv.Itoa(i)
			large.Containers = append(large.Containers, evict.RunningContainer{ID: name, Name: name, LogPath: "/logs/" + name + "/0.log"})
		}
		other.Containers = []evict.RunningContainer{{ID: "b", Name: "b", LogPath: "/logs/b/0.log"}}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- u.Run(ctx) }()
		u.SetPods([]Pod{large, other}, true)
		time.Sleep(2 * slowTimeout)
		synctest.Wait()
		first := u.Usage(&other).Logs["b"]
		if first.Bytes != 5 {
			t.Errorf("after %v the other pod is %+v; want it measured", 2*slowTimeout, first)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if again := u.Usage(&other).Logs["b"]; !again.At.After(first.At) {
			t.Errorf("after 10s more the other pod was measured at %v; want it later than %v", again.At, first.At)
		}
		if u.jobs.slow != maxSlowPerPod {
			t.Errorf("%d slow walks; want %d", u.jobs.slow, maxSlowPerPod)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		synctest.Wait()
	})
}

// The intermediate result of a slow walk counts.
func TestIntermediateResultCounts(t *testing.T) {
	root := t.TempDir()
	for i := range 40 {
		if err := os.MkdirAll(filepath.Join(root, "logs", "c", strconv.Itoa(i)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	u := NewUsageMeter(UsageMeterOptions{Procfs: "/nowhere"})
	began, counted, release := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var once sync.Once // on a slow machine the directory is due again before the test ends
	u.measure = func(ctx context.Context, w *disk.Walker, path string, _ bool) (Measurement, error) {
		once.Do(func() {
			close(began)
			if _, err := w.Usage(ctx, path); err != nil {
				t.Error(err)
			}
			close(counted)
		})
		<-release
		return Measurement{}, errors.New("boom")
	}
	s := Pod{UID: "u", Containers: []evict.RunningContainer{{ID: "c", Name: "c", LogPath: filepath.Join(root, "logs/c/0.log")}}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- u.Run(ctx) }()
	u.SetPods([]Pod{s}, true)
	<-began
	<-counted
	if h := u.Usage(&s); h.Logs["c"].Inodes != 41 || !strings.Contains(h.Logs["c"].Incomplete, "has not ended") || h.Oldest.IsZero() {
		t.Errorf("Usage() during the walk = %+v; want 41 inodes so far", h)
	}
	close(release)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// nice returns the priority of the calling thread.
func nice(t *testing.T) int {
	s, err := process.ThreadScheduling()
	if err != nil {
		t.Error(err)
	}
	return s.Nice
}

// Walks run at ordinary priority, not at that of evictd.
func TestWalkPriority(t *testing.T) {
	kerneltest.RequireRaisePriority(t)
	ordinary := max(0, nice(t))
	u := NewUsageMeter(UsageMeterOptions{Procfs: "/nowhere"})
	seen := make(chan int)
	u.measure = func(context.Context, *disk.Walker, string, bool) (Measurement, error) {
		seen <- nice(t)
		return Measurement{Method: "walk"}, nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- u.Run(ctx) }()
	u.SetPods([]Pod{{UID: "u", Containers: []evict.RunningContainer{{ID: "c", Name: "c", LogPath: "/logs/c/0.log"}}}}, false)
	if got := <-seen; got != ordinary {
		t.Errorf("nice %d; want %d", got, ordinary)
	}
	cancel()
	<-done
}

// While a disk stays low, walks take at most their share of a processor, however
// much there is to walk.
func TestWalkBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := NewUsageMeter(UsageMeterOptions{Procfs: "/nowhere"})
		var cpu threadTimes
		u.cpu = cpu.read
		var mu sync.Mutex
		walks := map[string]int{}
		u.measure = func(_ context.Context, w *disk.Walker, path string, _ bool) (Measurement, error) {
			for range 100 { // 100 ms of work in all
				cpu.work(time.Millisecond)
				w.Pause()
			}
			mu.Lock()
			walks[path]++
			mu.Unlock()
			return Measurement{Method: "walk"}, nil
		}
		var pods []Pod
		for i := range 20 {
			name := strconv.Itoa(i)
			pods = append(pods, Pod{UID: name, Containers: []evict.RunningContainer{{ID: name, Name: name, LogPath: "/logs/" + name + "/0.log"}}})
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- u.Run(ctx) }()
		u.SetPods(pods, true)
		began := time.Now()
		time.Sleep(100 * time.Second)
		// Each walk may have used a little more than it was charged for.
		limit := time.Since(began)/budgetShare + budgetBurst + maxSlow*minThrottle/budgetShare + minThrottle
		if used := cpu.total(); used > limit || used < limit*9/10 {
			t.Errorf("%v of processor time in %v; want at most %v, and no less than the walks need", used, time.Since(began), limit)
		}
		mu.Lock()
		if len(walks) != len(pods) {
			t.Errorf("%d of %d directories were walked", len(walks), len(pods))
		}
		mu.Unlock()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second) // until the detached walks have ended
	})
}
