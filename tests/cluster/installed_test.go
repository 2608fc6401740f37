package cluster

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/evictd/evictd/agent/control"
)

const (
	// imageName is the name of evictd's image in TestInstalled.
	imageName = "evictd:v9.9.9"
	// serviceIP is the address of the API server's service, by which programs in pods reach it.
	serviceIP                = "10.0.0.1"
	daemonSetPath, agentPods = "/apis/apps/v1/namespaces/evictd/daemonsets/evictd", "/api/v1/namespaces/evictd/pods"
)

// TestInstalled: the DaemonSet of deploy/kubernetes runs from evictd's image, as a kubelet and a runtime start it with the
// capabilities and the profiles of its manifest: first in dry run, then, after a rolling update, it evicts. When it is
// deleted, no taint stays.
func TestInstalled(t *testing.T) {
	// The other programs of the image, and the one that makes it.
	if !inNamespaces(t, "./cmd/evictctl", "./cmd/evictd-controller", "./deploy/image") {
		return
	}
	c := startKubeNodeWith(t, kubeNodeOptions{appArmor: missingAppArmor() == "", installs: true})
	c.importEvictd()
	c.serveServiceIP()
	c.check(os.Mkdir(filepath.Dir(c.control()), 0o755))
	c.check(os.Symlink(filepath.Base(control.DefaultSocket), c.control()))

	capabilities := []int{unix.CAP_BPF, unix.CAP_PERFMON, unix.CAP_IPC_LOCK, unix.CAP_SYS_NICE}
	c.install("dry-run")
	c.checkConfinement(capabilities)
	c.checkLanes()
	if !c.status().Mode.DryRun {
		t.Error("the overlay dry-run evicts")
	}
	w := &workload{"installed", "Deployment", podSpec("Always", hogContainer("main"))}
	c.create(w)
	c.waitRunning(w)

	c.install("enforce")
	c.checkConfinement(append(capabilities, unix.CAP_KILL))
	c.checkLanes()
	c.until("enforcement beside the kubelet", func() bool { return !c.status().Mode.DryRun })
	v := c.evict(w)
	time.Sleep(restartTime)
	v.check()

	c.must("DELETE", daemonSetPath, "")
	c.until("end of the DaemonSet's pods", func() bool { return len(c.agentPods()) == 0 })
	c.wantNode("after the end of evictd", allUnknown("EvictdStopped"))
}

// shareKubeletRoot makes the kubelet's directory one that a container can have as on a node: on a filesystem that the first
// process of the machine has mounted, by which evictd recognizes the node, and with mounts that a container can follow, as
// systemd makes all of a machine. The process outside of the namespaces removes the directory.
func shareKubeletRoot(t *testing.T) {
	t.Helper()
	dir := os.Getenv(namespacesEnv)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	bind(t, dir, "/var/lib/kubelet")
	if err := unix.Mount("", "/var/lib", "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		t.Fatal(err)
	}
}

// importEvictd makes evictd's image and imports it into the runtime.
func (c *kubeNode) importEvictd() {
	c.t.Helper()
	file := filepath.Join(c.dir, "image.tar")
	_, tag, _ := strings.Cut(imageName, ":")
	out, err := exec.Command(filepath.Join(c.programs, "image"), "-o", file, "-version", tag, runtime.GOARCH+"="+c.programs).CombinedOutput()
	if err != nil {
		c.t.Fatalf("make the image: %v\n%s", err, out)
	}
	c.check(c.n.ImportImage(c.t.Context(), file, imageName))
}

// serveServiceIP does what kube-proxy would: the API server answers at the address of its service.
func (c *kubeNode) serveServiceIP() {
	c.t.Helper()
	addAddress(c.t, "lo:2", serviceIP)
	l, err := net.Listen("tcp", net.JoinHostPort(serviceIP, "443"))
	c.check(err)
	c.t.Cleanup(func() { l.Close() })
	forward := func(from, to net.Conn) {
		_, _ = io.Copy(to, from)
		to.Close()
	}
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return // closed
			}
			server, err := net.Dial("tcp", c.address)
			if err != nil {
				client.Close()
				continue
			}
			go forward(client, server)
			go forward(server, client)
		}
	}()
}

// install applies an overlay with the directories, the cgroups and the thresholds of this node, and returns when its
// DaemonSet is available and evictd has the facts.
func (c *kubeNode) install(overlay string) {
	c.t.Helper()
	differences := []string{
		"image: evictd\n", "image: " + imageName + "\n",
		"path: " + filepath.Dir(control.DefaultSocket) + "\n", "path: " + filepath.Dir(c.control()) + "\n",
		"/var/lib/containerd\n", filepath.Join(c.n.Dir(), "root") + "\n",
		"/run/containerd\n", c.n.Dir() + "\n",
		// The kubelet's filesystem is the machine's, which may be full.
		"      memory.available: 500Mi\n", fmt.Sprintf("      allocatableMemory.available: %d\n      nodefs.available: 1Mi\n      nodefs.inodesFree: 1\n", podsThreshold),
		"    kind: AgentConfiguration\n", fmt.Sprintf("    kind: AgentConfiguration\n    cgroupRoot: %s\n    runtimeEndpoint: unix:///host%s\n    evictionPressureTransitionPeriod: %s\n",
			c.n.CgroupRoot(), c.n.Socket(), c.transition),
	}
	docs := renderOverlay(c.t, overlay)
	all := strings.Join(docs, "\n")
	for i := 0; i < len(differences); i += 2 {
		if !strings.Contains(all, differences[i]) { // it would use a directory of the machine
			c.t.Fatalf("%s has no %q to replace", overlay, differences[i])
		}
	}
	for _, doc := range docs {
		c.patchObject(strings.NewReplacer(differences...).Replace(doc), "")
	}
	c.until("available DaemonSet of "+overlay, func() bool {
		d := decode[appsv1.DaemonSet](c.t, c.must("GET", daemonSetPath, ""))
		return d.Status.ObservedGeneration == d.Generation && d.Status.UpdatedNumberScheduled == 1 && d.Status.NumberAvailable == 1
	})
	c.pair.until("facts", func(k *control.Kubernetes) bool { return k.Watching && k.AgeSeconds != nil })
}

// agentPods returns the pods of the DaemonSet.
func (c *kubeNode) agentPods() []corev1.Pod {
	c.t.Helper()
	return decode[corev1.PodList](c.t, c.must("GET", agentPods, "")).Items
}

// checkConfinement checks the rights of both programs: evictd has some capabilities and evictd-kube none, the calls of both
// are filtered, neither can get more rights, and AppArmor confines evictd-kube alone.
func (c *kubeNode) checkConfinement(capabilities []int) {
	c.t.Helper()
	mask := 0
	for _, bit := range capabilities {
		mask |= 1 << bit
	}
	for program, want := range map[string]struct {
		uid, mask int
		profile   string
	}{"evictd": {0, mask, "unconfined"}, "evictd-kube": {kubeUID, 0, confinedProfile}} {
		pid := c.agentProcess(program)
		content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		c.check(err)
		lines := []string{fmt.Sprintf("Uid:\t%[1]d\t%[1]d\t%[1]d\t%[1]d", want.uid), "NoNewPrivs:\t1", "Seccomp:\t2"}
		for _, set := range []string{"CapPrm", "CapEff", "CapBnd"} {
			lines = append(lines, fmt.Sprintf("%s:\t%016x", set, want.mask))
		}
		for _, line := range lines {
			if !slices.Contains(strings.Split(string(content), "\n"), line) {
				c.t.Errorf("%s has no %q in its status:\n%s", program, line, content)
			}
		}
		if c.options.appArmor {
			content, err := os.ReadFile(fmt.Sprintf("/proc/%d/attr/current", pid))
			c.check(err)
			if got := strings.TrimSpace(string(content)); got != want.profile {
				c.t.Errorf("%s has the AppArmor profile %q; want %q", program, got, want.profile)
			}
		}
	}
}

// agentProcess returns the process of a program of the DaemonSet's pod.
func (c *kubeNode) agentProcess(program string) int {
	c.t.Helper()
	pods := c.agentPods()
	for i := range pods {
		for _, pid := range c.pids(&pods[i]) {
			if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil && filepath.Base(exe) == program {
				return pid
			}
		}
	}
	c.t.Fatalf("no process of %s", program)
	return 0
}

// checkLanes waits for the lanes that need rights: the profiles refuse none of them.
func (c *kubeNode) checkLanes() {
	c.t.Helper()
	for _, name := range []string{"bpf", "psi", "reclaim", "forks"} {
		c.until("lane "+name, func() bool {
			return slices.ContainsFunc(c.status().Lanes, func(l control.Lane) bool { return l.Name == name && l.Up })
		})
	}
}
