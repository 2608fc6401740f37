package controller

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/fence/nodefence"
)

const (
	// probeInterval is the time between two probes of a device, without jitter.
	probeInterval = time.Hour
	// probeSpread is the time in which all devices are probed first, and not at once.
	probeSpread = 10 * time.Minute
	// probePeriod is how often the devices are looked through for one that is due.
	probePeriod = 5 * time.Second
)

// probes read the status and the UUID of each configured device on a schedule, one at a time, so that a broken BMC is
// found before it is needed. They do not touch the devices of a node with a fence.
type probes struct {
	config   *configuration
	cached   client.Reader
	executor *executor
	recorder recorder
	log      *slog.Logger

	mu    sync.Mutex
	known map[probedDevice]*probe
}

type probedDevice struct{ node, device string }

// probe is the result of the last probe of a device.
type probe struct {
	due, ended time.Time
	// failure is why the device can't be used for a fence, empty if it can.
	failure string
}

// state is the result in one word. A device that was not yet probed is unknown.
func (p *probe) state() string {
	switch {
	case p.ended.IsZero():
		return "unknown"
	case p.failure != "":
		return "unreachable"
	}
	return "reachable"
}

var (
	deviceReachable = prometheus.NewDesc("evictd_fence_device_reachable",
		"Whether all devices of a node answered their last probe as its own.", []string{"node"}, nil)
	deviceStates = prometheus.NewDesc("evictd_fence_devices", "Devices of all plans, by the result of their last probe.",
		[]string{"state"}, nil)
	deviceProbed = prometheus.NewDesc("evictd_fence_device_probe_timestamp_seconds",
		"Time of the oldest last probe of a device of a node.", []string{"node"}, nil)
)

// Start implements manager.Runnable. It runs while this process is the leader.
func (p *probes) Start(ctx context.Context) error {
	for {
		p.next(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(probePeriod):
		}
	}
}

// next probes the device that is due for the longest time, if one is.
func (p *probes) next(ctx context.Context) {
	config, loaded := p.config.current()
	if !loaded {
		return
	}
	now := time.Now()
	for _, d := range p.due(config.Plans, now) {
		m, power := probedMethod(config.Plans[d.node], d.device)
		node, free := p.free(ctx, d.node)
		if m == nil || !free {
			continue // the next one; this one is looked at again in probePeriod
		}
		r := p.executor.reading(d.node, "", m)
		if ctx.Err() == nil {
			p.ended(d, node, probeFailure(&r, m, node, power), time.Now())
		}
		return
	}
}

// probedDevices returns the devices of a plan that are probed. A device can be there twice.
func probedDevices(pl *fence.Plan) (devices []string) {
	for _, level := range slices.Concat(pl.PowerManagement, pl.Isolation, pl.Recovery) {
		for i := range level.Methods {
			// A Job is owned by a NodeFence, and there is none.
			if device := level.Methods[i].Device; device != "" && level.Methods[i].Executor != fence.InJob {
				devices = append(devices, device)
			}
		}
	}
	return devices
}

// due adds the devices that are not known, forgets those that no plan has, and returns those that are due, the oldest
// first.
func (p *probes) due(plans map[string]fence.Plan, now time.Time) []probedDevice {
	p.mu.Lock()
	defer p.mu.Unlock()
	planned := make(map[probedDevice]bool)
	for node, pl := range plans {
		for _, device := range probedDevices(&pl) {
			planned[probedDevice{node, device}] = true
		}
	}
	maps.DeleteFunc(p.known, func(d probedDevice, _ *probe) bool { return !planned[d] })
	var due []probedDevice
	for d := range planned {
		known := p.known[d]
		if known == nil {
			if p.known == nil {
				p.known = make(map[probedDevice]*probe)
			}
			known = &probe{due: now.Add(rand.N(probeSpread))}
			p.known[d] = known
		}
		if !now.Before(known.due) {
			due = append(due, d)
		}
	}
	slices.SortFunc(due, func(a, b probedDevice) int {
		return cmp.Or(p.known[a].due.Compare(p.known[b].due), cmp.Compare(a.node, b.node), cmp.Compare(a.device, b.device))
	})
	return due
}

// free returns a node, and whether its devices are not those of a fence now.
func (p *probes) free(ctx context.Context, name string) (*corev1.Node, bool) {
	nf, node := &nodefence.NodeFence{}, &corev1.Node{}
	err := p.cached.Get(ctx, types.NamespacedName{Name: nodefence.ObjectName(name)}, nf)
	if client.IgnoreNotFound(err) != nil || err == nil && !finished(nf) {
		return nil, false
	}
	err = p.cached.Get(ctx, types.NamespacedName{Name: name}, node)
	return node, err == nil
}

// probedMethod returns a method with which a device is read without a Job, nil if there is none, and whether the device
// switches the power of the machine.
func probedMethod(pl fence.Plan, device string) (m *fence.Method, power bool) {
	for i, levels := range [][]fence.Level{pl.PowerManagement, pl.Isolation, pl.Recovery} {
		for _, level := range levels {
			for k := range level.Methods {
				found := &level.Methods[k]
				if found.Device != device {
					continue
				}
				power = power || i == 0
				if m == nil && found.Executor != fence.InJob {
					m = found
				}
			}
		}
	}
	return m, power
}

// probeFailure returns why a device could not be used for a fence of a node, empty if it could.
func probeFailure(r *fence.Reading, m *fence.Method, node *corev1.Node, power bool) string {
	switch uuid := node.Status.NodeInfo.SystemUUID; {
	case r.Power == fence.PowerUnknown && r.Error != "":
		return r.Error
	case r.Power == fence.PowerUnknown:
		return "it does not say whether it is on or off"
	case m.Identity != fence.CheckNone && fence.SameMachine(r.UUID, uuid) != fence.Yes:
		return fmt.Sprintf("its UUID %q does not match systemUUID %q of the node", r.UUID, uuid)
	case power && r.Power == fence.PowerOff && ready(node):
		return "it reads off although the node is Ready: it may be that of another machine"
	}
	return ""
}

// ended notes a probe, and reports a device that can no longer be used, or can again.
func (p *probes) ended(d probedDevice, node *corev1.Node, failure string, now time.Time) {
	p.mu.Lock()
	known := p.known[d]
	if known == nil {
		p.mu.Unlock()
		return
	}
	before := known.failure
	known.ended, known.failure = now, failure
	known.due = now.Add(probeInterval - probeInterval/10 + rand.N(probeInterval/5))
	only := len(p.devicesOf(d.node)) == 1
	p.mu.Unlock()
	switch {
	case failure != "" && before == "":
		message := fmt.Sprintf("device %s could not be used to fence the node: %s", d.device, failure)
		if only {
			message += "; the node has no other device"
		}
		p.log.Warn("fence device can't be used", "node", d.node, "device", d.device, "error", failure, "only_device", only)
		p.recorder.event(node, true, "FenceDeviceUnreachable", "Probe", message)
	case failure == "" && before != "":
		p.log.Info("fence device can be used again", "node", d.node, "device", d.device)
		p.recorder.event(node, false, "FenceDeviceReachable", "Probe", fmt.Sprintf("device %s answers again as the node's", d.device))
	}
}

// devicesOf returns the probes of a node's devices. p.mu is locked.
func (p *probes) devicesOf(node string) []*probe {
	var list []*probe
	for d, known := range p.known {
		if d.node == node {
			list = append(list, known)
		}
	}
	return list
}

// ofNode returns whether each device of a node was probed, and why those can't be used that failed.
func (p *probes) ofNode(node string) (complete bool, failures []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for d, known := range p.known {
		if d.node != node {
			continue
		}
		complete = true
		if known.failure != "" {
			failures = append(failures, "device "+d.device+": "+known.failure)
		}
	}
	slices.Sort(failures)
	for d, known := range p.known {
		complete = complete && (d.node != node || !known.ended.IsZero())
	}
	return complete, failures
}

// Describe implements prometheus.Collector.
func (p *probes) Describe(ch chan<- *prometheus.Desc) {
	ch <- deviceReachable
	ch <- deviceProbed
	ch <- deviceStates
}

// Collect implements prometheus.Collector. A node whose devices were not all probed yet has no series.
func (p *probes) Collect(ch chan<- prometheus.Metric) {
	p.mu.Lock()
	defer p.mu.Unlock()
	type result struct {
		reachable float64
		oldest    time.Time
	}
	nodes := make(map[string]result)
	states := map[string]int{"reachable": 0, "unreachable": 0, "unknown": 0}
	for d, known := range p.known {
		states[known.state()]++
		r, ok := nodes[d.node]
		if !ok {
			r = result{1, known.ended}
		}
		if known.failure != "" {
			r.reachable = 0
		}
		if known.ended.Before(r.oldest) {
			r.oldest = known.ended
		}
		nodes[d.node] = r
	}
	for state, n := range states {
		ch <- prometheus.MustNewConstMetric(deviceStates, prometheus.GaugeValue, float64(n), state)
	}
	for node, r := range nodes {
		if r.oldest.IsZero() {
			continue
		}
		ch <- prometheus.MustNewConstMetric(deviceReachable, prometheus.GaugeValue, r.reachable, node)
		ch <- prometheus.MustNewConstMetric(deviceProbed, prometheus.GaugeValue, float64(r.oldest.UnixMilli())/1000, node)
	}
}
