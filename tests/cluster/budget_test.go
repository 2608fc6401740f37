package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/kube"
)

// TestBudget: evictd-kube is small with 100 pods of 12 KB on the node. It has 15.5 to
// 18 MiB resident, of which 11.3 MiB are pages of the binary that the kernel can drop;
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
	b := r.startWithPods(pods)
	time.Sleep(15 * time.Second) // until it is idle
	rss := resident(b.kube.Process.Pid)
	if rss == 0 || rss > largestRSS {
		t.Errorf("resident memory of evictd-kube with %d pods = %d bytes; want at most %d", pods, rss, largestRSS)
	}
	t.Logf("binary %d bytes, resident %d kB; evictd %d kB", info.Size(), rss>>10, resident(b.cmd.Process.Pid)>>10)
}

// TestThousandPods: evictd has the facts of the 1,000 pods of a node. Those of another pod are
// refused, which the status names, until one of the others is gone.
func TestThousandPods(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.build()
	b := r.startWithPods(kube.MaxPods)
	t.Logf("with %d pods: resident %d kB; evictd %d kB", kube.MaxPods, resident(b.kube.Process.Pid)>>10, resident(b.cmd.Process.Pid)>>10)
	if k := b.kubernetes(); k.Refusals != 0 {
		t.Errorf("with %d pods: %d refusals, %+v; want none", kube.MaxPods, k.Refusals, k.Refused)
	}
	r.largePod("another")
	b.until("refusal", func(k *control.Kubernetes) bool {
		return k.Watching && k.Pods == kube.MaxPods && k.Refusals > 0 && len(k.Refused) == 1 &&
			k.Refused[0].Pod == "default/another" && strings.Contains(k.Refused[0].Why, "no room")
	})
	r.delete("p0")
	b.until("facts in the room of another pod", func(k *control.Kubernetes) bool {
		return k.Pods == kube.MaxPods && len(k.Refused) == 0
	})
	b.stop()
	if saved := b.saved(); len(saved) != kube.MaxPods || saved["another"].Name == "" || saved["p0"].Name != "" {
		t.Errorf("%d saved facts, of another %+v, of p0 %+v; want %d, those of another among them", len(saved), saved["another"], saved["p0"], kube.MaxPods)
	}
}

// startWithPods creates the node n1 with large pods, and starts evictd and evictd-kube, which
// have the facts of all.
func (r *rig) startWithPods(pods int) *pair {
	r.t.Helper()
	r.apply("namespace.yaml", "rbac.yaml")
	r.must("POST", "/api/v1/nodes", `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n1"}}`)
	began := time.Now()
	r.largePod("p0")
	const creators = 8
	var creating sync.WaitGroup
	errs := make([]error, creators)
	for c := range creators {
		creating.Go(func() {
			for i := 1 + c; i < pods && errs[c] == nil; i += creators {
				errs[c] = r.createLargePod(fmt.Sprintf("p%d", i))
			}
		})
	}
	creating.Wait()
	r.check(errors.Join(errs...))
	r.t.Logf("%d pods: after %v", pods, since(began))
	b := &pair{evictd: &evictd{rig: r}, token: r.write("token", r.token(time.Hour))}
	b.start()
	b.startKube()
	b.until("facts", func(k *control.Kubernetes) bool { return k.Watching && k.Pods == pods })
	return b
}

// largePod creates a pod of 12 KB on the node n1.
func (r *rig) largePod(name string) {
	r.t.Helper()
	r.check(r.createLargePod(name))
}

func (r *rig) createLargePod(name string) error {
	_, err := r.request("POST", podPath(""), "application/json", fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,
		"annotations":{"a":%q}},"spec":{"nodeName":"n1","containers":[{"name":"main","image":"x"}]}}`, name, strings.Repeat("x", 11_000)))
	return err
}

// resident returns how much memory a process has resident, in bytes; 0 if it has ended.
func resident(pid int) (bytes int) {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(status)) {
		if n, _ := fmt.Sscanf(line, "VmRSS: %d kB", &bytes); n == 1 {
			return bytes << 10
		}
	}
	return 0
}
