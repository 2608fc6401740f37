package native_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/tests/node"
)

// startNode is limitedNode, but the test also fails if the kernel's OOM killer kills a process of the pods.
func startNode(t *testing.T, limit int64) *node.Node {
	t.Helper()
	n := limitedNode(t, limit)
	failOnKernelOOM(t, n)
	return n
}

// limitedNode starts a node with a memory limit of all pods together in bytes. It closes the node at the end of the
// test, which fails if anything of the node remains.
func limitedNode(t *testing.T, limit int64) *node.Node {
	t.Helper()
	return startNodeWith(t, node.Options{MemoryLimit: limit})
}

// startNodeWith starts a node with the options; it sets Dir, Log and Hog.
func startNodeWith(t *testing.T, o node.Options) *node.Node {
	t.Helper()
	if err := node.Check(""); err != nil {
		t.Skipf("needs %v", err)
	}
	e, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	o.Dir, o.Log, o.Hog = t.TempDir(), t.Output(), e.hog
	return startNodeIn(t, o)
}

func startNodeIn(t *testing.T, o node.Options) *node.Node {
	t.Helper()
	n, err := node.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
		if left := n.Leftovers(); len(left) > 0 {
			t.Errorf("Leftovers() of the closed node = %d:\n%s", len(left), strings.Join(left, "\n"))
		}
	})
	return n
}

// pod is a pod with pidfds of its first processes, so that a test knows whether they are alive without the runtime.
type pod struct {
	node.Pod
	t     *testing.T
	n     *node.Node
	procs []watchedProcess
}

// watchedProcess is a process with its pidfd, -1 if it had ended before that could be opened.
type watchedProcess struct {
	what string
	pid  int
	fd   int
}

func (h *watchedProcess) alive() bool {
	if h.fd < 0 {
		return false
	}
	fds := []unix.PollFd{{Fd: int32(h.fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return err == nil && n == 0 // readable once the process has exited
	}
}

// runPod runs a pod.
func runPod(t *testing.T, n *node.Node, spec node.PodSpec) *pod {
	t.Helper()
	made, err := n.RunPod(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	p := &pod{Pod: made, t: t, n: n}
	p.watch("sandbox", made.PID)
	for _, c := range made.Containers {
		p.watch("container "+c.Name, c.PID)
	}
	return p
}

// watch watches a process of the pod. pid is 0 if the runtime no longer has one: evictd may kill a pod before the runtime
// has answered that it runs.
func (p *pod) watch(what string, pid int) {
	p.t.Helper()
	h := watchedProcess{what: what, pid: pid, fd: -1}
	if pid > 0 {
		switch fd, err := unix.PidfdOpen(pid, 0); {
		case err == nil:
			h.fd = fd
			p.t.Cleanup(func() { unix.Close(fd) })
		case !errors.Is(err, unix.ESRCH):
			p.t.Fatalf("open pidfd of the %s of %s, process %d: %v", what, p.Name, pid, err)
		}
	}
	p.procs = append(p.procs, h)
}

// key returns the pod's namespace and name as evictd reports them.
func (p *pod) key() string { return p.Namespace + "/" + p.Name }

// sandboxLives reports whether the pause process is alive, containersLive whether the first process of a container is.
func (p *pod) sandboxLives() bool { return p.procs[0].alive() }

func (p *pod) containersLive() bool {
	for i := range p.procs[1:] {
		if !p.procs[i+1].alive() {
			return false
		}
	}
	return true
}

// mustLive fails the test for every process of the pods that has ended.
func mustLive(t *testing.T, pods ...*pod) {
	t.Helper()
	for _, p := range pods {
		for i := range p.procs {
			if h := &p.procs[i]; !h.alive() {
				t.Errorf("pod %s: its %s (process %d) has exited; want it alive", p.Name, h.what, h.pid)
			}
		}
	}
}

// mustDie waits until the sandbox and the containers have exited and the containers' cgroups are empty.
func (p *pod) mustDie() {
	p.t.Helper()
	p.containersMustDie()
	eventually(p.t, "end of the sandbox of "+p.Name, func() bool { return !p.sandboxLives() })
}

func (p *pod) containersMustDie() {
	p.t.Helper()
	for i := range p.procs[1:] {
		h := &p.procs[i+1]
		eventually(p.t, "end of the "+h.what+" of "+p.Name, func() bool { return !h.alive() })
	}
	for _, c := range p.Containers {
		eventually(p.t, "empty cgroup "+c.Cgroup, func() bool { return len(processes(p.t, c.Cgroup)) == 0 })
	}
}

// processes lists the processes of a cgroup and its descendants; none if the cgroup does not exist.
func processes(t *testing.T, path string) []int {
	t.Helper()
	c := openCgroup(t, path)
	if c == nil {
		return nil
	}
	defer c.Close()
	pids, err := c.Procs(nil)
	if err != nil && !isGone(err) {
		t.Fatal(err)
	}
	return pids
}

// openCgroup opens a cgroup. It returns nil if the cgroup does not exist.
func openCgroup(t *testing.T, path string) *cgroup.Cgroup {
	t.Helper()
	h, err := cgroup.Find(kernel.FS("/sys/fs/cgroup"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := h.Open(path)
	if isGone(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// waitUsage waits until at least so many bytes are charged to the pod's first container.
func (p *pod) waitUsage(bytes int64) *pod {
	p.t.Helper()
	c := p.Containers[0].Cgroup
	eventually(p.t, fmt.Sprintf("%d MiB in %s", bytes/mebibyte, p.Name), func() bool { return p.usage(c) >= bytes })
	return p
}

func (p *pod) usage(cgroup string) int64 {
	p.t.Helper()
	usage, err := p.n.MemoryUsage(cgroup)
	if err != nil {
		p.t.Fatal(err)
	}
	return usage
}

// grow makes the hog in the pod's first container start to grow (see growArgs). It returns once the usage has
// increased, or once the container has been killed.
func (p *pod) grow() {
	p.t.Helper()
	c := p.Containers[0]
	before := p.usage(c.Cgroup)
	eventually(p.t, "growth of "+p.Name, func() bool {
		if !p.procs[1].alive() {
			return true
		}
		// Before the hog handles SIGUSR1, the signal has no effect on process 1 of a PID namespace. The hog ignores
		// all but the first.
		if err := unix.PidfdSendSignal(p.procs[1].fd, unix.SIGUSR1, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			p.t.Fatal(err)
		}
		usage, err := p.n.MemoryUsage(c.Cgroup)
		return err != nil || usage > before+4*mebibyte
	})
}

// holdArgs returns the arguments of a hog that allocates so many bytes immediately and keeps them.
func holdArgs(bytes int64, more ...string) []string {
	return append([]string{"hold", "-bytes", strconv.FormatInt(bytes, 10)}, more...)
}

// growArgs returns the arguments of a hog that allocates so many bytes after [pod.grow].
func growArgs(bytes int64, more ...string) []string {
	return append([]string{"grow", "-delay", "1h", "-bytes", strconv.FormatInt(bytes, 10)}, more...)
}

// oneContainer returns the containers of a pod with one container.
func oneContainer(args []string) []node.ContainerSpec { return []node.ContainerSpec{{Args: args}} }

// remove removes the pod before the end of the test, as a kubelet would.
func (p *pod) remove() {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), waitTimeout)
	defer cancel()
	if err := p.n.RemovePod(ctx, p.Pod); err != nil {
		p.t.Fatal(err)
	}
}
