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

// TestProactiveReclaim: unused memory is reclaimed during the grace period of a soft threshold, so that no pod is
// evicted. With reclaim off, a pod is evicted.
func TestProactiveReclaim(t *testing.T) {
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
		{"anonymous", needSwap, holdArgs(size)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.needs(t)
			for _, mode := range []string{"auto", "off"} {
				t.Run(mode, func(t *testing.T) { testProactiveReclaim(t, mode, tt.takes, size) })
			}
		})
	}
}

// testProactiveReclaim fills the pods' memory and checks that a pod is evicted only if the mode is off.
func testProactiveReclaim(t *testing.T, mode string, takes []string, size int64) {
	grace := node.ScaleTimeout(8 * time.Second)
	n := startNode(t, gibibyte)
	pods := []*pod{runPod(t, n, node.PodSpec{Name: "bystander", Containers: oneContainer(holdArgs(32 * mebibyte))}).waitUsage(32 * mebibyte)}
	for i := range 3 {
		pods = append(pods, runPod(t, n, node.PodSpec{Name: fmt.Sprintf("unused-%d", i), Containers: oneContainer(takes)}).waitUsage(size))
	}
	d := startDaemon(t, n, softSettings(grace.String(), "reclaim: {memory: "+mode+"}"), pods...)
	if mode == "off" {
		d.waitStatus("an eviction", func(s *control.Status) bool { return len(s.Records) > 0 })
		return
	}
	s := d.waitStatus("soft threshold no longer met", func(s *control.Status) bool { return !softThreshold(t, s).Met && freedProactively(s) > 0 })
	t.Logf("%d MiB reclaimed", freedProactively(&s)/mebibyte)
	time.Sleep(grace)
	if s := d.waitReadings(2); len(s.Records) > 0 {
		t.Errorf("records %+v; want none", s.Records)
	}
	mustLive(t, pods...)
}

func needClassicLRU(t *testing.T) {
	if !classicLRU() {
		t.Skip("needs the classic LRU lists: with the multi-generational ones, read(2) does not activate file cache")
	}
}

// classicLRU reports whether the kernel uses the classic active and inactive lists, not the multi-generational LRU.
func classicLRU() bool {
	mode, err := os.ReadFile("/sys/kernel/mm/lru_gen/enabled")
	return err != nil || string(mode) == "0x0000\n"
}

// needSwap adds swap until the test ends. It skips the test outside of a virtual machine.
func needSwap(t *testing.T) {
	if os.Getenv("EVICTD_TEST_VM") == "" {
		t.Skip("needs a virtual machine: swap affects the whole machine")
	}
	file := filepath.Join(t.TempDir(), "swap")
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), 0, 0, gibibyte); err != nil {
		t.Fatalf("allocate the swap file: %v", err)
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

// freedProactively returns the bytes that proactive reclaim has freed.
func freedProactively(s *control.Status) (freed int64) {
	for _, r := range s.Reclaims {
		if r.Kind == evict.ReclaimMemory {
			freed += r.Freed
		}
	}
	return freed
}
