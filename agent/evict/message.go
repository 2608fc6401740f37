package evict

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/evictd/evictd/agent/signal"
)

// ReasonEvicted is the reason in an evicted pod's status.
const ReasonEvicted = "Evicted"

// The keys of the annotations of an eviction.
const (
	offendingContainers      = "offending_containers"
	offendingContainersUsage = "offending_containers_usage"
	offendingPod             = "offending_pod"
	offendingPodUsage        = "offending_pod_usage"
	starvedResource          = "starved_resource"
)

// message returns the kubelet's eviction message and annotations
// (pkg/kubelet/eviction/helpers.go). The message is identical, including the trailing
// space, because users and controllers parse it. The annotations are nil for a pod
// without statistics.
func message(pod *Pod, t signal.Threshold, o signal.Observation) (string, map[string]string) {
	r := t.Signal.Resource()
	value := t.Value.Of(o.Capacity)
	var b strings.Builder
	fmt.Fprintf(&b, "The node was low on resource: %s. ", r)
	fmt.Fprintf(&b, "Threshold quantity: %s, available: %s. ", value.String(), t.Signal.Quantity(o.Available))
	if !pod.measured(t.Signal) {
		return b.String(), nil
	}
	annotations := map[string]string{}
	if whole := pod.Resources.Requests.Memory; r == signal.Memory && whole != nil {
		usage := bytes(pod.Usage.Memory)
		fmt.Fprintf(&b, "Pod %s was using %s, request is %s, has larger consumption of %s. ", pod.Name, usage, whole, r)
		annotations[offendingPod] = pod.Name
		annotations[offendingPodUsage] = usage.String()
	}
	var names, usages []string
	containers := [][]Container{pod.Containers, pod.InitContainers}
	if pod.SummedRequests {
		containers = nil // whether one uses more than it requests is not known
	}
	for _, cs := range containers {
		for i := range cs {
			c := &cs[i]
			var used int64
			switch r {
			case signal.Memory:
				used = c.Usage.Memory
			case signal.EphemeralStorage:
				used = saturatingAdd(c.Usage.Rootfs, c.Usage.Logs)
			default:
				continue
			}
			request := c.Resources.Requests.Amount(r)
			if request == nil {
				request = &resource.Quantity{}
			}
			text := request.String()
			if r == signal.Memory && c.MemoryRequestText != "" {
				text = c.MemoryRequestText
			}
			usage := bytes(used)
			if usage.Cmp(*request) > 0 {
				fmt.Fprintf(&b, "Container %s was using %s, request is %s, has larger consumption of %s. ", c.Name, usage, text, r)
				names = append(names, c.Name)
				usages = append(usages, usage.String())
			}
		}
	}
	annotations[offendingContainers] = strings.Join(names, ",")
	annotations[offendingContainersUsage] = strings.Join(usages, ",")
	annotations[starvedResource] = string(r)
	return b.String(), annotations
}

func bytes(n int64) *resource.Quantity { return resource.NewQuantity(n, resource.BinarySI) }
