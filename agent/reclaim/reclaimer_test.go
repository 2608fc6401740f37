package reclaim

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/cri"
)

// node is a fake runtime and its filesystem: removing an image or a sandbox frees
// its bytes after freeDelay.
type node struct {
	mu             sync.Mutex
	images         []cri.Image
	sandboxes      []cri.Sandbox
	containers     []cri.Container
	logs           string
	logsOf         map[string]string // by container ID; replaces logs if set
	freeDelay      time.Duration
	listErr        error
	writtenPerRead int64 // bytes that are written between two readings
	readOnly       bool
	stopFailures   int             // the number of calls of StopSandbox that fail
	hungIDs        map[string]bool // removals that hang until their context ends

	available int64
	sizes     map[string]int64 // bytes that a removal frees, by ID
	removed   []string
}

const capacity = 1000

func (n *node) Images(context.Context) ([]cri.Image, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]cri.Image(nil), n.images...), n.listErr
}
func (n *node) Sandboxes(context.Context) ([]cri.Sandbox, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]cri.Sandbox(nil), n.sandboxes...), nil
}
func (n *node) Containers(context.Context) ([]cri.Container, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]cri.Container(nil), n.containers...), nil
}
func (n *node) ContainerDetail(_ context.Context, id string) (cri.ContainerDetail, error) {
	if n.logsOf != nil {
		return cri.ContainerDetail{Finished: start, LogPath: n.logsOf[id]}, nil
	}
	return cri.ContainerDetail{Finished: start, LogPath: n.logs}, nil
}
func (n *node) SandboxImage(context.Context) (string, error) { return "pause", nil }
func (n *node) StopSandbox(_ context.Context, id string) error {
	n.mu.Lock()
	n.stopFailures--
	failed := n.stopFailures >= 0
	n.mu.Unlock()
	if failed {
		return errors.New("ttrpc: closed")
	}
	return n.remove("stop "+id, "")
}
func (n *node) RemoveSandbox(ctx context.Context, id string) error {
	return n.removeUnlessHung(ctx, "sandbox "+id, id)
}
func (n *node) RemoveContainer(ctx context.Context, id string) error {
	return n.removeUnlessHung(ctx, "container "+id, id)
}
func (n *node) RemoveImage(ctx context.Context, id string) error {
	return n.removeUnlessHung(ctx, "image "+id, id)
}
func (n *node) SyncFreed(signal.Signal) {}

// removeUnlessHung is remove, or for an ID in hungIDs a call that ends after
// [cri.StopMargin], as calls of a cri.Client do.
func (n *node) removeUnlessHung(ctx context.Context, what, id string) error {
	n.mu.Lock()
	hangs := n.hungIDs[id]
	n.mu.Unlock()
	if !hangs {
		return n.remove(what, id)
	}
	ctx, cancel := context.WithTimeout(ctx, cri.StopMargin)
	defer cancel()
	<-ctx.Done()
	return ctx.Err()
}

// countSandboxes returns the number of sandboxes.
func (n *node) countSandboxes() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.sandboxes)
}

func (n *node) Read(now time.Time, into *signal.Observations) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.available -= n.writtenPerRead
	o := signal.Observation{Status: signal.Observed, Available: n.available, Capacity: capacity, ReadOnly: n.readOnly, Time: now}
	into[signal.NodeFsAvailable], into[signal.ImageFsAvailable] = o, o
	into[signal.ImageFsInodesFree] = signal.Observation{Status: signal.Observed, Available: capacity, Capacity: capacity}
}

func (n *node) remove(what, id string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.removed = append(n.removed, what)
	kept := n.images[:0:0]
	for _, i := range n.images {
		if i.ID != id {
			kept = append(kept, i)
		}
	}
	n.images = kept
	n.sandboxes = slices.DeleteFunc(n.sandboxes, func(s cri.Sandbox) bool { return s.ID == id })
	bytes := n.sizes[id]
	time.AfterFunc(n.freeDelay, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.available += bytes
	})
	return nil
}

func (n *node) removals() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return strings.Join(n.removed, ", ")
}

// withKubelet returns a function for Options.Kubelet.
func withKubelet(k evict.Kubelet) func() evict.Kubelet { return func() evict.Kubelet { return k } }

// run runs a Reclaimer in a synctest bubble, with images first seen an hour ago.
func run(t *testing.T, n *node, p Policy, change func(*Options), f func(r *Reclaimer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		o := Options{Runtime: n, Filesystems: n, DryRun: func() bool { return false }, Kubelet: withKubelet(evict.Kubelet{Known: true})}
		if change != nil {
			change(&o)
		}
		if p.Settle == 0 {
			p.Settle = time.Second
		}
		if p.High == 0 {
			p.High = 100
		}
		r := New(o, p)
		var uses []evict.ImageUse
		for i, image := range n.images {
			uses = append(uses, evict.ImageUse{ID: image.ID, First: time.Now().Add(-time.Hour), Last: time.Now().Add(time.Duration(i-30) * time.Minute)})
		}
		r.RestoreImageUses(uses)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		f(r)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func images(n *node, ids ...string) {
	n.sizes = map[string]int64{}
	for _, id := range ids {
		n.images = append(n.images, cri.Image{ID: id, Bytes: 100})
		n.sizes[id] = 100
	}
}

var imageOrder = evict.Reclaim{Kind: evict.ReclaimImages, Signal: signal.NodeFsAvailable, Deficit: 150}

// As many images are removed as the deficit needs, also if space is freed late.
func TestImagesUnderPressure(t *testing.T) {
	for _, freeDelay := range []time.Duration{0, 700 * time.Millisecond} {
		n := &node{available: 50, freeDelay: freeDelay}
		images(n, "a", "b", "c", "d")
		run(t, n, Policy{Images: Auto}, nil, func(r *Reclaimer) {
			r.Start(imageOrder)
			report := <-r.Done()
			if got := n.removals(); got != "image a, image b" {
				t.Errorf("space freed after %v: removed %q; want a and b", freeDelay, got)
			}
			if report.Freed != 200 || report.Error != "" || cmp.Diff([]string{"a", "b"}, report.Removed) != "" || report.Duration < freeDelay {
				t.Errorf("space freed after %v: report %+v", freeDelay, report)
			}
		})
	}
}

// More images are removed if the first free less than their size, and all if all do
// not suffice.
func TestImagesShareLayers(t *testing.T) {
	n := &node{available: 50}
	images(n, "a", "b", "c", "d")
	for id := range n.sizes {
		n.sizes[id] = 60
	}
	run(t, n, Policy{Images: Auto}, nil, func(r *Reclaimer) {
		r.Start(imageOrder)
		<-r.Done()
		if got := n.removals(); got != "image a, image b, image c" {
			t.Errorf("removed %q; want a, b and c", got)
		}
		r.Start(evict.Reclaim{Kind: evict.ReclaimImages, Signal: signal.NodeFsAvailable, Deficit: 900})
		if report := <-r.Done(); len(report.Removed) != 1 {
			t.Errorf("report %+v; want only the last image removed", report)
		}
	})
}

// Fewer images are removed if the first free more than their size.
func TestImagesFreeMoreThanTheirSize(t *testing.T) {
	n := &node{available: 50}
	images(n, "a", "b", "c", "d")
	for id := range n.sizes {
		n.sizes[id] = 250
	}
	run(t, n, Policy{Images: Auto}, nil, func(r *Reclaimer) {
		r.Start(evict.Reclaim{Kind: evict.ReclaimImages, Signal: signal.NodeFsAvailable, Deficit: 300})
		<-r.Done()
		if got := n.removals(); got != "image a, image b" {
			t.Errorf("removed %q; want a and b", got)
		}
	})
}

func TestImagesNotRemoved(t *testing.T) {
	kubeletIs := func(k evict.Kubelet) func(*Options) { return func(o *Options) { o.Kubelet = withKubelet(k) } }
	for _, tt := range []struct {
		name   string
		n      *node
		p      Policy
		change func(*Options)
		want   string
		note   string
	}{
		{"off", &node{}, Policy{Images: Off}, nil, "", "imageGC is off"},
		{"a kubelet's pods", &node{}, Policy{Images: Auto}, kubeletIs(evict.Kubelet{Known: true, HasSandboxes: true}), "", "kubelet of these pods collects"},
		{"a kubelet", &node{}, Policy{Images: Auto}, kubeletIs(evict.Kubelet{Known: true, Process: "pid 7"}), "", "a kubelet runs"},
		{"kubelet unknown", &node{}, Policy{Images: Auto}, kubeletIs(evict.Kubelet{}), "", "not listed yet"},
		{"on with a kubelet", &node{}, Policy{Images: On}, kubeletIs(evict.Kubelet{Known: true, HasSandboxes: true}), "image a, image b", ""},
		{"kubelet absent, sandboxes left", &node{}, Policy{Images: Auto}, kubeletIs(evict.Kubelet{Known: true, HasSandboxes: true, Absent: true}), "image a, image b", ""},
		{"young", &node{}, Policy{Images: On, MinAge: 2 * time.Hour}, nil, "", ""},
		{"in use by a dead container", &node{containers: []cri.Container{{ID: "c", ImageRef: "a", State: cri.StateExited}}}, Policy{Images: On}, nil, "image b, image c", ""},
		{"dry run", &node{}, Policy{Images: On}, func(o *Options) { o.DryRun = func() bool { return true } }, "", ""},
	} {
		tt.n.available = 50
		images(tt.n, "a", "b", "c", "d")
		run(t, tt.n, tt.p, tt.change, func(r *Reclaimer) {
			r.Start(imageOrder)
			report := <-r.Done()
			if got := tt.n.removals(); got != tt.want || !strings.Contains(report.Note, tt.note) || report.Note != "" && tt.note == "" {
				t.Errorf("%s: removed %q, note %q; want %q, %q", tt.name, got, report.Note, tt.want, tt.note)
			}
			if report.DryRun && cmp.Diff([]string{"a", "b"}, report.Removed) != "" {
				t.Errorf("%s: report %+v; want the images that would be removed", tt.name, report)
			}
		})
	}
}

// Nothing is removed between Low and High; from High on, images are removed down to
// Low.
func TestCollect(t *testing.T) {
	n := &node{available: 160}
	images(n, "a", "b", "c", "d", "e")
	run(t, n, Policy{Images: Auto, High: 85, Low: 70}, nil, func(r *Reclaimer) {
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if got := n.removals(); got != "" {
			t.Errorf("removed %q at 84 %%; want nothing", got)
		}
		n.mu.Lock()
		n.available = 150
		n.mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := n.removals(); got != "image a, image b" {
			t.Errorf("removed %q at 85 %%; want a and b, down to 65 %%", got)
		}
		reports := r.Reports()
		if len(reports) != 1 || reports[0].Reason != Threshold || reports[0].Freed != 200 {
			t.Errorf("reports %+v", reports)
		}
	})
}

func TestCollectUnused(t *testing.T) {
	n := &node{available: 900}
	images(n, "a", "b", "c") // used 30, 29 and 28 minutes ago
	run(t, n, Policy{Images: Auto, High: 85, Low: 80, MaxAge: 35 * time.Minute}, nil, func(r *Reclaimer) {
		time.Sleep(6*time.Minute + 30*time.Second)
		synctest.Wait()
		if got := n.removals(); got != "image a, image b" && got != "image a" {
			t.Errorf("removed %q; want those unused for 35 minutes", got)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := n.removals(); got != "image a, image b, image c" {
			t.Errorf("removed %q; want all", got)
		}
		if reports := r.Reports(); len(reports) == 0 || reports[0].Reason != Age {
			t.Errorf("reports %+v", reports)
		}
	})
}

// Images are not removed from a read-only filesystem.
func TestCollectFromReadOnly(t *testing.T) {
	n := &node{available: 50, readOnly: true}
	images(n, "a", "b")
	run(t, n, Policy{Images: Auto, High: 85, Low: 80, MaxAge: 35 * time.Minute}, nil, func(r *Reclaimer) {
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := n.removals(); got != "" {
			t.Errorf("removed %q; want nothing", got)
		}
		n.mu.Lock()
		n.readOnly = false
		n.mu.Unlock()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if got := n.removals(); got != "image a, image b" && got != "image b, image a" {
			t.Errorf("removed %q after it became writable; want both", got)
		}
	})
}

// Dead pods are removed oldest first, with their logs, until the deficit is
// covered.
func TestDeadUnderPressure(t *testing.T) {
	root := t.TempDir()
	log := filepath.Join(root, "logs", "ns_p0_u0", "main", "0.log")
	if err := os.MkdirAll(filepath.Dir(log), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(log, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n := &node{available: 50, logs: log, sizes: map[string]int64{"s0": 100, "s1": 100, "s2": 100}}
	for i, id := range []string{"s0", "s1", "s2"} {
		n.sandboxes = append(n.sandboxes, cri.Sandbox{ID: id, Namespace: "ns", Name: "p" + id[1:], UID: "u" + id[1:], Created: start.Add(time.Duration(i) * time.Second)})
		n.containers = append(n.containers, cri.Container{ID: "c" + id, SandboxID: id, Name: "main", State: cri.StateExited, Created: start})
	}
	waited := time.Duration(0)
	run(t, n, Policy{}, func(o *Options) {
		o.Unmeasured = func(since time.Time) string {
			if waited = time.Since(since); waited > 5*time.Second {
				return ""
			}
			return "pod a"
		}
	}, func(r *Reclaimer) {
		r.Start(evict.Reclaim{Kind: evict.ReclaimContainers, Signal: signal.NodeFsAvailable, Deficit: 150})
		report := <-r.Done()
		if got := n.removals(); got != "sandbox s0, sandbox s1" {
			t.Errorf("removed %q; want s0 and s1", got)
		}
		if cmp.Diff([]string{"sandbox ns/p0", "sandbox ns/p1"}, report.Removed) != "" || report.Freed != 200 {
			t.Errorf("report %+v", report)
		}
		if waited < 5*time.Second {
			t.Errorf("reported after %v; want it after the pods' usage was measured", waited)
		}
	})
	if _, err := os.Stat(filepath.Join(root, "logs", "ns_p0_u0")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("stat of the first pod's logs = %v; want ErrNotExist", err)
	}
}

// An evicted sandbox is stopped and removed at once.
func TestEvictedRemoved(t *testing.T) {
	root := t.TempDir()
	log := filepath.Join(root, "logs", "_s0_s0", "main", "0.log")
	if err := os.MkdirAll(filepath.Dir(log), 0o755); err != nil {
		t.Fatal(err)
	}
	n := &node{available: 50, logs: log, sizes: map[string]int64{"s0": 500, "s1": 100}}
	n.containers = []cri.Container{{ID: "c0", SandboxID: "s0", Name: "main", State: cri.StateExited}}
	for _, id := range []string{"s0", "s1"} {
		n.sandboxes = append(n.sandboxes, cri.Sandbox{ID: id, Name: id, UID: id, Ready: true, Created: start})
	}
	run(t, n, Policy{}, nil, func(r *Reclaimer) {
		r.Evicted("s0", EvictedUsage{})
		r.Start(evict.Reclaim{Kind: evict.ReclaimContainers, Signal: signal.NodeFsAvailable, Deficit: 10})
		<-r.Done()
		if got := n.removals(); got != "stop s0, sandbox s0" {
			t.Errorf("calls %q; want s0 stopped and removed", got)
		}
	})
	if _, err := os.Stat(filepath.Join(root, "logs", "_s0_s0")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("stat of its logs = %v; want ErrNotExist", err)
	}
}

// The removal of an evicted sandbox is retried after an error of the runtime.
func TestEvictedRemovedAfterRetry(t *testing.T) {
	n := &node{available: 50, sizes: map[string]int64{"s0": 500}, stopFailures: 2}
	n.sandboxes = []cri.Sandbox{{ID: "s0", Name: "s0", UID: "s0", Ready: true, Created: start}}
	run(t, n, Policy{}, nil, func(r *Reclaimer) {
		r.Evicted("s0", EvictedUsage{})
		r.Start(evict.Reclaim{Kind: evict.ReclaimContainers, Signal: signal.NodeFsAvailable, Deficit: 10})
		if report := <-r.Done(); report.Error != "" || n.removals() != "stop s0, sandbox s0" {
			t.Errorf("report %+v, calls %q; want s0 stopped and removed", report, n.removals())
		}
	})
}

// A reclaim waits until the runtime reports evicted containers as exited, so that
// no other pod is evicted for their space.
func TestEvictedExitsLate(t *testing.T) {
	n := &node{available: 50, sizes: map[string]int64{"s0": 500}}
	n.sandboxes = []cri.Sandbox{{ID: "s0", Name: "s0", UID: "s0", Ready: true, Created: start}}
	n.containers = []cri.Container{{ID: "c0", SandboxID: "s0", Name: "main", State: cri.StateRunning}}
	run(t, n, Policy{}, nil, func(r *Reclaimer) {
		r.Evicted("s0", EvictedUsage{})
		time.AfterFunc(3*time.Second, func() {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.containers[0].State = cri.StateExited
		})
		order := evict.Reclaim{Kind: evict.ReclaimContainers, Signal: signal.NodeFsAvailable, Deficit: 10}
		r.Start(order)
		if report := <-r.Done(); n.removals() != "stop s0, sandbox s0" || report.Freed != 500 || report.Duration < 3*time.Second {
			t.Errorf("calls %q, report %+v; want s0 removed after it has exited", n.removals(), report)
		}
		// The wait is bounded, and there is none for a sandbox after NotEvicted.
		n.mu.Lock()
		n.available = 50
		n.sandboxes = []cri.Sandbox{{ID: "s1", Name: "s0", UID: "s0", Ready: true, Created: start}}
		n.containers[0].SandboxID, n.containers[0].State = "s1", cri.StateRunning
		n.mu.Unlock()
		r.Evicted("s1", EvictedUsage{})
		r.Start(order)
		if report := <-r.Done(); report.Duration < containerExitTimeout || report.Duration > containerExitTimeout+2*time.Second || len(report.Removed) > 0 {
			t.Errorf("report %+v; want nothing removed, after %v", report, containerExitTimeout)
		}
		r.NotEvicted("s1")
		r.Start(order)
		if report := <-r.Done(); report.Duration > 2*time.Second {
			t.Errorf("report %+v; want it at once", report)
		}
	})
}

// The reclaim waits longer, up to a bound, for the space of an evicted pod if its
// usage is known.
func TestEvictedFreesLate(t *testing.T) {
	for _, tt := range []struct {
		freeDelay time.Duration
		usage     EvictedUsage
		took      time.Duration // at least, and less than two seconds more
	}{
		{6 * time.Second, EvictedUsage{Amount: 500}, 6 * time.Second},
		{6 * time.Second, EvictedUsage{}, time.Second},
		{6 * time.Second, EvictedUsage{Amount: 500, Inodes: true}, time.Second},
		{time.Hour, EvictedUsage{Amount: 500}, lateFreeTimeout},
		{0, EvictedUsage{Amount: 500}, 0},
	} {
		n := &node{available: 50, freeDelay: tt.freeDelay, sizes: map[string]int64{"s0": 500}}
		n.sandboxes = []cri.Sandbox{{ID: "s0", Name: "s0", UID: "s0", Created: start}}
		run(t, n, Policy{}, nil, func(r *Reclaimer) {
			r.Evicted("s0", tt.usage)
			r.Start(evict.Reclaim{Kind: evict.ReclaimContainers, Signal: signal.NodeFsAvailable, Deficit: 400})
			if report := <-r.Done(); report.Duration < tt.took || report.Duration > tt.took+2*time.Second {
				t.Errorf("space freed after %v, usage %+v: took %v; want %v", tt.freeDelay, tt.usage, report.Duration, tt.took)
			}
		})
	}
}

// A reclaim waits once for the kubelet to remove an evicted pod's volumes, until
// [lateFreeTimeout] after the pod's end, unless the target is reached before.
func TestKubeletFreesLate(t *testing.T) {
	for _, tt := range []struct {
		name   string
		freed  time.Duration // when 500 bytes are freed, after the order
		before time.Duration // when the pod ended, before the order
		usage  EvictedUsage
		took   time.Duration // at least, and less than two seconds more
		second time.Duration // same for a second order
	}{
		{"late", 12 * time.Second, 0, EvictedUsage{Amount: 500}, 12 * time.Second, 0},
		{"never", time.Hour, 0, EvictedUsage{Amount: 500}, lateFreeTimeout, time.Second},
		{"never, part of the wait has passed", time.Hour, 20 * time.Second, EvictedUsage{Amount: 500}, lateFreeTimeout - 20*time.Second, time.Second},
		{"never, the wait has passed", time.Hour, time.Minute, EvictedUsage{Amount: 500}, time.Second, time.Second},
		{"other unit", 12 * time.Second, 0, EvictedUsage{Amount: 500, Inodes: true}, time.Second, time.Second},
	} {
		n := &node{available: 50}
		run(t, n, Policy{}, nil, func(r *Reclaimer) {
			r.EvictedFromKubelet("pod", tt.usage)
			time.Sleep(tt.before)
			time.AfterFunc(tt.freed, func() {
				n.mu.Lock()
				defer n.mu.Unlock()
				n.available += 500
			})
			for i, took := range []time.Duration{tt.took, tt.second} {
				r.Start(evict.Reclaim{Kind: evict.ReclaimContainers, Signal: signal.NodeFsAvailable, Deficit: 600})
				if report := <-r.Done(); report.Duration < took || report.Duration > took+2*time.Second {
					t.Errorf("%s: order %d took %v; want %v", tt.name, i+1, report.Duration, took)
				}
			}
		})
	}
}

// The kubelet keeps the volumes of a pod whose containers it restarts: the wait for
// them ends.
func TestRevivedPodEndsWait(t *testing.T) {
	run(t, &node{available: 50}, Policy{}, nil, func(r *Reclaimer) {
		r.EvictedFromKubelet("pod", EvictedUsage{Amount: 500})
		r.EvictedFromKubelet("pod", EvictedUsage{Amount: 500})
		time.AfterFunc(5*time.Second, func() { r.Revived("pod") })
		r.Start(evict.Reclaim{Kind: evict.ReclaimContainers, Signal: signal.NodeFsAvailable, Deficit: 600})
		if report := <-r.Done(); report.Duration < 5*time.Second || report.Duration > 7*time.Second {
			t.Errorf("the order took %v; want 5 s, until Revived", report.Duration)
		}
	})
}

// Without pending space a reclaim does not wait, even if a pod writes.
func TestNoWaitWithoutPendingSpace(t *testing.T) {
	n := &node{available: 500, writtenPerRead: 10}
	run(t, n, Policy{}, nil, func(r *Reclaimer) {
		r.Start(evict.Reclaim{Kind: evict.ReclaimContainers, Signal: signal.NodeFsAvailable, Deficit: 100})
		if report := <-r.Done(); report.Duration > 2*time.Second {
			t.Errorf("took %v; want at most Settle", report.Duration)
		}
	})
}
