package reclaim

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/cri"
	"github.com/evictd/evictd/cri/critest"
)

// start is before the start of a synctest bubble's clock, in 2000.
var start = time.Date(1999, 1, 2, 3, 4, 5, 0, time.UTC)

func ids(images []cri.Image) string {
	var list []string
	for _, i := range images {
		list = append(list, i.ID)
	}
	return strings.Join(list, " ")
}

func TestInUse(t *testing.T) {
	image := cri.Image{ID: "sha256:aa", Tags: []string{"docker.io/library/busybox:latest", "localhost/b:1"}, Digests: []string{"docker.io/library/busybox@sha256:11"}}
	for _, tt := range []struct {
		by   string
		want bool
	}{
		{"sha256:aa", true}, {"aa", true}, {"localhost/b:1", true}, {"docker.io/library/busybox:latest", true}, {"busybox:latest", true},
		{"busybox", true}, {"docker.io/library/busybox", true}, {"docker.io/library/busybox@sha256:11", true}, {"busybox@sha256:11", true},
		{"localhost/b:2", false}, {"sha256:a", false}, {"b", false}, {"", false}, {"busybox:1", false},
	} {
		for _, c := range []cri.Container{{Image: tt.by}, {ImageRef: tt.by}} {
			if got := usedBy([]cri.Container{c}, "").has(&image); got != tt.want {
				t.Errorf("used by %+v: %t; want %t", c, got, tt.want)
			}
		}
		if got := usedBy(nil, tt.by).has(&image); got != tt.want {
			t.Errorf("used as sandbox image %q: %t; want %t", tt.by, got, tt.want)
		}
	}
}

func TestExclusiveBytes(t *testing.T) {
	images := []cri.Image{{ID: "own", Bytes: 1}, {ID: "shared", Bytes: 2}, {ID: "twice", Bytes: 4}, {ID: "unused", Bytes: 8}, {ID: "also", Bytes: 16}}
	got := exclusiveBytes(images, []cri.Container{
		{ID: "a1", SandboxID: "a", ImageRef: "own"}, {ID: "a2", SandboxID: "a", ImageRef: "shared"}, {ID: "b1", SandboxID: "b", ImageRef: "shared"},
		{ID: "c1", SandboxID: "c", ImageRef: "twice"}, {ID: "c2", SandboxID: "c", ImageRef: "twice"}, {ID: "c3", SandboxID: "c", ImageRef: "also"},
	})
	if diff := cmp.Diff(map[string]int64{"a1": 1, "c1": 4, "c3": 16}, got); diff != "" {
		t.Errorf("exclusiveBytes (-want +got):\n%s", diff)
	}
}

// Images are removed in the order of their last use, also after a restart.
func TestRemovable(t *testing.T) {
	images := []cri.Image{{ID: "a"}, {ID: "b"}, {ID: "c"}, {ID: "d", Pinned: true}, {ID: "e"}, {ID: "f"}}
	h := history{}
	used := func(names ...string) *inUse {
		var cs []cri.Container
		for _, n := range names {
			cs = append(cs, cri.Container{ImageRef: n})
		}
		return usedBy(cs, "")
	}
	h.update(images[:5], used("c", "e"), start)
	h.update(images[:5], used("a", "e"), start.Add(time.Hour))
	if got := ids(h.removable(images[:5], used("e"), time.Minute, start.Add(2*time.Hour))); got != "b c a" {
		t.Errorf("removable = %q; want the never used first, then by last use: b c a", got)
	}
	h.update(images, used(), start.Add(2*time.Hour)) // f is new
	restarted := history{}
	for _, u := range h.list() {
		restarted[u.ID] = u
	}
	if diff := cmp.Diff(h, restarted); diff != "" {
		t.Errorf("history after a restart (-want +got):\n%s", diff)
	}
	if got := ids(restarted.removable(images, used(), time.Minute, start.Add(2*time.Hour+59*time.Second))); got != "b c a e" {
		t.Errorf("removable = %q; want b c a e, without f, which is younger than a minute", got)
	}
	if got := ids(restarted.removable(images, used(), time.Minute, start.Add(2*time.Hour+time.Minute))); got != "b f c a e" {
		t.Errorf("removable = %q; want b f c a e", got)
	}
	if got := restarted.unusedFor("c", start.Add(3*time.Hour)); got != 3*time.Hour {
		t.Errorf("unusedFor(c) = %v; want 3h", got)
	}
	if got := restarted.unusedFor("b", start.Add(3*time.Hour)); got != 3*time.Hour {
		t.Errorf("unusedFor(b) = %v; want 3h since it was first seen", got)
	}
	h.update(images[:1], used(), start)
	if len(h) != 1 {
		t.Errorf("%d images in the history; want the listed one", len(h))
	}
}

// An image is kept if a container was made from it after the images were listed.
func TestImageUsedAfterList(t *testing.T) {
	server := critest.Start(t)
	server.SetImages(cri.Image{ID: "a", Bytes: 100}, cri.Image{ID: "b", Bytes: 100}, cri.Image{ID: "c", Bytes: 100})
	pod := server.AddPod(critest.Pod{})
	server.SetFault("RemoveImage", critest.Fault{Times: 1, Mutate: func(any) { server.AddContainer(pod.ID, critest.Container{Image: "b"}) }})
	client, err := cri.Connect(server.Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	r := New(Options{
		Runtime: client, Filesystems: &node{available: 50}, DryRun: func() bool { return false }, Kubelet: withKubelet(evict.Kubelet{Known: true}),
	}, Policy{Images: On, Settle: 50 * time.Millisecond, High: 100})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	r.Start(imageOrder)
	report := <-r.Done()
	if got := server.Images(); !slices.Equal(got, []string{"b"}) || !slices.Equal(report.Removed, []string{"a", "c"}) || report.Error != "" {
		t.Errorf("images %q, report %+v; want only b, and a and c removed", got, report)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
}

// Images unused for longer than MaxAge, and further images down to Low, are removed
// in one collection, each once.
func TestCollectUnusedAndOthers(t *testing.T) {
	n := &node{available: 50}
	images(n, "never", "old")
	run(t, n, Policy{Images: Auto, High: 85, Low: 76, MaxAge: 5 * time.Hour}, nil, func(r *Reclaimer) {
		now := time.Now()
		r.RestoreImageUses([]evict.ImageUse{{ID: "never", First: now.Add(-time.Hour)}, {ID: "old", First: now.Add(-10 * time.Hour), Last: now.Add(-9 * time.Hour)}})
		time.Sleep(signal.KubeletInterval + 5*time.Second)
		synctest.Wait()
		if got := n.removals(); got != "image old, image never" {
			t.Errorf("removed %q; want old for its age, then never for the high mark", got)
		}
		if reports := r.Reports(); len(reports) != 1 || !slices.Equal(reports[0].Removed, []string{"old", "never"}) || reports[0].Signal != signal.ImageFsAvailable {
			t.Errorf("reports %+v; want one with both", reports)
		}
	})
}
