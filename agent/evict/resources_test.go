package evict

import (
	"math"
	"testing"

	"github.com/evictd/evictd/agent/signal"
)

// SetDefaults sets requests as the API server does, in the same notation.
func TestSetDefaults(t *testing.T) {
	p := Pod{
		Containers: []Container{
			{Resources: Resources{Limits: Amounts{CPU: qty("1"), Memory: qty("1Gi"), EphemeralStorage: qty("5Gi")}, Requests: Amounts{Memory: qty("500M")}}},
			{Resources: Resources{Requests: Amounts{Memory: qty("1M")}}},
		},
		InitContainers: []Container{{Resources: Resources{Limits: Amounts{Memory: qty("2Gi")}}}},
		Resources:      Resources{Limits: Amounts{CPU: qty("3"), Memory: qty("4Gi")}},
	}
	p.SetDefaults()
	texts := func(a Amounts) [3]string {
		var t [3]string
		for i, q := range a.fields() {
			if *q != nil {
				t[i] = (*q).String()
			}
		}
		return t
	}
	for _, tt := range []struct {
		name string
		got  Amounts
		want [3]string
	}{
		{"limit if there is no request", p.Containers[0].Resources.Requests, [3]string{"1", "500M", "5Gi"}},
		{"absent if there is no limit", p.Containers[1].Resources.Requests, [3]string{"", "1M", ""}},
		{"init containers too", p.InitContainers[0].Resources.Requests, [3]string{"", "2Gi", ""}},
		{"pod level: the containers' sum before the limits, no storage", p.Resources.Requests, [3]string{"1", "2Gi", ""}},
	} {
		if got := texts(tt.got); got != tt.want {
			t.Errorf("%s: requests = %v; want %v", tt.name, got, tt.want)
		}
	}

	alone := Pod{Containers: []Container{{}}, Resources: Resources{Limits: Amounts{Memory: qty("4Gi")}}}
	alone.SetDefaults()
	if got, want := texts(alone.Resources.Requests), [3]string{"", "4Gi", ""}; got != want {
		t.Errorf("pod-level requests with limits only = %v; want %v", got, want)
	}
	requests := Pod{
		Containers: []Container{{Resources: Resources{Requests: Amounts{Memory: qty("1Gi")}}}},
		Resources:  Resources{Requests: Amounts{CPU: qty("1")}},
	}
	requests.SetDefaults()
	if got, want := texts(requests.Resources.Requests), [3]string{"1", "", ""}; got != want {
		t.Errorf("pod-level requests without limits = %v; want %v", got, want)
	}
	sum := Pod{Containers: []Container{{Resources: Resources{Requests: Amounts{Memory: qty("1")}}}}}
	before := *sum.Containers[0].Resources.Requests.Memory
	sum.aggregate(func(c *Container) Amounts { return c.Resources.Requests })
	if got := *sum.Containers[0].Resources.Requests.Memory; got != before {
		t.Errorf("aggregate changed a container's request to %v", got)
	}
}

func TestRequest(t *testing.T) {
	container := func(memory string) Container {
		return Container{Resources: Resources{Requests: Amounts{Memory: qty(memory)}}}
	}
	sidecar := func(memory string) Container {
		c := container(memory)
		c.Sidecar = true
		return c
	}
	for _, tt := range []struct {
		name string
		pod  Pod
		want int64
	}{
		{"none", Pod{Containers: []Container{{}}}, 0},
		{"sum", Pod{Containers: []Container{container("1Gi"), {}, container("1Mi")}}, gi + mi},
		{"the larger init container", Pod{Containers: []Container{container("10"), container("20")}, InitContainers: []Container{container("31"), container("5")}}, 31},
		{"init containers are not summed", Pod{Containers: []Container{container("40")}, InitContainers: []Container{container("31"), container("35")}}, 40},
		{"overhead on a request", Pod{Containers: []Container{container("10")}, Overhead: Amounts{Memory: qty("5")}}, 15},
		{"no overhead without a request", Pod{Containers: []Container{{}}, Overhead: Amounts{Memory: qty("5")}}, 0},
		{"pod-level", Pod{Containers: []Container{container("10")}, Resources: Resources{Requests: Amounts{Memory: qty("7")}}}, 7},
		{"pod-level 0", Pod{Containers: []Container{container("10")}, Resources: Resources{Requests: Amounts{Memory: qty("0")}}, Overhead: Amounts{Memory: qty("5")}}, 0},
		{"pod-level of another resource", Pod{Containers: []Container{container("10")}, Resources: Resources{Requests: Amounts{CPU: qty("1")}}}, 10},
		{"fractions are summed, then dropped", Pod{Containers: []Container{container("1"), container("600m"), container("600m")}}, 2},
		{"fractions first", Pod{Containers: []Container{container("600m"), container("7")}}, 7},
		{"sidecars are summed", Pod{Containers: []Container{container("10")}, InitContainers: []Container{sidecar("4"), container("3"), sidecar("5")}}, 19},
		{"sidecars alone", Pod{Containers: []Container{{}}, InitContainers: []Container{sidecar("4"), sidecar("5")}}, 9},
		{"an init container with the sidecars before it", Pod{Containers: []Container{container("10")}, InitContainers: []Container{sidecar("4"), container("20"), sidecar("5")}}, 24},
		{"a sidecar after the largest init container", Pod{Containers: []Container{container("10")}, InitContainers: []Container{container("20"), sidecar("4")}}, 20},
		{"sidecar and overhead", Pod{Containers: []Container{{}}, InitContainers: []Container{sidecar("4")}, Overhead: Amounts{Memory: qty("5")}}, 9},
		{"pod-level before sidecars", Pod{Containers: []Container{container("10")}, InitContainers: []Container{sidecar("4")}, Resources: Resources{Requests: Amounts{Memory: qty("7")}}}, 7},
		{"fractions of sidecars", Pod{Containers: []Container{container("600m")}, InitContainers: []Container{sidecar("600m"), container("500m")}}, 1},
		{"sidecars above int64", Pod{Containers: []Container{container("9223372036854775807")}, InitContainers: []Container{sidecar("9223372036854775807"), sidecar("600m")}}, math.MaxInt64},
		{"above int64", Pod{Containers: []Container{container("9223372036854775807"), container("9223372036854775807")}}, math.MaxInt64},
	} {
		if got := tt.pod.Request(signal.Memory); got != tt.want {
			t.Errorf("%s: Request(memory) = %d; want %d", tt.name, got, tt.want)
		}
	}
	summed := Pod{SummedRequests: true, Containers: []Container{{}}, Resources: Resources{Requests: Amounts{Memory: qty("7"), EphemeralStorage: qty("5")}}}
	if m, s := summed.Request(signal.Memory), summed.Request(signal.EphemeralStorage); m != 7 || s != 5 {
		t.Errorf("requests of the whole pod: %d, %d; want 7, 5", m, s)
	}
	storage := Pod{
		Containers:     []Container{{Resources: Resources{Requests: Amounts{EphemeralStorage: qty("2Gi"), Memory: qty("1Mi")}}}},
		InitContainers: []Container{{Sidecar: true, Resources: Resources{Requests: Amounts{EphemeralStorage: qty("1Gi"), Memory: qty("1Mi")}}}},
		Resources:      Resources{Requests: Amounts{Memory: qty("9Gi")}},
	}
	for r, want := range map[signal.Resource]int64{signal.EphemeralStorage: 3 * gi, signal.Memory: 9 * gi, signal.Inodes: 0, signal.PIDs: 0} {
		if got := storage.Request(r); got != want {
			t.Errorf("Request(%s) = %d; want %d", r, got, want)
		}
	}
}
