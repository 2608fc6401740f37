package reclaim

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/cri"
)

// start is before the clock of a bubble begins, in 2000.
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

func TestExclusive(t *testing.T) {
	images := []cri.Image{{ID: "own", Bytes: 1}, {ID: "shared", Bytes: 2}, {ID: "twice", Bytes: 4}, {ID: "unused", Bytes: 8}, {ID: "also", Bytes: 16}}
	got := exclusive(images, []cri.Container{
		{ID: "a1", SandboxID: "a", ImageRef: "own"}, {ID: "a2", SandboxID: "a", ImageRef: "shared"}, {ID: "b1", SandboxID: "b", ImageRef: "shared"},
		{ID: "c1", SandboxID: "c", ImageRef: "twice"}, {ID: "c2", SandboxID: "c", ImageRef: "twice"}, {ID: "c3", SandboxID: "c", ImageRef: "also"},
	})
	if diff := cmp.Diff(map[string]int64{"a1": 1, "c1": 4, "c3": 16}, got); diff != "" {
		t.Errorf("exclusive (-want +got):\n%s", diff)
	}
}

// Images go in the order in which they were used last, whatever a restart had
// forgotten otherwise.
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
	h.see(images[:5], used("c", "e"), start)
	h.see(images[:5], used("a", "e"), start.Add(time.Hour))
	if got := ids(h.removable(images[:5], used("e"), time.Minute, start.Add(2*time.Hour))); got != "b c a" {
		t.Errorf("removable = %q; want those never used, then the least recently used: b c a", got)
	}
	h.see(images, used(), start.Add(2*time.Hour)) // f is new
	restarted := history{}
	for _, u := range h.list() {
		restarted[u.ID] = u
	}
	if diff := cmp.Diff(h, restarted); diff != "" {
		t.Errorf("history after a restart (-want +got):\n%s", diff)
	}
	if got := ids(restarted.removable(images, used(), time.Minute, start.Add(2*time.Hour+59*time.Second))); got != "b c a e" {
		t.Errorf("removable = %q; want b c a e, and not what is younger than a minute", got)
	}
	if got := ids(restarted.removable(images, used(), time.Minute, start.Add(2*time.Hour+time.Minute))); got != "b f c a e" {
		t.Errorf("removable = %q; want b f c a e", got)
	}
	if got := restarted.idle("c", start.Add(3*time.Hour)); got != 3*time.Hour {
		t.Errorf("idle(c) = %v; want 3h", got)
	}
	if got := restarted.idle("b", start.Add(3*time.Hour)); got != 3*time.Hour {
		t.Errorf("idle(b) = %v; want 3h since it was first seen", got)
	}
	h.see(images[:1], used(), start)
	if len(h) != 1 {
		t.Errorf("%d images are remembered; want the one that is there", len(h))
	}
}
