package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/tests/node"
)

const (
	mebibyte = 1 << 20
	// podsLimit is the memory limit of all pods of the node, and podsThreshold the
	// threshold of evictd's signal allocatableMemory.available. A hog that takes hogSize
	// crosses it; the machine's own memory does not matter.
	podsLimit, podsThreshold, hogSize = 1024 * mebibyte, 512 * mebibyte, 640 * mebibyte
)

// kubeNode is a whole cluster of one node, n1: a rig with the controllers, a scheduler, and
// a kubelet with a real containerd. evictd and evictd-kube run beside the kubelet.
type kubeNode struct {
	*pair
	n        *node.Node
	programs string
	kubelet  *exec.Cmd
	options  kubeNodeOptions
	events   *watch // of the pods
	lost     int    // final statuses without a reason
	// transition is how long the node has evictd's taint after the pressure. Pods are scheduled to
	// it only without the taint.
	transition time.Duration
	settings   string // further lines of evictd's configuration
	kubeFlags  []string
	kubeNice   int // of evictd-kube
}

// startKubeNode starts a cluster in the namespaces of inNamespaces and returns when its node
// is ready. It does not start evictd.
func startKubeNode(t *testing.T) *kubeNode {
	t.Helper()
	return startKubeNodeWith(t, kubeNodeOptions{})
}

// kubeNodeOptions are differences from the usual cluster.
type kubeNodeOptions struct {
	eviction string // lines of the kubelet's configuration; by default it does not evict
	audit    bool   // the API server logs writes of the pods' status
	appArmor bool   // the runtime confines containers
	installs bool   // what a DaemonSet of evictd needs, too
}

func startKubeNodeWith(t *testing.T, o kubeNodeOptions) *kubeNode {
	t.Helper()
	programs := isolate(t)
	if o.installs {
		shareKubeletRoot(t)
	}
	t.Setenv(node.ProgramsEnv, programs)
	dir := sharedDir(t) // the node's own: unknown outside of the namespaces
	n, err := node.Start(t.Context(), node.Options{Dir: filepath.Join(dir, "node"), Log: t.Output(), MemoryLimit: podsLimit, AppArmor: o.appArmor})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
		if left := n.Leftovers(); len(left) > 0 {
			t.Errorf("left of the node:\n%s", strings.Join(left, "\n"))
		}
	})
	enableControllers(t, n)
	began := time.Now()
	r := newRigWith(t, o.audit)
	t.Logf("API server ready after %v", since(began))
	c := &kubeNode{pair: &pair{evictd: &evictd{rig: r}}, n: n, programs: programs, options: o, transition: time.Second, kubeNice: unitNice}
	c.startControllers()
	c.configureKubelet()
	c.startKubelet()
	c.until("node ready", c.nodeReady)
	t.Logf("node ready after %v", since(began))
	c.events = c.watch()
	return c
}

// enableControllers gives the slice of the pods the controllers that the kubelet needs in a cgroupRoot: all that it
// supports and the machine has (pkg/kubelet/cm/cgroup_v2_manager_linux.go: Validate). systemd enables those of the
// properties that are set. It leaves hugetlb alone, which it does not know.
func enableControllers(t *testing.T, n *node.Node) {
	t.Helper()
	if n.Driver() != node.Systemd {
		return
	}
	slice := filepath.Base(filepath.Dir(n.Kubepods()))
	systemctl(t, "start", slice)
	t.Cleanup(func() { systemctl(t, "stop", slice) })
	systemctl(t, "set-property", "--runtime", slice, "CPUWeight=100", fmt.Sprintf("AllowedCPUs=0-%d", runtime.NumCPU()-1), "MemoryAccounting=yes", "TasksAccounting=yes")
	if err := os.WriteFile("/sys/fs/cgroup/cgroup.subtree_control", []byte("+hugetlb"), 0); err != nil && !errors.Is(err, unix.EINVAL) { // there is none
		t.Fatal(err)
	}
}

func since(t time.Time) time.Duration { return time.Since(t).Round(time.Millisecond) }

// until hides that of evictd, which waits for a status.
func (c *kubeNode) until(what string, ok func() bool) {
	c.t.Helper()
	c.rig.until(what, ok)
}

// startControllers starts the controllers of the workloads and of nodes, and the scheduler.
func (c *kubeNode) startControllers() {
	c.t.Helper()
	controllers, args := []string{
		"deployment-controller", "replicaset-controller", "statefulset-controller", "daemonset-controller", "job-controller",
		"node-lifecycle-controller", "taint-eviction-controller", "garbage-collector-controller", "pod-garbage-collector-controller",
	}, []string(nil)
	if c.options.installs {
		controllers = append(controllers, "resourcequota-controller", "root-ca-certificate-publisher-controller")
		args = []string{"--root-ca-file", c.CA()}
	}
	c.check(c.StartControllers(controllers, args...))
	c.check(c.StartScheduler())
}

// configureKubelet writes the kubelet's configuration. By default the kubelet never evicts. It collects no
// images and touches no cgroup outside of the node's. It sets the memory limit of all pods,
// to what is not reserved. A network configuration of any plugin makes the node ready.
func (c *kubeNode) configureKubelet() {
	c.t.Helper()
	network := filepath.Join(c.n.Dir(), "cni/net.d")
	if err := os.MkdirAll(network, 0o755); err != nil {
		c.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(network, "none.conflist"), []byte(`{"cniVersion":"0.4.0","name":"none","plugins":[{"type":"none"}]}`), 0o644); err != nil {
		c.t.Fatal(err)
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		c.t.Fatal(err)
	}
	reserved := int64(info.Totalram)*int64(info.Unit) - podsLimit
	c.write("kubelet.yaml", fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}}
authorization: {mode: Webhook}
cgroupDriver: %s
cgroupRoot: %s
containerRuntimeEndpoint: %s
%s
failCgroupV1: false
failSwapOn: false
healthzPort: 0
imageGCHighThresholdPercent: 100
makeIPTablesUtilChains: false
oomScoreAdj: 0
resolvConf: ""
systemReserved: {memory: "%d"}
volumePluginDir: /var/lib/kubelet/plugins
`, c.n.Driver(), c.n.CgroupRoot(), c.n.Endpoint(), cmp.Or(c.options.eviction, "evictionHard: {memory.available: 1Mi}"), reserved))
}

// startKubelet starts the kubelet, with further arguments. It runs in the cgroup of the runtime.
func (c *kubeNode) startKubelet(more ...string) {
	c.t.Helper()
	c.kubelet = c.run("kubelet", c.n.SystemCommand(context.Background(), filepath.Join(c.cache, kubelet), append([]string{
		"--config", filepath.Join(c.dir, "kubelet.yaml"), "--kubeconfig", c.adminConfig("node", nodeToken), "--root-dir", "/var/lib/kubelet",
		"--cert-dir", "/var/lib/kubelet/pki", "--hostname-override", "n1", "--node-ip", nodeAddress,
	}, more...)...))
}

// nodeReady reports whether pods can be scheduled to the node.
func (c *kubeNode) nodeReady() bool {
	content, err := c.request(http.MethodGet, "/api/v1/nodes/n1", "", "")
	if err != nil {
		return false
	}
	n := decode[corev1.Node](c.t, content)
	for _, condition := range n.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue && len(n.Spec.Taints) == 0
		}
	}
	return false
}

// startEvictd starts evictd and evictd-kube with the rights of an overlay of
// deploy/kubernetes, and returns when evictd has the facts.
func (c *kubeNode) startEvictd(overlay string) {
	c.t.Helper()
	for _, doc := range renderOverlay(c.t, overlay) {
		// The pods of the DaemonSet would have directories of this machine.
		if !strings.Contains(doc, "\nkind: DaemonSet\n") {
			c.applyObject(doc)
		}
	}
	// The token is of a pod, which has nothing to run: evictd-kube has to be restarted.
	spec := podSpec("Always", hogWith("main", "pause"))
	spec["serviceAccountName"] = "evictd-kube"
	agent, err := json.Marshal(fields{"metadata": fields{"name": "agent"}, "spec": spec})
	if err != nil {
		c.t.Fatal(err)
	}
	c.must("POST", "/api/v1/namespaces/evictd/pods", string(agent))
	c.until("scheduled pod of evictd-kube", func() bool {
		content, err := c.request(http.MethodGet, "/api/v1/namespaces/evictd/pods/agent", "", "")
		return err == nil && decode[corev1.Pod](c.t, content).Spec.NodeName != ""
	})
	c.token = c.write("token", c.tokenOfPod("agent"))
	c.startAgent()
	c.startKube()
	c.pair.until("facts", func(k *control.Kubernetes) bool { return k.Watching && k.AgeSeconds != nil })
}

// startAgent starts evictd. Its only threshold is that of the pods' memory.
func (c *kubeNode) startAgent() {
	c.t.Helper()
	config := c.write("config.yaml", fmt.Sprintf(`apiVersion: evictd.io/v1alpha1
kind: AgentConfiguration
runtimeEndpoint: %s
cgroupRoot: %s
evictionHard: {allocatableMemory.available: %d}
evictionPressureTransitionPeriod: %s
kube: {uid: %d}
%s`, c.n.Endpoint(), c.n.CgroupRoot(), podsThreshold, c.transition, kubeUID, c.settings))
	c.cmd = c.rig.start("evictd", filepath.Join(c.programs, "evictd"), nil, "--config", config, "--state-dir", filepath.Join(c.dir, "state"),
		"--control-socket", c.control(), "--kube-socket", c.kubeSocket(), "--fence-file", filepath.Join(filepath.Dir(c.kubeSocket()), "fences"), "--web.listen-address", "", "--log.level", "debug")
	c.pair.until("evictd", func(*control.Kubernetes) bool { return true })
}

// unitNice is the nice value of evictd-kube's unit (deploy/systemd).
const unitNice = -20

// startKube starts evictd-kube with its nice value, which it inherits from this thread.
func (c *kubeNode) startKube() {
	c.t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c.check(unix.Setpriority(unix.PRIO_PROCESS, 0, c.kubeNice))
	defer func() { c.check(unix.Setpriority(unix.PRIO_PROCESS, 0, 0)) }()
	c.kube = c.rig.start("evictd-kube", filepath.Join(c.programs, "evictd-kube"), &syscall.Credential{Uid: kubeUID, Gid: kubeUID},
		append([]string{"--kubeconfig", c.kubeconfig(c.token), "--node-name", "n1", "--socket", c.kubeSocket()}, c.kubeFlags...)...)
}

// status returns evictd's status; the test fails if it does not answer.
func (c *kubeNode) status() control.Status {
	c.t.Helper()
	s, err := control.NewClient(c.control()).Status(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	return s
}
