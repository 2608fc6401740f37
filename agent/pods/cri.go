package pods

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/evictd/evictd/cri"
)

// The labels by which a kubelet identifies its pods to the runtime
// (pkg/kubelet/types/labels.go).
const (
	labelName      = "io.kubernetes.pod.name"
	labelNamespace = "io.kubernetes.pod.namespace"
	labelUID       = "io.kubernetes.pod.uid"
)

const (
	// identifyInterval is how often the runtime's version and pid are read while no call
	// fails: a restarted runtime makes calls fail.
	identifyInterval = 10 * time.Second
	// parallelDetails is how many status calls of single objects are made at a time.
	parallelDetails = 8
)

// CRI is a [Runtime] on a CRI socket.
type CRI struct {
	client   *cri.Client
	endpoint string

	version    cri.Version
	pid        int
	identified time.Time // zero: never, or not since a call failed
	containers details[cri.ContainerDetail]
	sandboxes  details[cri.SandboxDetail]
}

// NewCRI returns the runtime that client is connected to on endpoint.
func NewCRI(client *cri.Client, endpoint string) *CRI {
	return &CRI{client: client, endpoint: endpoint}
}

// Name returns the endpoint.
func (c *CRI) Name() string { return c.endpoint }

// Watch implements [Runtime] with the runtime's events, if it has them.
func (c *CRI) Watch(ctx context.Context, changed func()) error {
	err := c.client.Events(ctx, func(cri.Event) { changed() })
	if errors.Is(err, cri.ErrUnimplemented) {
		return fmt.Errorf("%w: %w", ErrUnwatchable, err)
	}
	return err
}

// List implements [Runtime]. Data that the list lacks are read once per container and
// sandbox; failed reads are tried again with a back-off.
func (c *CRI) List(ctx context.Context) (List, error) {
	// Containers first: the later list then has the sandbox of each.
	containers, err := c.client.Containers(ctx)
	if err != nil && !errors.Is(err, cri.ErrMalformed) {
		c.identified = time.Time{}
		return List{}, err
	}
	partial := err
	sandboxes, err := c.client.Sandboxes(ctx)
	if err != nil && !errors.Is(err, cri.ErrMalformed) {
		c.identified = time.Time{}
		return List{}, err
	}
	if partial == nil {
		partial = err
	}
	c.identify(ctx)
	list := List{Pods: c.pods(ctx, sandboxes, containers), Software: c.version.Runtime, Version: c.version.Version, PID: c.pid}
	if partial != nil {
		return list, fmt.Errorf("%w: %w", ErrPartial, partial)
	}
	return list, nil
}

// identify reads the runtime's version and pid. If that fails the old values stay: they are
// used for logs, and to protect the process.
func (c *CRI) identify(ctx context.Context) {
	if !c.identified.IsZero() && time.Since(c.identified) < identifyInterval {
		return
	}
	version, err := c.client.Version(ctx)
	if err != nil {
		return
	}
	pid, err := cri.PeerPID(c.endpoint)
	if err != nil {
		return
	}
	c.version, c.pid, c.identified = version, pid, time.Now()
}

func (c *CRI) pods(ctx context.Context, sandboxes []cri.Sandbox, containers []cri.Container) []Pod {
	now := time.Now()
	in := make(map[string][]cri.Container, len(sandboxes))
	live := make(map[string]bool, len(sandboxes))
	c.containers.begin()
	c.sandboxes.begin()
	for _, ctr := range containers {
		in[ctr.SandboxID] = append(in[ctr.SandboxID], ctr)
		if ctr.State != cri.StateExited {
			live[ctr.SandboxID] = true
			c.containers.want(ctr.ID, uint8(ctr.State), now)
		}
	}
	for _, s := range sandboxes {
		if s.Ready || live[s.ID] {
			ready := uint8(0)
			if s.Ready {
				ready = 1
			}
			c.sandboxes.want(s.ID, ready, now)
		}
	}
	// One list spends at most the time until the next one on single status calls.
	ctx, cancel := context.WithTimeout(ctx, ListInterval)
	defer cancel()
	parallel(append(c.containers.due(ctx, c.container), c.sandboxes.due(ctx, c.client.SandboxDetail)...))

	pods := make([]Pod, 0, len(sandboxes))
	for _, s := range sandboxes {
		p := Pod{UID: s.Labels[labelUID], Namespace: s.Labels[labelNamespace], Name: s.Labels[labelName]}
		if p.UID == "" || p.Name == "" {
			p.UID, p.Namespace, p.Name = s.UID, s.Namespace, s.Name
		}
		p.Sandbox.SandboxDetail, p.Sandbox.Err = c.sandboxes.get(s.ID)
		p.Sandbox.Sandbox = withHandler(s, p.Sandbox.RuntimeHandler)
		for _, listed := range in[s.ID] {
			var ctr Container
			ctr.ContainerDetail, ctr.Err = c.containers.get(listed.ID)
			ctr.Container = listed
			p.Containers = append(p.Containers, ctr)
		}
		pods = append(pods, p)
	}
	return pods
}

// withHandler returns a sandbox of the latest list, with the runtime handler of its details
// if the list has none.
func withHandler(listed cri.Sandbox, handler string) cri.Sandbox {
	if listed.RuntimeHandler == "" {
		listed.RuntimeHandler = handler
	}
	return listed
}

// errNoPID means that a container runs and the runtime does not report its first process.
var errNoPID = errors.New("the runtime reports no pid")

func (c *CRI) container(ctx context.Context, id string) (cri.ContainerDetail, error) {
	d, err := c.client.ContainerDetail(ctx, id)
	if err == nil && d.State == cri.StateRunning && d.PID == 0 {
		err = errNoPID
	}
	return d, err
}
