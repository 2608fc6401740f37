package fencing

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/evictd/evictd/tests/controlplane"
)

// shortLease makes another controller the leader 3 s after the last renewal. On a busy machine a leader may lose it
// without a cause: replicas start such a controller again, and the fence goes on.
var shortLease = []string{
	"--leader-elect-lease-duration=3s", "--leader-elect-renew-deadline=1800ms", "--leader-elect-retry-period=300ms",
}

// restartDelay is the time until a controller that has ended is started again.
const restartDelay = 300 * time.Millisecond

// replicas are two controllers. Each that ends is followed by another one, as the kubelet restarts a container.
type replicas struct {
	cluster *Cluster
	program string
	args    []string

	mu          sync.Mutex
	running     map[string]*Controller // by identity
	logs        []string               // paths
	ended       bool
	supervisors sync.WaitGroup
}

// startReplicas starts two controllers with the same arguments, in a cluster without any.
func startReplicas(t *testing.T, c *Cluster, program string, args ...string) *replicas {
	t.Helper()
	r := &replicas{cluster: c, program: program, args: args, running: map[string]*Controller{}}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(r.logged())
		}
		r.end()
	})
	for range 2 {
		must(t, r.start())
	}
	return r
}

func (r *replicas) start() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return nil
	}
	name := fmt.Sprint("replica-", len(r.logs)+1)
	p, err := r.cluster.StartController(r.program, name, r.args...)
	if err != nil {
		return err
	}
	r.running[name], r.logs = p, append(r.logs, p.log)
	r.supervisors.Go(func() {
		<-p.Done()
		r.mu.Lock()
		delete(r.running, name)
		r.mu.Unlock()
		time.Sleep(restartDelay)
		if err := r.start(); err != nil {
			r.cluster.report(err)
		}
	})
	return nil
}

// end kills all controllers.
func (r *replicas) end() {
	r.mu.Lock()
	r.ended = true
	running := slices.Collect(maps.Values(r.running))
	r.mu.Unlock()
	for _, p := range running {
		if err := p.Kill(); err != nil {
			r.cluster.report(err)
		}
	}
	r.supervisors.Wait()
}

// logged returns the logs of all controllers.
func (r *replicas) logged() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	for _, path := range r.logs {
		text, err := os.ReadFile(path)
		if err != nil {
			text = []byte(err.Error())
		}
		fmt.Fprintf(&b, "%s:\n%s\n", filepath.Base(path), text)
	}
	return b.String()
}

// leader returns the controller that has the lease, and the lease.
func (r *replicas) leader(t *testing.T) (p *Controller, lease coordinationv1.Lease) {
	t.Helper()
	path := "/apis/coordination.k8s.io/v1/namespaces/" + Namespace + "/leases/evictd-controller"
	if err := r.cluster.poll(t.Context(), "a leader", func() (bool, error) {
		lease = coordinationv1.Lease{}
		err := r.cluster.Admin.Get(t.Context(), path, &lease)
		if e, ok := errors.AsType[*controlplane.StatusError](err); ok && e.Code == http.StatusNotFound {
			return false, nil
		}
		if err != nil || lease.Spec.HolderIdentity == nil {
			return false, err
		}
		holder := *lease.Spec.HolderIdentity
		r.mu.Lock()
		defer r.mu.Unlock()
		p = r.running[holder[:max(0, strings.LastIndexByte(holder, '-'))]]
		return p != nil, nil
	}); err != nil {
		t.Fatal(err)
	}
	return p, lease
}
