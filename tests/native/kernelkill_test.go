package native_test

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/tests/node"
)

// failOnKernelOOM fails the test if the kernel's OOM killer kills a process of the node's pods before the test ends:
// evictd must be first. It reads the kernel's log, which also has kills in cgroups that no longer exist, and does not
// depend on evictd:
//
//	oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/a,task_memcg=/a/b,task=hog,pid=7000,uid=0
//
// Call it after the node has started, so that its cleanup runs before the node is closed.
func failOnKernelOOM(t *testing.T, n *node.Node) {
	t.Helper()
	records := kernelLog(t)
	t.Cleanup(func() {
		for _, line := range records() {
			if isOOMKillIn(line, n.Kubepods()) {
				t.Errorf("the kernel's OOM killer killed a process of the pods: %s", strings.TrimSpace(line))
			}
		}
	})
}

// kernelLog returns a function that returns the lines of the kernel's log since its last call, first since now.
func kernelLog(t *testing.T) func() []string {
	t.Helper()
	log, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("open the kernel's log: %v", err)
	}
	if _, err := unix.Seek(log, 0, unix.SEEK_END); err != nil {
		t.Fatalf("seek to the end of the kernel's log: %v", err)
	}
	t.Cleanup(func() { unix.Close(log) })
	return func() (lines []string) {
		record := make([]byte, 8<<10)
		for {
			// Each read returns one record. EPIPE means that unread records were overwritten.
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

// isOOMKillIn reports whether a line of the kernel's log is an OOM kill in a cgroup or its descendants.
func isOOMKillIn(line, cgroup string) bool {
	_, rest, ok := strings.Cut(line, "oom-kill:")
	if !ok {
		return false
	}
	_, rest, ok = strings.Cut(rest, ",task_memcg=")
	return ok && (strings.HasPrefix(rest, cgroup+",") || strings.HasPrefix(rest, cgroup+"/"))
}

func TestIsOOMKillIn(t *testing.T) {
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
		{strings.Replace(line, "oom_memcg=/a", "oom_memcg=/x", 1), "/x", false}, // the cgroup with the limit does not matter
		{"6,3171,6090,-;Memory cgroup out of memory: Killed process 7000 (hog)\n", "/a", false},
		{"", "/a", false},
	} {
		if got := isOOMKillIn(tt.line, tt.cgroup); got != tt.want {
			t.Errorf("isOOMKillIn(%q, %s) = %t; want %t", tt.line, tt.cgroup, got, tt.want)
		}
	}
}
