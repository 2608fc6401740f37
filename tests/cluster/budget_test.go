package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/control"
)

// TestBudget: evictd-kube is small with 100 pods of 12 KB on the node. It has 15.5 to
// 15.8 MiB resident, of which 11.3 MiB are pages of the binary that the kernel can drop;
// how many of those are resident varies from run to run.
func TestBudget(t *testing.T) {
	t.Parallel()
	const largestBinary, largestRSS, pods = 16 << 20, 20 << 20, 100
	r := newRig(t)
	r.build()
	info, err := os.Stat(filepath.Join(r.dir, "evictd-kube"))
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > largestBinary {
		t.Errorf("evictd-kube is %d bytes; want at most %d", info.Size(), largestBinary)
	}
	r.apply("namespace.yaml", "rbac.yaml")
	r.must("POST", "/api/v1/nodes", `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n1"}}`)
	for i := range pods {
		r.must("POST", "/api/v1/namespaces/default/pods", fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p%d",
			"annotations":{"a":%q}},"spec":{"nodeName":"n1","containers":[{"name":"main","image":"x"}]}}`, i, strings.Repeat("x", 11_000)))
	}
	e := &evictd{rig: r}
	e.start()
	kubeconfig := r.kubeconfig(r.write("token", r.token(time.Hour)))
	kube := r.start("evictd-kube", filepath.Join(r.dir, "evictd-kube"), &syscall.Credential{Uid: kubeUID, Gid: kubeUID},
		"--kubeconfig", kubeconfig, "--node-name", "n1", "--socket", e.kubeSocket())
	e.until("facts", func(k *control.Kubernetes) bool { return k.Watching && k.Pods == pods })
	time.Sleep(15 * time.Second) // until it is idle
	rss := resident(t, kube.Process.Pid)
	if rss == 0 || rss > largestRSS {
		t.Errorf("resident memory of evictd-kube with %d pods = %d bytes; want at most %d", pods, rss, largestRSS)
	}
	t.Logf("binary %d bytes, resident %d kB; evictd %d kB", info.Size(), rss>>10, resident(t, e.cmd.Process.Pid)>>10)
}

// resident returns how much memory a process has resident, in bytes.
func resident(t *testing.T, pid int) (bytes int) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if n, _ := fmt.Sscanf(line, "VmRSS: %d kB", &bytes); n == 1 {
			return bytes << 10
		}
	}
	return 0
}
