package native_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/tests/node"
)

// startNode starts a node as limitedNode does. The test also fails if the kernel's OOM killer takes anybody of the pods.
func startNode(t *testing.T, limit int64) *node.Node {
	t.Helper()
	n := limitedNode(t, limit)
	kernelKillsNobody(t, n)
	return n
}

// limitedNode starts a node whose pods may take limit bytes together, and removes it with the test, which fails if
// anything of it stays.
func limitedNode(t *testing.T, limit int64) *node.Node {
	t.Helper()
	return startNodeWith(t, node.Options{MemoryLimit: limit})
}

// startNodeWith is a node with options of which the common ones are left out.
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
			t.Errorf("the node left %d things:\n%s", len(left), strings.Join(left, "\n"))
		}
	})
	return n
}

// pod is a pod whose processes are held, so that whether they live can be told whatever the runtime says.
type pod struct {
	node.Pod
	t    *testing.T
	n    *node.Node
	held []held
}

// held is a process by its pidfd.
type held struct {
	what string
	pid  int
	fd   int
}

func (h *held) lives() bool {
	fds := []unix.PollFd{{Fd: int32(h.fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return err == nil && n == 0 // readable once the process has ended
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
	p.hold("sandbox", made.PID)
	for _, c := range made.Containers {
		p.hold("container "+c.Name, c.PID)
	}
	return p
}

func (p *pod) hold(what string, pid int) {
	p.t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		p.t.Fatalf("hold %s of %s, process %d: %v", what, p.Name, pid, err)
	}
	p.t.Cleanup(func() { unix.Close(fd) })
	p.held = append(p.held, held{what: what, pid: pid, fd: fd})
}

// key is the pod's name as evictd gives it.
func (p *pod) key() string { return p.Namespace + "/" + p.Name }

// sandboxLives tells whether the pod's own process lives, containersLive whether the first of each container does.
func (p *pod) sandboxLives() bool { return p.held[0].lives() }

func (p *pod) containersLive() bool {
	for i := range p.held[1:] {
		if !p.held[i+1].lives() {
			return false
		}
	}
	return true
}

// mustLive fails the test for every process of the pods that has ended.
func mustLive(t *testing.T, pods ...*pod) {
	t.Helper()
	for _, p := range pods {
		for i := range p.held {
			if h := &p.held[i]; !h.lives() {
				t.Errorf("pod %s: its %s (process %d) has ended; want it alive", p.Name, h.what, h.pid)
			}
		}
	}
}

// mustDie waits until the pod is gone as a whole, and nothing is left in its containers' cgroups.
func (p *pod) mustDie() {
	p.t.Helper()
	p.containersMustDie()
	eventually(p.t, "end of the sandbox of "+p.Name, func() bool { return !p.sandboxLives() })
}

func (p *pod) containersMustDie() {
	p.t.Helper()
	for i := range p.held[1:] {
		h := &p.held[i+1]
		eventually(p.t, "end of the "+h.what+" of "+p.Name, func() bool { return !h.lives() })
	}
	for _, c := range p.Containers {
		eventually(p.t, "empty cgroup "+c.Cgroup, func() bool { return len(processes(p.t, c.Cgroup)) == 0 })
	}
}

// processes lists those of a cgroup and of all below it; a cgroup that is gone has none.
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

// openCgroup opens a cgroup, nil where it is gone.
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

// uses waits until the pod's first container is charged with that many bytes.
func (p *pod) uses(bytes int64) *pod {
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

// press lets a pod whose first container is growing begin to grow. It returns once it does, or was evicted for it.
func (p *pod) press() {
	p.t.Helper()
	c := p.Containers[0]
	before := p.usage(c.Cgroup)
	eventually(p.t, "growth of "+p.Name, func() bool {
		if !p.held[1].lives() {
			return true
		}
		// The first signals may come before the hog listens, and then have no effect; nor have those after the
		// first that it hears.
		if err := unix.PidfdSendSignal(p.held[1].fd, unix.SIGUSR1, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			p.t.Fatal(err)
		}
		usage, err := p.n.MemoryUsage(c.Cgroup)
		return err != nil || usage > before+4*mebibyte
	})
}

// holding are the arguments of a hog that takes that many bytes at once.
func holding(bytes int64, more ...string) []string {
	return append([]string{"hold", "-bytes", strconv.FormatInt(bytes, 10)}, more...)
}

// growing are those of a hog that takes them once it is pressed.
func growing(bytes int64, more ...string) []string {
	return append([]string{"grow", "-delay", "1h", "-bytes", strconv.FormatInt(bytes, 10)}, more...)
}

// one is the containers of a pod that has a single one.
func one(args []string) []node.ContainerSpec { return []node.ContainerSpec{{Args: args}} }

// remove removes a pod within the test, as a kubelet would.
func (p *pod) remove() {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	if err := p.n.RemovePod(ctx, p.Pod); err != nil {
		p.t.Fatal(err)
	}
}

// soon is a short while by which a test tells what is prompt.
var soon = node.Slow(5 * time.Second)
