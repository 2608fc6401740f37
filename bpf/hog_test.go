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

	"github.com/evictd/evictd/kernel/kerneltest"
)

// hog is a process in a cgroup that allocates memory on commands.
type hog struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Reader
}

// helperProcess returns a command that runs one of the functions of TestHelperProcess in a
// separate process.
func helperProcess(name string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestHelperProcess$")
	cmd.Env = append(os.Environ(), "EVICTD_TEST_HELPER="+name)
	cmd.Stderr = os.Stderr
	return cmd
}

func startHog(t *testing.T, c cgroup) *hog {
	t.Helper()
	cmd := helperProcess("hog")
	in, out := kerneltest.Start(t, cmd)
	h := &hog{t, cmd, in, out}
	h.move(c)
	return h
}

// move moves the hog into a cgroup. Memory that it allocates from then on is charged there.
func (h *hog) move(c cgroup) {
	h.t.Helper()
	write(h.t, filepath.Join(c.dir, "cgroup.procs"), strconv.Itoa(h.cmd.Process.Pid))
}

// The sizes of the files that the commands "cache" and "write" write, in bytes.
const (
	cachedBytes  = 64 * mib
	writtenBytes = 64 << 10
)

// run sends a command and waits until the hog has done it: "grow BYTES", "shrink",
// "cache FILE", "activate FILE" or "write FILE".
func (h *hog) run(format string, args ...any) {
	h.t.Helper()
	h.send(format, args...)
	if line, err := h.out.ReadString('\n'); err != nil || line != "done\n" {
		h.t.Fatalf("answer of the hog = %q, %v; want done", line, err)
	}
}

func (h *hog) send(format string, args ...any) {
	h.t.Helper()
	if _, err := fmt.Fprintf(h.in, format+"\n", args...); err != nil {
		h.t.Fatal(err)
	}
}

// stop kills the hog and waits until it has exited.
func (h *hog) stop() {
	h.t.Helper()
	if err := h.cmd.Process.Kill(); err != nil {
		h.t.Fatal(err)
	}
	_ = h.cmd.Wait()
}

// TestHelperProcess is not a test: it is the entry of the helper processes of other tests.
func TestHelperProcess(t *testing.T) {
	switch name := os.Getenv("EVICTD_TEST_HELPER"); name {
	case "":
		return // not in a helper process
	case "hog":
		runHog(t)
	case "sampler":
		runSampler(t)
	case "no btf":
		runWithoutBTF(t)
	case "no capability":
		runWithoutCapability(t)
	default:
		t.Fatalf("unknown helper %q", name)
	}
}

func runHog(t *testing.T) {
	var mappings [][]byte
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		command, arg, _ := strings.Cut(lines.Text(), " ")
		switch command {
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
			mappings = append(mappings, b)
		case "shrink":
			for _, b := range mappings {
				if err := unix.Munmap(b); err != nil {
					t.Fatal(err)
				}
			}
			mappings = nil
		case "cache", "write":
			f, err := os.Create(arg)
			if err != nil {
				t.Fatal(err)
			}
			size := cachedBytes
			if command == "write" {
				size = writtenBytes
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
			t.Fatalf("unknown command %q", command)
		}
		fmt.Println("done")
	}
	os.Exit(0) // so that the test framework prints nothing
}

// activate brings a cold file into the active page cache: the classic LRU activates a page when
// it is read again (mm/swap.c: folio_mark_accessed), the multi-generational one when a page fault
// adds it (mm/swap.c: folio_add_lru).
func activate(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	mapped, err := unix.Mmap(int(f.Fd()), 0, cachedBytes, unix.PROT_READ, unix.MAP_SHARED)
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
