package bpf

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// hog is a process in a cgroup that takes memory as it is told.
type hog struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Reader
}

// body runs one of the bodies below in a process of its own.
func body(name string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestBody$")
	cmd.Env = append(os.Environ(), "EVICTD_TEST_BODY="+name)
	cmd.Stderr = os.Stderr
	return cmd
}

func startHog(t *testing.T, c cgroup) *hog {
	t.Helper()
	cmd := body("hog")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	h := &hog{t, cmd, in, bufio.NewReader(out)}
	h.move(c)
	return h
}

// move puts the hog into a cgroup, with what it takes from then on.
func (h *hog) move(c cgroup) {
	h.t.Helper()
	write(h.t, filepath.Join(c.dir, "cgroup.procs"), strconv.Itoa(h.cmd.Process.Pid))
}

// What "cache" and "write" leave in the page cache.
const (
	cached  = 64 * mib
	written = 64 << 10
)

// do tells the hog: "grow BYTES", "shrink", "cache FILE" or "write FILE".
func (h *hog) do(format string, args ...any) {
	h.t.Helper()
	h.tell(format, args...)
	if line, err := h.out.ReadString('\n'); err != nil || line != "done\n" {
		h.t.Fatalf("hog says %q, %v; want done", line, err)
	}
}

func (h *hog) tell(format string, args ...any) {
	h.t.Helper()
	if _, err := fmt.Fprintf(h.in, format+"\n", args...); err != nil {
		h.t.Fatal(err)
	}
}

// stop ends the hog and waits until it is gone.
func (h *hog) stop() {
	h.t.Helper()
	if err := h.cmd.Process.Kill(); err != nil {
		h.t.Fatal(err)
	}
	_ = h.cmd.Wait()
}

// TestBody is no test: it is what processes run that tests start.
func TestBody(t *testing.T) {
	switch name := os.Getenv("EVICTD_TEST_BODY"); name {
	case "":
		return // it is the body of a process that other tests run
	case "hog":
		runHog(t)
	case "sampler":
		runSampler(t)
	case "no btf":
		runWithoutBTF(t)
	case "no capability":
		runWithoutCapability(t)
	default:
		t.Fatalf("no body %q", name)
	}
}

func runHog(t *testing.T) {
	var held [][]byte
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		order, arg, _ := strings.Cut(lines.Text(), " ")
		switch order {
		case "grow":
			size, err := strconv.Atoi(arg)
			if err != nil {
				t.Fatal(err)
			}
			b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
			if err != nil {
				t.Fatal(err)
			}
			for i := 0; i < len(b); i += 4096 {
				b[i] = 1
			}
			held = append(held, b)
		case "shrink":
			for _, b := range held {
				if err := unix.Munmap(b); err != nil {
					t.Fatal(err)
				}
			}
			held = nil
		case "cache", "write":
			f, err := os.Create(arg)
			if err != nil {
				t.Fatal(err)
			}
			size := cached
			if order == "write" {
				size = written
			}
			for piece := make([]byte, min(size, mib)); size > 0; size -= len(piece) {
				if _, err := f.Write(piece); err != nil {
					t.Fatal(err)
				}
			}
			if err := f.Sync(); err != nil {
				t.Fatal(err)
			}
			f.Close()
		case "activate":
			if err := activate(arg); err != nil {
				t.Fatal(err)
			}
		default:
			t.Fatalf("no order %q", order)
		}
		fmt.Println("done")
	}
	os.Exit(0) // without the word that the test passed
}

// activate makes a file's page cache active: the classic LRU activates what is read
// again (mm/swap.c: folio_mark_accessed), the multi-generational one what is added by
// a page fault (mm/swap.c: folio_add_lru).
func activate(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return err
	}
	mapped, err := unix.Mmap(int(f.Fd()), 0, cached, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	defer unix.Munmap(mapped)
	var sum byte
	for i := 0; i < len(mapped); i += 4096 {
		sum += mapped[i]
	}
	touched = sum
	for range 3 {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, f); err != nil {
			return err
		}
	}
	return nil
}

// touched keeps the compiler from dropping the reads of mapped memory.
var touched byte
