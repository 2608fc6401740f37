package native_test

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/tests/node"
)

// kernelKillsNobody fails the test if, by its end, the kernel's OOM killer has taken a process of the node's pods: it
// must not be first. The kernel's own log says so, also of cgroups that are gone by then and while evictd watches for
// no such thing:
//
//	oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/a,task_memcg=/a/b,task=hog,pid=7000,uid=0
//
// It is called once the node has started, so that the node is still there when the log is read.
func kernelKillsNobody(t *testing.T, n *node.Node) {
	t.Helper()
	records := kernelLog(t)
	t.Cleanup(func() {
		for _, line := range records() {
			if killsIn(line, n.Kubepods()) {
				t.Errorf("the kernel's OOM killer was first: %s", strings.TrimSpace(line))
			}
		}
	})
}

// kernelLog returns a reader of what has come to the kernel's log since it was called last, or since now.
func kernelLog(t *testing.T) func() []string {
	t.Helper()
	log, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("open the kernel's log: %v", err)
	}
	if _, err := unix.Seek(log, 0, unix.SEEK_END); err != nil {
		t.Fatalf("go to the end of the kernel's log: %v", err)
	}
	t.Cleanup(func() { unix.Close(log) })
	return func() (lines []string) {
		record := make([]byte, 8<<10)
		for {
			// Each read returns one record. EPIPE: the oldest have been overwritten meanwhile.
			read, err := unix.Read(log, record)
			switch {
			case errors.Is(err, unix.EINTR), errors.Is(err, unix.EPIPE):
				continue
			case errors.Is(err, unix.EAGAIN):
				return lines
			case err != nil:
				t.Errorf("read the kernel's log: %v", err)
				return lines
			}
			lines = append(lines, string(record[:read]))
		}
	}
}

// killsIn reports whether a line of the kernel's log tells of a process that was taken from a cgroup or from below it.
func killsIn(line, cgroup string) bool {
	_, rest, ok := strings.Cut(line, "oom-kill:")
	if !ok {
		return false
	}
	_, rest, ok = strings.Cut(rest, ",task_memcg=")
	return ok && (strings.HasPrefix(rest, cgroup+",") || strings.HasPrefix(rest, cgroup+"/"))
}

func TestKillsIn(t *testing.T) {
	const line = "6,3170,6089,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/a,task_memcg=/a/b,task=hog,pid=7000,uid=0\n"
	for _, tt := range []struct {
		line, cgroup string
		want         bool
	}{
		{line, "/a", true},
		{line, "/a/b", true},
		{line, "/a/b/c", false},
		{line, "/a/bc", false},
		{strings.Replace(line, "/a/b,", "/a/bc,", 1), "/a/b", false},
		{strings.Replace(line, "oom_memcg=/a", "oom_memcg=/x", 1), "/x", false}, // whose limit it was does not matter
		{"6,3171,6090,-;Memory cgroup out of memory: Killed process 7000 (hog)\n", "/a", false},
		{"", "/a", false},
	} {
		if got := killsIn(tt.line, tt.cgroup); got != tt.want {
			t.Errorf("killsIn(%q, %s) = %t; want %t", tt.line, tt.cgroup, got, tt.want)
		}
	}
}
