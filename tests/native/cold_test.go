package native_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/tests/node"
)

// TestColdMemory: memory that nobody touches any more is taken back while the grace period of a soft threshold runs, so
// that nobody has to go; where that is switched off, somebody does.
func TestColdMemory(t *testing.T) {
	h, err := cgroup.Find("/sys/fs/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	if h.Version != cgroup.V2 {
		t.Skip("needs memory in a v2 tree")
	}
	const size = 200 * mebibyte
	for _, tt := range []struct {
		name  string
		needs func(*testing.T)
		takes []string
	}{
		{"cache", needClassicLRU, []string{"file", "-path", "/cache", "-bytes", fmt.Sprint(size), "-passes", "2"}},
		{"anonymous", needSwap, holding(size)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.needs(t)
			for _, mode := range []string{"auto", "off"} {
				t.Run(mode, func(t *testing.T) { coldMemory(t, mode, tt.takes, size) })
			}
		})
	}
}

// coldMemory fills the pods' memory and looks whether anybody has to go for it.
func coldMemory(t *testing.T, mode string, takes []string, size int64) {
	grace := node.Slow(8 * time.Second)
	n := startNode(t, gibibyte)
	pods := []*pod{runPod(t, n, node.PodSpec{Name: "busy", Containers: one(holding(32 * mebibyte))}).uses(32 * mebibyte)}
	for i := range 3 {
		pods = append(pods, runPod(t, n, node.PodSpec{Name: fmt.Sprintf("cold-%d", i), Containers: one(takes)}).uses(size))
	}
	d := startDaemon(t, n, soft(grace.String(), "reclaim: {memory: "+mode+"}"), pods...)
	if mode == "off" {
		d.until("a pod that goes", func(s *control.Status) bool { return len(s.Records) > 0 })
		return
	}
	s := d.until("soft threshold met no more", func(s *control.Status) bool { return !softThreshold(t, s).Met && coldIn(s) > 0 })
	t.Logf("%d MiB taken back", coldIn(&s)/mebibyte)
	time.Sleep(grace)
	if s := d.looks(2); len(s.Records) > 0 {
		t.Errorf("records %+v; want none", s.Records)
	}
	mustLive(t, pods...)
}

func needClassicLRU(t *testing.T) {
	if !classicLRU() {
		t.Skip("needs the classic LRU lists: with the multi-generational ones, reading makes no cache active")
	}
}

// classicLRU reports whether the kernel ages file cache by two lists, and not by generations.
func classicLRU() bool {
	mode, err := os.ReadFile("/sys/kernel/mm/lru_gen/enabled")
	return err != nil || string(mode) == "0x0000\n"
}

// needSwap gives a virtual machine swap until the test ends.
func needSwap(t *testing.T) {
	if os.Getenv("EVICTD_TEST_VM") == "" {
		t.Skip("needs a virtual machine: swap is everybody's")
	}
	file := filepath.Join(t.TempDir(), "swap")
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), 0, 0, gibibyte); err != nil {
		t.Fatalf("make room for swap: %v", err)
	}
	for _, c := range [][]string{{"mkswap", file}, {"swapon", file}} {
		if out, err := exec.Command(c[0], c[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", c[0], err, out)
		}
	}
	t.Cleanup(func() {
		if out, err := exec.Command("swapoff", file).CombinedOutput(); err != nil {
			t.Errorf("swapoff: %v: %s", err, out)
		}
	})
}

// coldIn is how much cold memory was taken back, in bytes.
func coldIn(s *control.Status) (freed int64) {
	for _, r := range s.Reclaims {
		if r.Kind == evict.ReclaimMemory {
			freed += r.Freed
		}
	}
	return freed
}
