package fencing

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/evictd/evictd/tests/bmc"
	"github.com/evictd/evictd/tests/controlplane"
	"github.com/evictd/evictd/tests/node"
)

// graceArgs make a node that does not renew its Lease NotReady after 10 s instead of 50 s.
var graceArgs = []string{"--node-monitor-grace-period=10s", "--node-monitor-period=1s"}

// noForceDetach switches off the forced detachment of volumes, which takes 6 min: only the out-of-service taint then
// releases the volumes of a lost node.
const noForceDetach = "--disable-force-detach-on-timeout=true"

// controllers are those of kube-controller-manager that have a part in the loss of a node.
var controllers = []string{
	"statefulset-controller", "node-lifecycle-controller", "taint-eviction-controller", "pod-garbage-collector-controller",
	"garbage-collector-controller", "job-controller", "persistentvolume-binder-controller", "persistentvolume-attach-detach-controller",
}

const (
	attacherToken   = "attacher-token"
	controllerToken = "controller-token"
	// username and password are those of the BMCs.
	username, password = "admin", "evictd-secret"
)

// Cluster is a control plane with machines, their BMCs and a StatefulSet with a volume.
type Cluster struct {
	*controlplane.ControlPlane
	Machines map[string]*Machine
	BMCs     map[string]*bmc.Simulator
	Timeline *Timeline
	Storage  *Storage

	cancel     context.CancelFunc
	goroutines sync.WaitGroup
	mu         sync.Mutex
	problems   []string
	controller *Controller
}

// Start starts a cluster of machines. A pod of a StatefulSet runs on the first one, and its volume is attached to it.
// Volumes are not detached by force.
func Start(ctx context.Context, names ...string) (*Cluster, error) {
	return startWith(ctx, []string{noForceDetach}, names...)
}

// startWith is Start with other arguments of kube-controller-manager next to graceArgs.
func startWith(ctx context.Context, args []string, names ...string) (_ *Cluster, err error) {
	o := controlplane.Options{AuditPolicy: auditPolicy, Users: []controlplane.User{
		{Token: attacherToken, Name: "csi-attacher", UID: "csi-attacher", Groups: []string{"system:masters"}},
		controlplane.ServiceAccount(controllerToken, Namespace, "evictd-controller"),
	}}
	for _, name := range names {
		o.Users = append(o.Users, controlplane.User{
			Token: nodeToken(name), Name: "system:node:" + name, UID: name, Groups: []string{"system:nodes"},
		})
	}
	c := &Cluster{Machines: map[string]*Machine{}, BMCs: map[string]*bmc.Simulator{}, Storage: newStorage()}
	if c.ControlPlane, err = controlplane.Start(ctx, o); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%w; %s", err, c.LogTails()), c.Close())
		}
	}()
	c.Timeline = newTimeline(c.AuditLog())
	if err := errors.Join(c.StartControllers(controllers, slices.Concat(graceArgs, args)...), c.StartScheduler()); err != nil {
		return nil, err
	}
	background, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	for _, name := range names {
		if err := c.addMachine(ctx, background, name); err != nil {
			return nil, err
		}
	}
	a := &attacher{client: c.Client(attacherToken), report: c.report}
	c.goroutines.Go(func() { a.run(background) })
	return c, c.startWorkload(ctx, names)
}

func nodeToken(name string) string { return "token-of-" + name }

// addMachine adds a machine that is on, with its BMC.
func (c *Cluster) addMachine(ctx, background context.Context, name string) error {
	m := &Machine{
		Name: name, SystemUUID: newUUID(), client: c.Client(nodeToken(name)), storage: c.Storage, log: c.Timeline.add, report: c.report,
	}
	sim, err := bmc.Start(ctx, bmc.Options{
		Dir: filepath.Join(c.Dir, "bmc-"+name), Name: name, GUID: strings.ReplaceAll(m.SystemUUID, "-", ""),
		Username: username, Password: password,
	})
	if err != nil {
		return err
	}
	c.Machines[name], c.BMCs[name] = m, sim
	c.Timeline.mu.Lock()
	c.Timeline.bmcs[name] = sim
	c.Timeline.mu.Unlock()
	m.SetPower(true)
	c.goroutines.Go(func() { c.follow(background, m, sim) })
	return nil
}

// followInterval is how often the power of a BMC is read: how late a machine may notice that it is off.
const followInterval = 20 * time.Millisecond

// follow gives a machine the power that its BMC has switched.
func (c *Cluster) follow(ctx context.Context, m *Machine, sim *bmc.Simulator) {
	for {
		on, err := sim.Power()
		if err != nil {
			c.report(err)
		} else {
			m.SetPower(on)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(followInterval):
		}
	}
}

// startWorkload creates the StatefulSet when the machines are ready, and returns when its pod runs on the first one.
func (c *Cluster) startWorkload(ctx context.Context, names []string) error {
	for _, name := range names {
		if err := c.Await(ctx, name+" to be ready", func(s *Snapshot) bool { return s.Ready[name] }); err != nil {
			return err
		}
	}
	if err := createWorkload(ctx, c.Admin, names[0]); err != nil {
		return err
	}
	return c.Await(ctx, "the pod to run on "+names[0], func(s *Snapshot) bool {
		return s.PodNode == names[0] && s.PodRunning && slices.Equal(s.Attached, []string{names[0]})
	})
}

// report keeps an error of a stand-in. Requests fail while the API server is paused or restarted.
func (c *Cluster) report(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.problems = append(c.problems, time.Now().Format("15:04:05.000 ")+err.Error())
}

// Report returns all that may explain a failure: events, NodeFences, errors of the stand-ins, and the ends of the logs.
func (c *Cluster) Report() string {
	events, err := c.Timeline.Events()
	var start time.Time
	if len(events) > 0 {
		start = events[0].At
	}
	fences, err2 := c.Admin.Request(context.Background(), http.MethodGet, fencePath, "", nil)
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Sprintf("events:\n%s\nNodeFences:\n%s\nerrors: %v\nstand-ins:\n%s\n%s", Print(events, start), fences, errors.Join(err, err2),
		strings.Join(c.problems[max(0, len(c.problems)-20):], "\n"), c.LogTails())
}

// awaitTimeout bounds each wait.
var awaitTimeout = node.ScaleTimeout(1 * time.Minute)

// Await reads the cluster until ok returns true.
func (c *Cluster) Await(ctx context.Context, what string, ok func(*Snapshot) bool) error {
	return c.poll(ctx, what, func() (bool, error) {
		s, err := c.Snapshot(ctx)
		return err == nil && ok(s), err
	})
}

// AwaitEvent reads the timeline until it has an event.
func (c *Cluster) AwaitEvent(ctx context.Context, kind Kind, match ...func(*Event) bool) (e Event, err error) {
	return e, c.poll(ctx, string(kind), func() (found bool, err error) {
		events, err := c.Timeline.Events()
		e, found = Find(events, kind, match...)
		return found, err
	})
}

func (c *Cluster) poll(ctx context.Context, what string, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, awaitTimeout)
	defer cancel()
	for {
		ok, err := done()
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, errors.Join(context.Cause(ctx), err))
		case <-time.After(syncInterval):
		}
	}
}

// Close ends evictd-controller, the machines, the BMCs and the control plane, and removes all files. It is idempotent.
func (c *Cluster) Close() error {
	var errs []error
	if c.controller != nil {
		errs = append(errs, c.controller.Kill())
	}
	for _, m := range c.Machines {
		m.close()
	}
	if c.cancel != nil {
		c.cancel()
	}
	c.goroutines.Wait()
	for _, sim := range c.BMCs {
		sim.Close()
	}
	return errors.Join(append(errs, c.ControlPlane.Close())...)
}
