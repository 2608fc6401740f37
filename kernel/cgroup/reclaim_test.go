package cgroup

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/kerneltest"
)

// Reclaim frees the requested amount of unused file cache. A request for more than
// there is frees all of it and fails with ErrNotReclaimed.
func TestNativeReclaim(t *testing.T) {
	h := native(t)
	name := kerneltest.Cgroup(t, h.Memory)
	c, err := h.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if h.v1() {
		if err := c.Reclaim(1 << 20); !errors.Is(err, kernel.ErrUnavailable) {
			t.Errorf("Reclaim() on v1 = %v; want ErrUnavailable", err)
		}
		if _, err := c.OOMGroup(); !errors.Is(err, kernel.ErrUnavailable) {
			t.Errorf("OOMGroup() on v1 = %v; want ErrUnavailable", err)
		}
		return
	}
	const size = 48 << 20
	file := filepath.Join(t.TempDir(), "cache")
	script := fmt.Sprintf("read go; dd if=/dev/zero of=%s bs=1M count=%d conv=fsync 2>/dev/null; echo done; read end", file, size>>20)
	in, out := kerneltest.Start(t, exec.Command("sh", "-c", script), h.Memory.Path(name))
	fmt.Fprintln(in, "go")
	if line, err := out.ReadString('\n'); line != "done\n" {
		t.Fatalf("the writer printed %q, %v; want done", line, err)
	}
	before, err := c.Memory()
	if err != nil || before.File < size/2 {
		t.Skipf("needs a filesystem whose cache is charged: %+v, %v", before, err)
	}
	if err := c.Reclaim(16 << 20); errors.Is(err, kernel.ErrUnavailable) {
		t.Skip("needs memory.reclaim (Linux 5.19): ", err)
	} else if err != nil {
		t.Error(err)
	}
	after, err := c.Memory()
	if err != nil || after.File+12<<20 > before.File {
		t.Errorf("cache after Reclaim(16 MiB) = %d MiB, %v; want 16 less than %d", after.File>>20, err, before.File>>20)
	}
	if err := c.Reclaim(1 << 30); !errors.Is(err, ErrNotReclaimed) {
		t.Errorf("Reclaim(1 GiB) = %v; want ErrNotReclaimed", err)
	}
	if last, err := c.Memory(); err != nil || last.File > 4<<20 {
		t.Errorf("cache after Reclaim(1 GiB) = %d MiB, %v; want at most 4", last.File>>20, err)
	}

	for _, want := range []bool{false, true} {
		value := map[bool]string{false: "0", true: "1"}[want]
		if err := os.WriteFile(h.Memory.Path(name, "memory.oom.group"), []byte(value), 0); err != nil {
			t.Fatal(err)
		}
		if got, err := c.OOMGroup(); got != want || err != nil {
			t.Errorf("OOMGroup() = %t, %v; want %t", got, err, want)
		}
	}
}
