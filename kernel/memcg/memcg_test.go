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

// fixture is a v2 tree with one cgroup, /pod, and more files in it.
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

// here makes a cgroup on this machine with a limit of 128 MiB. The test is
// skipped unless memory is in a tree of the version.
func here(t *testing.T, v2 bool) (*cgroup.Hierarchy, *cgroup.Cgroup) {
	t.Helper()
	h, err := cgroup.Find("/sys/fs/cgroup")
	if err != nil {
		t.Skip("needs a mounted cgroup filesystem: ", err)
	}
	if v2 != (h.Version == cgroup.V2) {
		t.Skip("needs the memory controller in a tree of the other version, not in " + h.Version.String())
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

// TestGrow is no test: it is what others run to have a process whose memory they
// control. It answers each line that it reads:
//
//	grow BYTES MARK	touches so much memory more, and says at what time, in
//			nanoseconds since boot, it had touched MARK bytes of it
//	drop		gives all of it back
//	read FILE	reads a file
func TestGrow(t *testing.T) {
	if os.Getenv("EVICTD_TEST_GROW") == "" {
		return // it is the body of a process that other tests run
	}
	var held [][]byte
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var size, mark int
		var file string
		var at int64
		if n, _ := fmt.Sscanf(in.Text(), "grow %d %d", &size, &mark); n == 2 {
			b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
			if err != nil {
				t.Fatal(err)
			}
			// Huge pages would charge 2 MiB at once, and put the mark elsewhere. A
			// kernel without them says EINVAL.
			_ = unix.Madvise(b, unix.MADV_NOHUGEPAGE)
			for i := 0; i < size; i += os.Getpagesize() {
				b[i] = 1
				if i <= mark && mark < i+os.Getpagesize() {
					at = now()
				}
			}
			held = append(held, b)
		} else if in.Text() == "drop" {
			for _, b := range held {
				if err := unix.Munmap(b); err != nil {
					t.Fatal(err)
				}
			}
			held = nil
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

// grower is a process in a cgroup that does what TestGrow is told.
type grower struct {
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Reader
}

func grow(t *testing.T, h *cgroup.Hierarchy, c *cgroup.Cgroup) *grower {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestGrow$")
	cmd.Env = append(os.Environ(), "EVICTD_TEST_GROW=1")
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
	g := &grower{cmd: cmd, in: in, out: bufio.NewReader(out)}
	write(t, h, c.Path(), "cgroup.procs", strconv.Itoa(cmd.Process.Pid))
	g.do(t, "drop") // from here on, it is up and in its cgroup
	return g
}

// begin gives an order, and end waits until it is done and returns its time.
func (g *grower) begin(t *testing.T, order string, args ...any) {
	t.Helper()
	if _, err := fmt.Fprintf(g.in, order+"\n", args...); err != nil {
		t.Fatal(err)
	}
}

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

func (g *grower) do(t *testing.T, order string, args ...any) int64 {
	t.Helper()
	g.begin(t, order, args...)
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

// wait returns the events of the one descriptor, 0 for none in this time.
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

// Each tree lacks what the other has.
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

// Whatever takes a cgroup's path is not it.
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
