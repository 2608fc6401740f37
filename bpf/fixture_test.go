package bpf

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// These tests run on this machine's kernel, in cgroups that they create.

const (
	mib = 1 << 20
	gib = 1 << 30
)

// eventually polls until done returns true. Its timeout is longer than the interval of
// surveys.
func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("timeout after 30 s: %s", what)
		}
	}
}

// openRing and openSampler skip the test if the error wraps ErrUnavailable.
func openRing(t testing.TB) *Ring {
	t.Helper()
	ring, err := OpenRing()
	if errors.Is(err, ErrUnavailable) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ring.Close(); err != nil {
			t.Errorf("Close() of the ring = %v; want nil", err)
		}
	})
	return ring
}

func openSampler(t testing.TB, o Options) (*Ring, *Sampler) {
	t.Helper()
	ring := openRing(t)
	s, err := OpenSampler(ring, o)
	if errors.Is(err, ErrUnavailable) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close() of the sampler = %v; want nil", err)
		}
	})
	return ring, s
}

func arm(t testing.TB, s *Sampler, thresholds ...Threshold) {
	t.Helper()
	if err := s.Arm(thresholds); err != nil {
		t.Fatal(err)
	}
}

// tickNow kicks the sampler and returns a tick that began after the call.
func tickNow(t testing.TB, s *Sampler) samplerLatest {
	t.Helper()
	var before, after samplerLatest
	if err := s.read(&before); err != nil {
		eventually(t, "first tick", func() bool { return s.read(&before) == nil })
	}
	if err := s.Kick(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; {
		err := s.read(&after)
		if err != nil && !errors.Is(err, errReadBusy) {
			t.Fatal(err)
		}
		if err == nil && after.Sample.Tick > before.Sample.Tick+1 {
			return after
		}
		if time.Now().After(deadline) {
			t.Fatal("no tick within 10 s of a kick")
		}
	}
}

// nextRecord waits for a record with epoll, as the daemon does.
func nextRecord(t *testing.T, ring *Ring) Record {
	t.Helper()
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(epoll)
	event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(ring.FD())}
	if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, ring.FD(), &event); err != nil {
		t.Fatal(err)
	}
	var record Record
	for deadline := time.Now().Add(10 * time.Second); ; {
		ok, err := ring.Next(&record)
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			return record
		}
		if time.Now().After(deadline) {
			t.Fatal("no record within 10 s")
		}
		if _, err := unix.EpollWait(epoll, make([]unix.EpollEvent, 1), 1000); err != nil && !errors.Is(err, unix.EINTR) {
			t.Fatal(err)
		}
	}
}

// noRecord lets the sampler tick n times and fails if it writes a record.
func noRecord(t *testing.T, ring *Ring, s *Sampler, n uint64) {
	t.Helper()
	start := tickNow(t, s).Sample.Tick
	eventually(t, "ticks", func() bool { return tickNow(t, s).Sample.Tick >= start+n })
	var record Record
	if ok, err := ring.Next(&record); err != nil || ok {
		t.Fatalf("Next() = %v, %v with %+v; want no record", ok, err, record)
	}
}

func takeRecords(t *testing.T, ring *Ring) (records []Record) {
	t.Helper()
	for {
		var record Record
		ok, err := ring.Next(&record)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return records
		}
		records = append(records, record)
	}
}

var madeCgroups atomic.Int64

// memoryTree returns the mount point of the memory controller and whether it is v1.
func memoryTree(t testing.TB) (string, bool) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: creates cgroups")
	}
	if _, err := os.Stat("/sys/fs/cgroup/memory/memory.usage_in_bytes"); err == nil {
		return "/sys/fs/cgroup/memory", true
	}
	enabled, err := os.ReadFile("/sys/fs/cgroup/cgroup.subtree_control")
	if err != nil || !strings.Contains(" "+strings.TrimSpace(string(enabled))+" ", " memory ") {
		t.Skip("needs a tree with the memory controller: ", err)
	}
	return "/sys/fs/cgroup", false
}

// cgroup is a cgroup that a test has created. makeCgroup limits it to 1 GiB.
type cgroup struct {
	dir string
	v1  bool
}

func makeCgroup(t testing.TB) cgroup {
	t.Helper()
	tree, v1 := memoryTree(t)
	c := cgroup{filepath.Join(tree, fmt.Sprintf("evictd-bpf-test-%d-%d", os.Getpid(), madeCgroups.Add(1))), v1}
	c.make(t)
	c.limit(t, gib)
	return c
}

func (c cgroup) make(t testing.TB) {
	t.Helper()
	if err := os.Mkdir(c.dir, 0o755); errors.Is(err, unix.EROFS) || errors.Is(err, unix.EACCES) {
		t.Skip("needs a writable cgroup tree: ", err)
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		eventually(t, "remove "+c.dir, func() bool {
			err := os.Remove(c.dir) // EBUSY until the last process has left
			return err == nil || errors.Is(err, os.ErrNotExist)
		})
	})
}

func (c cgroup) child(t testing.TB, name string) cgroup {
	t.Helper()
	if !c.v1 {
		write(t, filepath.Join(c.dir, "cgroup.subtree_control"), "+memory")
	}
	child := cgroup{filepath.Join(c.dir, name), c.v1}
	child.make(t)
	return child
}

func write(t testing.TB, file, content string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(content), 0); err != nil {
		t.Fatal(err)
	}
}

func (c cgroup) limit(t testing.TB, bytes uint64) {
	t.Helper()
	name := "memory.max"
	if c.v1 {
		name = "memory.limit_in_bytes"
	}
	write(t, filepath.Join(c.dir, name), strconv.FormatUint(bytes, 10))
}

func (c cgroup) open(t testing.TB) *os.File {
	t.Helper()
	dir, err := os.Open(c.dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	return dir
}

func (c cgroup) id(t *testing.T) uint64 {
	t.Helper()
	var stat unix.Stat_t
	if err := unix.Stat(c.dir, &stat); err != nil {
		t.Fatal(err)
	}
	return stat.Ino
}

func (c cgroup) usage(t *testing.T) uint64 {
	t.Helper()
	name := "memory.current"
	if c.v1 {
		name = "memory.usage_in_bytes"
	}
	b, err := os.ReadFile(filepath.Join(c.dir, name))
	if err != nil {
		t.Fatal(err)
	}
	usage, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return usage
}

// stat returns a figure of memory.stat, with everything below. The kernel sums it up every
// two seconds.
func (c cgroup) stat(t *testing.T, name string) uint64 {
	t.Helper()
	if c.v1 {
		name = "total_" + name
	}
	return field(t, filepath.Join(c.dir, "memory.stat"), name)
}

// field returns a number from a file of lines such as "nr_anon_pages 4711".
func field(t *testing.T, file, name string) uint64 {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			n, err := strconv.ParseUint(value, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("%s has no %s", file, name)
	return 0
}
