package native_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/reclaim"
	"github.com/evictd/evictd/agent/state"
	"github.com/evictd/evictd/cri"
	"github.com/evictd/evictd/tests/node"
)

// savedState reads evictd's state file. It returns an empty state if there is none.
func (d *daemon) savedState() (saved state.Saved) {
	d.t.Helper()
	content, err := os.ReadFile(filepath.Join(d.stateDir(), "state.json"))
	if err != nil {
		return saved
	}
	if err := json.Unmarshal(content, &saved); err != nil {
		d.t.Fatal(err)
	}
	return saved
}

// knownUses returns the uses of images in the state file, by ID.
func (d *daemon) knownUses() map[string]evict.ImageUse {
	d.t.Helper()
	uses := map[string]evict.ImageUse{}
	for _, u := range d.savedState().Images {
		uses[u.ID] = u
	}
	return uses
}

// usedPercent returns the used percentage of a filesystem, as evictd and the kubelet compute it.
func usedPercent(t *testing.T, dir string) float64 {
	t.Helper()
	s := available(t, dir)
	return 100 - float64(s.Available)*100/float64(s.Bytes)
}

// TestImageCollection: above the high threshold, images are removed until usage is below the low one: first those that
// were never used, then the least recently used, whose times survive a restart. An image in use and the sandbox image
// stay even if the low threshold is not reached. (containerd has the label io.cri-containerd.pinned since 1.7.)
//
// Complexity: filling a real filesystem is expensive, so the test checks everything on one.
//
//gocyclo:ignore
func TestImageCollection(t *testing.T) {
	const low, high = 55, 65 // percent; an image takes 8 of them
	n, dir := startDiskNode(t, "ext4", gibibyte)
	const never, first, second, used = "localhost/b:never", "localhost/c:first", "localhost/a:second", "localhost/d:used"
	for _, name := range []string{never, first, second, used} {
		if err := n.AddImage(t.Context(), name, 40*mebibyte); err != nil {
			t.Fatal(err)
		}
	}
	runtime, err := cri.Connect(n.Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { runtime.Close() })
	images, err := runtime.Images(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	id := func(name string) string {
		for _, i := range images {
			if slices.Contains(i.Tags, name) {
				return i.ID
			}
		}
		t.Fatalf("image %s is not listed: %+v", name, images)
		return ""
	}
	bystander := runPod(t, n, node.PodSpec{Name: "bystander", Containers: []node.ContainerSpec{{}}})
	createFrom := func(name string) func() {
		remove, err := n.CreateFrom(t.Context(), bystander.Pod, name)
		if err != nil {
			t.Fatal(err)
		}
		return func() {
			if err := remove(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	createFrom(used)
	d := newDaemon(t, n, fmt.Sprintf(`nodefsPath: %s
imageMinimumGCAge: 1s
imageGCHighThresholdPercent: %d
imageGCLowThresholdPercent: %d
evictionHard: {nodefs.available: 1Mi}`, dir, high, low))
	for _, name := range []string{first, second} {
		release := createFrom(name)
		d.start() // evictd lists the images soon after
		eventually(t, "use of "+name, func() bool { return !d.knownUses()[id(name)].Last.IsZero() })
		d.kill(syscall.SIGTERM)
		release()
	}
	uses := d.knownUses()
	if a, b := uses[id(first)].Last, uses[id(second)].Last; !a.Before(b) || !uses[id(never)].Last.IsZero() {
		t.Fatalf("uses %+v; want %s before %s, and none of %s", uses, first, second, never)
	}

	fill := func(percent float64) {
		t.Helper()
		s := available(t, dir)
		f, err := os.CreateTemp(dir, "others")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := unix.Fallocate(int(f.Fd()), 0, 0, int64((percent-usedPercent(t, dir))/100*float64(s.Bytes))); err != nil {
			t.Fatal(err)
		}
	}
	fill(high + 1)
	collections := func(s *control.Status) (all []control.Reclaim) {
		for _, r := range s.Reclaims {
			if r.Kind == evict.ReclaimImages && r.Reason == reclaim.Threshold {
				t.Logf("collected %q, %d freed in %.2f s %s%s", r.Removed, r.Freed, r.TookSeconds, r.Note, r.Error)
				all = append(all, r)
			}
		}
		return all
	}
	d.start()
	s := d.waitStatus("collection of images", func(s *control.Status) bool { return len(collections(s)) > 0 })
	got := collections(&s)[0]
	if !slices.Equal(got.Removed, []string{never, first}) || got.Error != "" || got.Freed < 100*mebibyte {
		t.Errorf("collection %+v; want %s and %s removed in this order, and at least 100 MiB freed", got, never, first)
	}
	eventually(t, "usage below the low threshold", func() bool { return usedPercent(t, dir) <= low })

	fill(90)
	left := []string{node.HogImage, node.PauseImage, used}
	slices.Sort(left)
	eventually(t, "collection of the last unused image", func() bool {
		names, err := n.Images(t.Context())
		return err == nil && slices.Equal(names, left)
	})
	if names, err := n.Images(t.Context()); err != nil || !slices.Equal(names, left) || usedPercent(t, dir) < high {
		t.Errorf("images left at %.0f %%: %q, %v; want %q, above the high threshold", usedPercent(t, dir), names, err, left)
	}
	mustLive(t, bystander)
}
