package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/tests/node"
)

const (
	mebibyte = 1 << 20
	gibibyte = 1 << 30

	namespace = "demo"

	// hogTakes is what the hog would take if nobody stopped it, at hogRate a second; the threshold is crossed on
	// half the way, so that what else happens on the machine meanwhile does not matter.
	hogTakes = 3 * gibibyte
	hogRate  = gibibyte
	// podsLimit bounds all pods together, whatever goes wrong.
	podsLimit = hogTakes + gibibyte
	// leastAvailable is what the machine must have to spare.
	leastAvailable = podsLimit + gibibyte
)

// role is a pod of the demonstration.
type role struct {
	name     string
	qos      node.QoS
	holds    int64 // bytes, from the start on
	request  int64 // 0 is none
	limit    int64 // 0 is none
	priority int
}

// bystanders are the pods that must live.
var bystanders = []role{
	{name: "database", qos: node.Guaranteed, holds: 256 * mebibyte, request: 320 * mebibyte, limit: 320 * mebibyte, priority: 1000},
	{name: "web", qos: node.Burstable, holds: 128 * mebibyte, request: 256 * mebibyte, priority: 500},
	{name: "batch", qos: node.BestEffort, holds: 64 * mebibyte},
}

var hog = role{name: "hog", qos: node.Burstable, request: 64 * mebibyte}

// spec makes the pod one of evictd's own: without the annotation of a kubelet, with what a kubelet would know of it in
// evictd's.
func (r role) spec(args ...string) node.PodSpec {
	annotations := map[string]string{"evictd.io/priority": strconv.Itoa(r.priority)}
	if r.request > 0 {
		annotations["evictd.io/memory-request"] = fmt.Sprintf("%dMi", r.request/mebibyte)
	}
	return node.PodSpec{
		Name: r.name, Namespace: namespace, QoS: r.qos, Annotations: annotations,
		TerminationGracePeriod: time.Second,
		Containers:             []node.ContainerSpec{{Args: args, MemoryRequest: r.request, MemoryLimit: r.limit}},
	}
}

func (r role) String() string {
	request := "requests nothing"
	if r.request > 0 {
		request = "requests " + control.Bytes(r.request)
	}
	return fmt.Sprintf("%-8s  %-10s  priority %4d, %s", r.name, r.qos, r.priority, request)
}

// enter runs the bystanders until they hold what they hold, and the hog, which waits for its cue.
func (p *play) enter(ctx context.Context) error {
	for _, r := range bystanders {
		pod, err := p.node.RunPod(ctx, r.spec("hold", "-bytes", strconv.FormatInt(r.holds, 10)))
		if err != nil {
			return err
		}
		if err := p.await(ctx, r.name+" to hold its memory", func() (bool, error) {
			usage, err := p.node.MemoryUsage(pod.Containers[0].Cgroup)
			return usage >= r.holds, err
		}); err != nil {
			return err
		}
		p.pods = append(p.pods, pod)
		p.timeline.say("pod %s, holds %s", r, control.Bytes(r.holds))
	}
	var err error
	p.hog, err = p.node.RunPod(ctx, hog.spec("grow", "-bytes", strconv.FormatInt(hogTakes, 10), "-rate", strconv.FormatInt(hogRate, 10), "-delay", "1h"))
	if err != nil {
		return err
	}
	p.timeline.say("pod %s, still asleep", hog)
	return nil
}
