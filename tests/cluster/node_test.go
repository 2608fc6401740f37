package cluster

import (
	"slices"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/control"
)

// TestNode: a pod of a Deployment runs on a real kubelet and is deleted, and evictd has its
// facts from the API server.
func TestNode(t *testing.T) {
	if !inNamespaces(t) {
		return
	}
	c := startKubeNode(t)
	w := &workload{name: "small", kind: "Deployment", template: podSpec("Always", hogWith("main", "hold", "-bytes", "33554432"))}
	began := time.Now()
	c.create(w)
	c.until("memory of the pod", func() bool {
		p, ok := c.events.running(w.name)
		if !ok {
			return false
		}
		usage, err := c.n.MemoryUsage(c.n.PodCgroup("BestEffort", string(p.UID)))
		return err == nil && usage >= 32*mebibyte
	})
	t.Logf("pod runs after %v", since(began))

	c.startEvictd("dry-run")
	c.pair.until("facts of the pod in use", func(k *control.Kubernetes) bool { return k.Used == 2 }) // with that of evictd-kube
	s := c.status()
	t.Logf("mode %+v", s.Mode)
	began = time.Now()
	c.remove(w)
	t.Logf("pod is gone after %v", since(began))
	if n := c.status().Kubernetes.Refusals; n > 0 {
		t.Errorf("%d facts refused: %+v", n, slices.Clone(s.Kubernetes.Refused))
	}
}
