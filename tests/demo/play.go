package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/tests/daemon"
	"github.com/evictd/evictd/tests/node"
)

const (
	mebibyte = 1 << 20
	gibibyte = 1 << 30

	// hogTakes is what the hog would take if it were not stopped, at hogRate a second. The threshold is crossed half
	// way, so that other changes on the machine do not matter.
	hogTakes = 3 * gibibyte
	hogRate  = gibibyte
	// podsLimit bounds all pods together, whatever goes wrong; leastAvailable is what the machine must have to spare.
	podsLimit      = hogTakes + gibibyte
	leastAvailable = podsLimit + gibibyte
	// patience bounds the wait for each step. On a busy machine the hog may take a tenth of its rate.
	patience = 30 * time.Second
	// pollEvery is how often memory.available and evictd's record are read.
	pollEvery = 2 * time.Millisecond
)

// demo is one demonstration.
type demo struct {
	out        io.Writer
	start      time.Time
	executable string
	dryRun     bool
	dir        string
	node       *node.Node
	pods       []node.Pod // all but the hog
	hog        node.Pod
	daemon     *daemon.Daemon
	threshold  int64
	calm       int64 // memory.available before the hog wakes up
	lowest     int64 // memory.available at its lowest
	shown      gauge // what was printed last
}

// role is a pod of the demonstration: one that uses its memory from the start on, or the hog.
type role struct {
	name                 string
	qos                  node.QoS
	uses, request, limit int64 // 0 is none
	priority             int
}

var (
	bystanders = []role{
		{name: "database", qos: node.Guaranteed, uses: 256 * mebibyte, request: 320 * mebibyte, limit: 320 * mebibyte, priority: 1000},
		{name: "web", qos: node.Burstable, uses: 128 * mebibyte, request: 256 * mebibyte, priority: 500},
		{name: "batch", qos: node.BestEffort, uses: 64 * mebibyte},
	}
	hog = role{name: "hog", qos: node.Burstable, request: 64 * mebibyte}
)

// runPod starts a pod without the annotation that would make it a kubelet's, and with evictd's for what only a kubelet
// knows. It returns when the pod uses its memory.
func (d *demo) runPod(ctx context.Context, r role, then string, args ...string) (node.Pod, error) {
	annotations, request := map[string]string{"evictd.io/priority": strconv.Itoa(r.priority)}, "requests nothing"
	if r.request > 0 {
		annotations["evictd.io/memory-request"] = fmt.Sprintf("%dMi", r.request/mebibyte)
		request = "requests " + control.Bytes(r.request)
	}
	pod, err := d.node.RunPod(ctx, node.PodSpec{
		Name: r.name, Namespace: "demo", QoS: r.qos, Annotations: annotations, TerminationGracePeriod: time.Second,
		Containers: []node.ContainerSpec{{Args: args, MemoryRequest: r.request, MemoryLimit: r.limit}},
	})
	if err != nil {
		return pod, err
	}
	err = d.await(ctx, r.name+" to use its memory", func() (bool, error) {
		usage, err := d.node.MemoryUsage(pod.Containers[0].Cgroup)
		return usage >= r.uses, err
	})
	d.say("pod %-8s  %-10s  priority %4d, %s, %s", r.name, r.qos, r.priority, request, then)
	return pod, err
}

// play shows one scene after the other, and ends evictd.
func (d *demo) play(ctx context.Context) (err error) {
	d.chapter("Its pods")
	for _, r := range bystanders {
		pod, err := d.runPod(ctx, r, "holds "+control.Bytes(r.uses), "hold", "-bytes", strconv.FormatInt(r.uses, 10))
		if err != nil {
			return err
		}
		d.pods = append(d.pods, pod)
	}
	d.hog, err = d.runPod(ctx, hog, "still asleep", "grow", "-bytes", strconv.Itoa(hogTakes), "-rate", strconv.Itoa(hogRate), "-delay", "1h")
	if err != nil {
		return err
	}
	d.chapter("evictd")
	if err := d.startDaemon(); err != nil {
		return err
	}
	defer func() {
		if stopped := d.daemon.Stop(); err == nil {
			err = stopped
		}
	}()
	if err := d.introduce(ctx); err != nil {
		return err
	}
	d.chapter("The hog wakes up and takes up to %s a second; memory.available:", control.Bytes(hogRate))
	record, err := d.pressure(ctx)
	if err != nil {
		return fmt.Errorf("%w; evictd's log:\n%s", err, d.daemon.LogTail())
	}
	d.chapter("Did it go well?")
	return d.check(ctx, &record)
}

// configuration is what evictd is given. The threshold on what kubepods may use is switched off: the pods of a
// demonstration are limited to far less than the node has.
const configuration = `apiVersion: evictd.io/v1alpha1
kind: AgentConfiguration
runtimeEndpoint: %s
cgroupRoot: %s
dryRun: %t
evictionHard:
  memory.available: %dMi
enforceNodeAllocatable: [none]
# Otherwise a machine that has just compiled something holds the kill back until the cache of it can't explain the
# crossing any more.
memoryAccounting: available
evictionPressureTransitionPeriod: 2s
`

// startDaemon starts evictd with a threshold half way.
func (d *demo) startDaemon() (err error) {
	if d.calm, err = d.available(); err != nil {
		return err
	}
	if d.calm < leastAvailable {
		return fmt.Errorf("needs %s of available memory; there is %s", control.Bytes(leastAvailable), control.Bytes(d.calm))
	}
	mebibytes := (d.calm - hogTakes/2) / mebibyte
	d.threshold = mebibytes * mebibyte
	config := fmt.Sprintf(configuration, d.node.Endpoint(), d.node.CgroupRoot(), d.dryRun, mebibytes)
	d.daemon, err = daemon.Start(daemon.Options{Executable: d.executable, Dir: d.dir, Config: config})
	return err
}

// introduce waits until evictd watches, and prints what it sees.
func (d *demo) introduce(ctx context.Context) error {
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s, err := d.daemon.Await(waiting, func(s *control.Status) bool {
		return s.Runtime.Connected && s.Pods.Count == len(d.pods)+1 && s.Signals[signal.MemoryAvailable].Status == control.Observed
	})
	if err != nil {
		return err
	}
	doing := "enforcing"
	if s.Mode.DryRun {
		doing = "in dry run (" + strings.Join(s.Mode.Why, "; ") + ")"
	}
	d.say("evictd watches %d pods of %s %s, %s", s.Pods.Count, s.Runtime.Name, s.Runtime.Version, doing)
	d.more("memory.available is %s, the threshold %s", control.Bytes(*s.Signals[signal.MemoryAvailable].Available), control.Bytes(d.threshold))
	explanation, err := d.daemon.Client().Explain(ctx, signal.MemoryAvailable)
	if err != nil {
		return err
	}
	d.more("If memory ran out now, they would go in this order:")
	ranked := make([]evict.Ranked, len(explanation.Ranking))
	for i, c := range explanation.Ranking {
		ranked[i] = c.Ranked
	}
	d.ranking(ranked)
	return nil
}

func (d *demo) ranking(ranked []evict.Ranked) {
	for i, r := range ranked {
		d.more("  %d. %-13s  %s", i+1, r.Pod, control.Why(signal.MemoryAvailable, ranked, i))
	}
}

// await polls until ok is true.
func (d *demo) await(ctx context.Context, what string, ok func() (bool, error)) error {
	for end := time.Now().Add(patience); ; time.Sleep(pollEvery) {
		switch is, err := ok(); {
		case err != nil || is:
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case time.Now().After(end):
			return fmt.Errorf("wait for %s: not within %v", what, patience)
		}
	}
}
