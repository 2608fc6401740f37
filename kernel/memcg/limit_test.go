package memcg

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/kerneltest"
)

// The kernel counts a failed charge in the cgroup whose limit failed, so reclaim for a
// container's own limit can be distinguished from reclaim for the limit of all pods.
func TestLimitHits(t *testing.T) {
	h, err := cgroup.Find("/sys/fs/cgroup")
	if err != nil {
		t.Skip("needs a mounted cgroup filesystem: ", err)
	}
	_, pods := here(t, h.Version == cgroup.V2)
	container := pods.Path() + "/container"
	if err := os.Mkdir(h.Memory.Path(container), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(h.Memory.Path(container)) })
	limitFile := "memory.limit_in_bytes"
	if h.Version == cgroup.V2 {
		limitFile = "memory.max"
		write(t, h, pods.Path(), "cgroup.subtree_control", "+memory")
	}
	hits := func(path string) uint64 {
		t.Helper()
		n, err := LimitHits(h, path)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	// fill writes twice as much file cache as the limit of all pods.
	fill := func() {
		t.Helper()
		file := filepath.Join(t.TempDir(), "file")
		cmd := exec.Command("sh", "-c", `echo $$ >"$1" && exec dd if=/dev/zero of="$2" bs=1M count=256`, "sh", h.Memory.Path(container, "cgroup.procs"), file)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("fill file cache: %v\n%s", err, out)
		}
	}
	write(t, h, container, limitFile, "67108864")
	fill()
	if all, own := hits(pods.Path()), hits(container); all != 0 || own == 0 {
		t.Errorf("limit hits of the pods %d, of the container %d at the container's limit; want 0 and more than 0", all, own)
	}
	write(t, h, container, limitFile, "1073741824")
	before := hits(container)
	fill()
	if all, own := hits(pods.Path()), hits(container); all == 0 || own != before {
		t.Errorf("limit hits of the pods %d, of the container %d at the limit of the pods; want more than 0 and %d", all, own, before)
	}
}

func TestLimitHitsOfFiles(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		want       uint64
		err        error
	}{
		{"counted", "low 0\nhigh 0\nmax 1043\noom 0\noom_kill 0\noom_group_kill 0\n", 1043, nil},
		{"before Linux 5.2", "", 0, kernel.ErrUnavailable},
		{"broken", "max 1043\n", 0, errMissing},
	} {
		files := map[string]string{}
		if tc.text != "" {
			files["memory.events.local"] = tc.text
		}
		h, c := fixture(t, files)
		if got, err := LimitHits(h, c.Path()); got != tc.want || !errors.Is(err, tc.err) {
			t.Errorf("%s: LimitHits() = %d, %v; want %d, %v", tc.name, got, err, tc.want, tc.err)
		}
	}
	h, err := cgroup.Find(kernel.FS(kerneltest.Tree(t, map[string]string{"memory/pods/memory.failcnt": "17\n", "memory/memory.usage_in_bytes": "0\n"})))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := LimitHits(h, "/pods"); got != 17 || err != nil {
		t.Errorf("LimitHits() on v1 = %d, %v; want 17", got, err)
	}
	if _, err := LimitHits(h, "/gone"); !errors.Is(err, cgroup.ErrGone) {
		t.Errorf("LimitHits() of a cgroup that is gone = %v; want %v", err, cgroup.ErrGone)
	}
}
