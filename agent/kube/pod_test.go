package kube

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
)

var quantitiesEqual = cmp.Comparer(func(a, b *resource.Quantity) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.String() == b.String()
})

// web returns facts in which every field is set.
func web() *Pod {
	return &Pod{
		UID: "u1", Namespace: "default", Name: "web-0", Labels: map[string]string{"app": "web"},
		Priority: 7, PriorityClassName: "high", Owner: Owner{"StatefulSet", "web"}, QoS: evict.Burstable, Exclusive: "StatefulSet",
		RestartPolicy: "Always", TerminationSeconds: new(int64(30)), Phase: "Running",
		Tolerations: []Toleration{{Key: "k", Operator: "Exists", Effect: "NoSchedule"}},
		Resources:   Resources{Requests: Amounts{Memory: "1Gi"}}, Overhead: Amounts{CPU: "250m"},
		Containers: []Container{{Name: "main", Resources: Resources{
			Requests: Amounts{CPU: "100m", Memory: "64Mi", EphemeralStorage: "1G"}, Limits: Amounts{Memory: "128Mi"},
		}}},
		InitContainers:      []Container{{Name: "proxy", Sidecar: true}},
		EphemeralContainers: []string{"debug"},
		Volumes:             []Volume{{Name: "cache", Type: evict.EmptyDir, Medium: "Memory", SizeLimit: "10Mi"}},
	}
}

func TestParse(t *testing.T) {
	q := func(s string) *resource.Quantity { return new(resource.MustParse(s)) }
	want := &evict.Pod{
		UID: "u1", Namespace: "default", Name: "web-0", Labels: map[string]string{"app": "web"},
		Priority: new(int32(7)), PriorityClassName: "high", QoS: evict.Burstable, TerminationGraceSeconds: new(int64(30)),
		Tolerations: []evict.Toleration{{Key: "k", Operator: "Exists", Effect: "NoSchedule"}},
		Resources:   evict.Resources{Requests: evict.Amounts{Memory: q("1Gi")}}, Overhead: evict.Amounts{CPU: q("250m")},
		Containers: []evict.Container{{Name: "main", Resources: evict.Resources{
			Requests: evict.Amounts{CPU: q("100m"), Memory: q("64Mi"), EphemeralStorage: q("1G")}, Limits: evict.Amounts{Memory: q("128Mi")},
		}}},
		InitContainers:      []evict.Container{{Name: "proxy", Sidecar: true}},
		EphemeralContainers: []evict.Container{{Name: "debug"}},
		Volumes:             []evict.Volume{{Name: "cache", Type: evict.EmptyDir, Medium: "Memory", SizeLimit: q("10Mi")}},
	}
	got, err := web().parse()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, quantitiesEqual); diff != "" {
		t.Errorf("parse() (-want +got):\n%s", diff)
	}
	daemon := web()
	daemon.Owner = Owner{"DaemonSet", "d"}
	if got, err := daemon.parse(); err != nil || !got.DaemonSet {
		t.Errorf("parse() of a DaemonSet's pod = %+v, %v; want DaemonSet", got, err)
	}
}

func TestParseRefuses(t *testing.T) {
	for want, change := range map[string]func(*Pod){
		`uid "" is not a name`:                         func(p *Pod) { p.UID = "" },
		`uid "a\nb" is not a name`:                     func(p *Pod) { p.UID = "a\nb" },
		`namespace "a/b" is not a name`:                func(p *Pod) { p.Namespace = "a/b" },
		`is not a name`:                                func(p *Pod) { p.Name = strings.Repeat("x", 254) },
		`owner.kind "\x1b[0m" is not a name`:           func(p *Pod) { p.Owner.Kind = "\x1b[0m" },
		`no containers`:                                func(p *Pod) { p.Containers = nil },
		`container name "" is not a name`:              func(p *Pod) { p.InitContainers[0].Name = "" },
		`qos is "Best"; want one of Guaranteed`:        func(p *Pod) { p.QoS = "Best" },
		`restartPolicy is "Sometimes"`:                 func(p *Pod) { p.RestartPolicy = "Sometimes" },
		`phase is "Done"`:                              func(p *Pod) { p.Phase = "Done" },
		`terminationGracePeriodSeconds is -1`:          func(p *Pod) { p.TerminationSeconds = new(int64(-1)) },
		`containers.main.requests.memory: "-1" is neg`: func(p *Pod) { p.Containers[0].Resources.Requests.Memory = "-1" },
		`overhead.memory: "x" is not a quantity`:       func(p *Pod) { p.Overhead.Memory = "x" },
		`volumes[0].sizeLimit: "1e1000000000" is not`:  func(p *Pod) { p.Volumes[0].SizeLimit = "1e1000000000" },
		`bytes of memory; want at most 16384`:          func(p *Pod) { p.EphemeralContainers = make([]string, 200) },
		`label "<" is not plain text`:                  func(p *Pod) { p.Labels = map[string]string{"<": ""} },
		`label "a" is not plain text`:                  func(p *Pod) { p.Labels["a"] = "\ufffd" },
		`label "app" is not plain text`:                func(p *Pod) { p.Labels["app"] = strings.Repeat("x", maxPlain+1) },
		`tolerations[0] is not plain text`:             func(p *Pod) { p.Tolerations[0].Value = "a&b" },
		`volumes[0] is not plain text`:                 func(p *Pod) { p.Volumes[0].Medium = "\u2028" },
		`ephemeralContainers[0] is not plain text`:     func(p *Pod) { p.EphemeralContainers[0] = "\\" },
		`exclusive is "x"; want one of annotation`:     func(p *Pod) { p.Exclusive = "x" },
		`deletionTimestamp is not in UTC`: func(p *Pod) {
			p.Deleted = time.Date(9999, 12, 31, 23, 59, 0, 0, time.FixedZone("", -23*3600))
		},
	} {
		p := web()
		change(p)
		if _, err := p.parse(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("parse() = %v; want %q", err, want)
		}
	}
}

// Facts that are too large lose labels first, then tolerations and volumes, and at last
// the single containers, but not their requests.
func TestReduce(t *testing.T) {
	labels := map[string]string{}
	for i := range 400 {
		labels[fmt.Sprintf("label-%d", i)] = strings.Repeat("v", 60)
	}
	var volumes []Volume
	for i := range 400 {
		volumes = append(volumes, Volume{Name: fmt.Sprintf("volume-%d", i), Type: evict.EmptyDir, SizeLimit: "1Gi"})
	}
	var containers []Container
	for i := range 3000 {
		containers = append(containers, Container{Name: fmt.Sprintf("c%d", i), Resources: Resources{Requests: Amounts{Memory: "1Mi", EphemeralStorage: "2Mi"}}})
	}
	var tiny []Container
	for i := range 200 {
		tiny = append(tiny, Container{Name: fmt.Sprintf("c%d", i)})
	}
	for _, tt := range []struct {
		name                        string
		change                      func(*Pod)
		labels, volumes, containers int
		memory, storage             int64
	}{
		{"small", func(*Pod) {}, 1, 1, 1, 1 << 30, 1e9},
		{"labels", func(p *Pod) { p.Labels = labels }, 0, 1, 1, 1 << 30, 1e9},
		{"volumes", func(p *Pod) { p.Volumes = volumes }, 0, 0, 1, 1 << 30, 1e9},
		{"containers", func(p *Pod) { p.Containers, p.Resources = containers, Resources{} }, 0, 0, 1, 3000 << 20, 6000 << 20},
		{"tiny containers", func(p *Pod) { p.Containers = tiny }, 0, 0, 1, 1 << 30, 0},
		{"all", func(p *Pod) { p.Containers, p.Labels, p.Volumes, p.QoS = containers, labels, volumes, "" }, 0, 0, 1, 1 << 30, 6000 << 20},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := web()
			tt.change(p)
			before, err := json.Marshal(p)
			if err != nil {
				t.Fatal(err)
			}
			line, err := encodePod(p)
			if err != nil || len(line) > maxPodSize {
				t.Fatalf("encodePod() = %d bytes, %v; want at most %d", len(line), err, maxPodSize)
			}
			if after, _ := json.Marshal(p); string(before) != string(after) {
				t.Error("encodePod() changed the pod")
			}
			m, err := decode(line)
			if err != nil {
				t.Fatal(err)
			}
			got := m.Pod
			if len(got.Labels) != tt.labels || len(got.Volumes) != tt.volumes || len(got.Containers) != tt.containers {
				t.Errorf("%d labels, %d volumes, %d containers; want %d, %d, %d", len(got.Labels), len(got.Volumes), len(got.Containers), tt.labels, tt.volumes, tt.containers)
			}
			if got.Reduced != (tt.name != "small") {
				t.Errorf("Reduced = %t", got.Reduced)
			}
			spec, err := got.parse()
			if err != nil {
				t.Fatal(err)
			}
			if m, s := spec.Request(signal.Memory), spec.Request(signal.EphemeralStorage); m != tt.memory || s != tt.storage {
				t.Errorf("requests %d, %d; want %d, %d", m, s, tt.memory, tt.storage)
			}
			checkReduced(t, p, spec)
		})
	}
}

// checkReduced checks what facts in the smallest form say about the pod as a whole.
func checkReduced(t *testing.T, p *Pod, spec *evict.Pod) {
	t.Helper()
	if summed := len(p.Containers) > 1; spec.SummedRequests != summed || summed && len(spec.Containers) > 0 {
		t.Errorf("SummedRequests = %t with %d containers; want %t, and none if they were added up", spec.SummedRequests, len(spec.Containers), summed)
	}
	if spec.QoSClass() != evict.Burstable {
		t.Errorf("QoS class = %s; want Burstable", spec.QoSClass())
	}
}
