package memcg

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/epoll"
	"github.com/evictd/evictd/kernel/kerneltest"
)

// fixture returns a v2 hierarchy with one cgroup, /pod, and more files in it.
func fixture(t *testing.T, more map[string]string) (*cgroup.Hierarchy, *cgroup.Cgroup) {
	t.Helper()
	files := map[string]string{
		"cgroup.controllers": "cpu memory pids\n",
		"pod/memory.stat":    "anon 0\nfile 0\n",
		"pod/memory.current": "0\n",
		"pod/memory.max":     "max\n",
	}
	for name, content := range more {
		files["pod/"+name] = content
	}
	h, err := cgroup.Find(kernel.FS(kerneltest.Tree(t, files)))
	if err != nil {
		t.Fatal(err)
	}
	return h, open(t, h, "/pod")
}

func open(t *testing.T, h *cgroup.Hierarchy, name string) *cgroup.Cgroup {
	t.Helper()
	c, err := h.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

const limit = 128 << 20

// here creates a cgroup on this machine with a limit of 128 MiB. The test is
// skipped unless the memory controller is on the given version.
func here(t *testing.T, v2 bool) (*cgroup.Hierarchy, *cgroup.Cgroup) {
	t.Helper()
	h, err := cgroup.Find("/sys/fs/cgroup")
	if err != nil {
		t.Skip("needs a mounted cgroup filesystem: ", err)
	}
	if v2 != (h.Version == cgroup.V2) {
		t.Skip("needs the memory controller on the other version, not on " + h.Version.String())
	}
	name := kerneltest.Cgroup(t, h.Memory)
	dir := h.Memory.Path(name)
	file := "memory.limit_in_bytes"
	if v2 {
		file = "memory.max"
	}
	if _, err := os.Stat(filepath.Join(dir, file)); v2 && err != nil {
		t.Skip("needs memory in the root's cgroup.subtree_control: ", err)
	}
	write(t, h, name, file, strconv.Itoa(limit))
	return h, open(t, h, name)
}

func write(t *testing.T, h *cgroup.Hierarchy, name, file, content string) {
	t.Helper()
	if err := os.WriteFile(h.Memory.Path(name, file), []byte(content), 0); err != nil {
		t.Fatal(err)
	}
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Errorf("%s: not within 10 s", what)
			return
		}
	}
}

// TestGrow is the body of a process that other tests start, to control its memory.
// It executes commands from its standard input and answers each with a line:
//
//	grow BYTES OFFSET	touches that much more memory, and prints the time, in
//				nanoseconds since boot, at which it touched OFFSET
//	drop			unmaps all of it
//	read FILE		reads a file
func TestGrow(t *testing.T) {
	if os.Getenv("EVICTD_TEST_GROW") == "" {
		return // not started by another test
	}
	var mapped [][]byte
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var size, offset int
		var file string
		var at int64
		if n, _ := fmt.Sscanf(in.Text(), "grow %d %d", &size, &offset); n == 2 {
			b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
			if err != nil {
				t.Fatal(err)
			}
			// Huge pages would charge 2 MiB at once and make the offset inexact. A
			// kernel without them returns EINVAL.
			_ = unix.Madvise(b, unix.MADV_NOHUGEPAGE)
			for i := 0; i < size; i += os.Getpagesize() {
				b[i] = 1
				if i <= offset && offset < i+os.Getpagesize() {
					at = now()
				}
			}
			mapped = append(mapped, b)
		} else if in.Text() == "drop" {
			for _, b := range mapped {
				if err := unix.Munmap(b); err != nil {
					t.Fatal(err)
				}
			}
			mapped = nil
		} else if n, _ := fmt.Sscanf(in.Text(), "read %s", &file); n == 1 {
			f, err := os.Open(file)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{f}, make([]byte, 1<<20)); err != nil {
				t.Fatal(err)
			}
			f.Close()
		}
		fmt.Println(at)
	}
}

func now() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return ts.Nano()
}

// grower is a process in a cgroup that runs TestGrow.
type grower struct {
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Reader
}

func grow(t *testing.T, h *cgroup.Hierarchy, c *cgroup.Cgroup) *grower {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestGrow$")
	cmd.Env = append(os.Environ(), "EVICTD_TEST_GROW=1")
	in, out := kerneltest.Start(t, cmd, h.Memory.Path(c.Path()))
	g := &grower{cmd: cmd, in: in, out: out}
	g.do(t, "drop") // returns when the process runs
	return g
}

// begin sends a command.
func (g *grower) begin(t *testing.T, command string, args ...any) {
	t.Helper()
	if _, err := fmt.Fprintf(g.in, command+"\n", args...); err != nil {
		t.Fatal(err)
	}
}

// end waits for the answer to a command and returns its time.
func (g *grower) end(t *testing.T) int64 {
	t.Helper()
	line, err := g.out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	at, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func (g *grower) do(t *testing.T, command string, args ...any) int64 {
	t.Helper()
	g.begin(t, command, args...)
	return g.end(t)
}

// watch returns a poller of one descriptor.
func watch(t *testing.T, fd int, events uint32) *epoll.Poller {
	t.Helper()
	p, err := epoll.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	if err := p.Add(fd, events, 1); err != nil {
		t.Fatal(err)
	}
	return p
}

// wait returns the events of the descriptor, or 0 at the timeout.
func wait(t *testing.T, p *epoll.Poller, timeout time.Duration) uint32 {
	t.Helper()
	buf := make([]epoll.Event, 1)
	n, err := p.Wait(buf, timeout)
	if err != nil {
		t.Fatal(err)
	}
	if n == 0 {
		return 0
	}
	return buf[0].Events
}

func usage(t *testing.T, c *cgroup.Cgroup) uint64 {
	t.Helper()
	m, err := c.Memory()
	if err != nil {
		t.Fatal(err)
	}
	return m.Usage
}

// Each version lacks the notifications of the other.
func TestOtherVersion(t *testing.T) {
	h, c := fixture(t, nil)
	_, usage := ArmUsage(h, c, 1<<20)
	_, pressure := ArmPressure(h, c, Low, Default)
	_, events := OpenEvents(h, c) // v2, but the files are missing
	for op, err := range map[string]error{"ArmUsage": usage, "ArmPressure": pressure, "OpenEvents": events} {
		if !errors.Is(err, kernel.ErrUnavailable) {
			t.Errorf("%s() = %v; want %v", op, err, kernel.ErrUnavailable)
		}
	}
	v1 := *h
	v1.Version = cgroup.V1
	_, events = OpenEvents(&v1, c)
	_, local := OpenLocalEvents(&v1, c)
	for op, err := range map[string]error{"OpenEvents": events, "OpenLocalEvents": local} {
		if !errors.Is(err, kernel.ErrUnavailable) {
			t.Errorf("%s() on v1 = %v; want %v", op, err, kernel.ErrUnavailable)
		}
	}
}

// A new cgroup at the same path is not the one that was opened.
func TestReplaced(t *testing.T) {
	h, c := fixture(t, map[string]string{"memory.events": zero})
	dir := h.Memory.Path(c.Path())
	if err := os.Rename(dir, dir+"-old"); err != nil {
		t.Fatal(err)
	}
	gone := func(when string) {
		t.Helper()
		if _, err := OpenEvents(h, c); !errors.Is(err, cgroup.ErrGone) {
			t.Errorf("%s: OpenEvents() = %v; want %v", when, err, cgroup.ErrGone)
		}
	}
	gone("removed")
	if err := os.CopyFS(dir, os.DirFS(dir+"-old")); err != nil {
		t.Fatal(err)
	}
	gone("replaced")
}
