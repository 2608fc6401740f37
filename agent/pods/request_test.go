package pods

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/cri"
)

// score is the oom_score_adj that the kubelet gives a Burstable container.
func score(request, capacity int64) int {
	p := evict.Pod{QoS: evict.Burstable, Containers: []evict.Container{{}}}
	p.Containers[0].Resources.Requests.Memory = resource.NewQuantity(request, resource.BinarySI)
	return p.OOMScoreAdj(&p.Containers[0], capacity)
}

// The range contains the request and has its score, and one byte more has another.
func TestRequestRange(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	ranges := 0
	for range 200_000 {
		capacity := 1 + r.Int64N(1<<uint(1+r.IntN(45)))
		request := r.Int64N(capacity + capacity/8 + 1)
		s := score(request, capacity)
		low, high, ok := requestRange(s, capacity)
		if !ok {
			if s > lowestScore && s < highestScore {
				t.Fatalf("requestRange(%d, %d) is not ok, but a request of %d has that score", s, capacity, request)
			}
			continue
		}
		ranges++
		if request < low || request > high || score(low, capacity) != s || score(high, capacity) != s || score(high+1, capacity) == s {
			t.Fatalf("requestRange(score(%d, %d) = %d) = %d, %d; want the range of all requests with that score", request, capacity, s, low, high)
		}
	}
	if ranges < 100_000 {
		t.Errorf("only %d of 200000 scores have a range", ranges)
	}
}

func TestRequestRangeUnknown(t *testing.T) {
	for _, s := range []int{-1000, -998, -997, -1, 0, 2, 3, 999, 1000, 1001} {
		if low, high, ok := requestRange(s, memTotal); ok {
			t.Errorf("requestRange(%d) = %d, %d; want not ok: the score is limited or not of the kubelet", s, low, high)
		}
	}
	for _, capacity := range []int64{0, -1, 1 << 62, 1} {
		if _, _, ok := requestRange(500, capacity); ok {
			t.Errorf("requestRange(500, %d) is ok; want not ok", capacity)
		}
	}
}

func TestRequest(t *testing.T) {
	failed := errors.New("hangs")
	for _, tt := range []struct {
		name     string
		qos      evict.QoS
		score    *int
		limit    *int64
		err      error
		capacity error
		want     int64 // -1: none
		origin   string
		text     string
	}{
		{"estimated", evict.Burstable, new(991), nil, nil, nil, 107374182, "estimated from oom_score_adj 991: 92Mi-102Mi", "about 102Mi, from oom_score_adj"},
		{"estimated before limit", evict.Burstable, new(500), new(int64(1 << 40)), nil, nil, 5379446538, "estimated from oom_score_adj 500: 5120Mi-5130Mi", "about 5130Mi, from oom_score_adj"},
		{"cut off above", evict.Burstable, new(999), new(int64(64 << 20)), nil, nil, 64 << 20, "limit", "not known, its limit is 64Mi"},
		{"cut off below", evict.Burstable, new(3), new(int64(64 << 20)), nil, nil, 64 << 20, "limit", "not known, its limit is 64Mi"},
		{"cut off, no limit", evict.Burstable, new(999), nil, nil, nil, -1, "unknown, counts as 0: oom_score_adj 999 does not identify one", "not known"},
		{"Burstable with a BestEffort score", evict.Burstable, new(1000), nil, nil, nil, -1, "unknown, counts as 0: oom_score_adj 1000 does not identify one", "not known"},
		{"node-critical", evict.Burstable, new(-997), new(int64(1 << 20)), nil, nil, 1 << 20, "limit", "not known, its limit is 1Mi"},
		{"Guaranteed", evict.Guaranteed, new(-997), new(int64(1 << 30)), nil, nil, 1 << 30, "limit", ""},
		{"Guaranteed with another score", evict.Guaranteed, new(500), new(int64(1 << 30)), nil, nil, 1 << 30, "limit", ""},
		{"Guaranteed without a limit", evict.Guaranteed, new(-997), nil, nil, nil, -1, "unknown, counts as 0: no limit", "not known"},
		{"BestEffort", evict.BestEffort, new(1000), nil, nil, nil, -1, "none, as the pod is BestEffort", ""},
		{"no score", evict.Burstable, nil, new(int64(1 << 20)), nil, nil, 1 << 20, "limit", "not known, its limit is 1Mi"},
		{"nothing", evict.Burstable, nil, nil, nil, nil, -1, "unknown, counts as 0: the runtime reports no oom_score_adj", "not known"},
		{"no status", evict.Burstable, nil, nil, failed, nil, -1, "unknown, counts as 0: its status is not known", "not known"},
		{"no capacity", evict.Burstable, new(500), nil, nil, failed, -1, "unknown, counts as 0: the node's memory is not known", "not known"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := deduction{capacity: memTotal, capacityErr: tt.capacity}
			c := Container{ContainerDetail: cri.ContainerDetail{OOMScoreAdj: tt.score, MemoryLimit: tt.limit}, Err: tt.err}
			r := d.request(&c, tt.qos)
			got := int64(-1)
			if r.amount != nil {
				got = r.amount.Value()
			}
			if got != tt.want || r.origin != tt.origin || r.text != tt.text {
				t.Errorf("request() = %d, %q, %q; want %d, %q, %q", got, r.origin, r.text, tt.want, tt.origin, tt.text)
			}
		})
	}
}

func TestQoSOf(t *testing.T) {
	for parent, want := range qosParents {
		if got := qosOf(parent); got != want {
			t.Errorf("qosOf(%q) = %q; want %q", parent, got, want)
		}
	}
}

var qosParents = map[string]evict.QoS{
	"/kubepods/burstable/pod8f2a-4b1c":                     evict.Burstable,
	"/kubepods/besteffort/pod8f2a-4b1c":                    evict.BestEffort,
	"/kubepods/pod8f2a-4b1c":                               evict.Guaranteed,
	"/some/root/kubepods/burstable/pod1":                   evict.Burstable,
	"kubepods-burstable-pod8f2a_4b1c.slice":                evict.Burstable,
	"kubepods-besteffort-pod8f2a_4b1c.slice":               evict.BestEffort,
	"kubepods-pod8f2a_4b1c.slice":                          evict.Guaranteed,
	"a-b_c-kubepods-burstable-pod1.slice":                  evict.Burstable,
	"/kubepods.slice/kubepods-pod1.slice":                  evict.Guaranteed,
	"/kubepods.slice/kubepods-burstable.slice/x-pod.slice": "",
	"/kubepods/burstable":                                  "",
	"/kubepods/elastic/pod1":                               "",
	"/burstable/pod1":                                      "",
	"kubepods-burstable.slice":                             "",
	"/pod1":                                                "",
	"pod1":                                                 "",
	"/k8s.io":                                              "",
	"/":                                                    "",
	"":                                                     "",
	".slice":                                               "",
	"--.slice":                                             "",
}

func FuzzQoSOf(f *testing.F) {
	for parent := range qosParents {
		f.Add(parent)
	}
	f.Fuzz(func(t *testing.T, parent string) {
		if got := qosOf(parent); got != "" && !strings.Contains(parent, "kubepods") {
			t.Errorf("qosOf(%q) = %q; want none outside kubepods", parent, got)
		}
	})
}

// Without the cgroup names of a kubelet, the class follows from scores and limits.
func TestQoSByResources(t *testing.T) {
	known := func(score *int, memory, quota *int64, shares *uint64) *Container {
		return &Container{ContainerDetail: cri.ContainerDetail{OOMScoreAdj: score, ResourcesKnown: true, MemoryLimit: memory, CPUQuota: quota, CPUShares: shares}}
	}
	for _, tt := range []struct {
		name       string
		containers []*Container
		want       evict.QoS
		origin     string
	}{
		{"all score 1000", []*Container{known(new(1000), nil, nil, nil), known(new(1000), nil, nil, nil)}, evict.BestEffort, "oom_score_adj"},
		{"all score -997", []*Container{known(new(-997), nil, nil, nil)}, evict.Guaranteed, "oom_score_adj"},
		{"mixed scores", []*Container{known(new(1000), nil, nil, nil), known(new(950), nil, nil, nil)}, evict.Burstable, "oom_score_adj"},
		{"no requests", []*Container{known(new(0), nil, nil, nil)}, evict.BestEffort, "no limits"},
		{"least shares", []*Container{known(new(0), nil, nil, new(uint64(2)))}, evict.BestEffort, "no limits"},
		{"shares", []*Container{known(new(0), nil, nil, new(uint64(512)))}, evict.Burstable, "limits"},
		{"all limited", []*Container{known(new(0), new(int64(1)), new(int64(1)), nil)}, evict.Guaranteed, "limits"},
		{"one not limited", []*Container{known(new(0), new(int64(1)), new(int64(1)), nil), known(nil, nil, nil, nil)}, evict.Burstable, "limits"},
		{"not known", []*Container{{}}, evict.Burstable, "unknown, assumed Burstable"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := deduction{listed: &listedPod{Pod: &Pod{}}}
			if got, origin := d.qos(&pod{}, tt.containers); got != tt.want || origin != tt.origin {
				t.Errorf("qos() = %s, %q; want %s, %q", got, origin, tt.want, tt.origin)
			}
		})
	}
}

func TestGrace(t *testing.T) {
	of := func(values ...string) []*Container {
		var cs []*Container
		for _, v := range values {
			c := &Container{}
			if v != "absent" {
				c.Annotations = map[string]string{annotationGrace: v}
			}
			cs = append(cs, c)
		}
		return cs
	}
	for _, tt := range []struct {
		values []string
		want   int64 // -1: nil
	}{
		{[]string{"30"}, 30},
		{[]string{"30", "60", "5"}, 60},
		{[]string{"0"}, 0},
		{[]string{"absent"}, -1},
		{[]string{"absent", "7"}, 7},
		{[]string{""}, -1},
		{[]string{"-1"}, -1},
		{[]string{"30s"}, -1},
		{[]string{"99999999999999999999"}, -1},
		{[]string{"30\r\n"}, -1},
		{nil, -1},
	} {
		got := int64(-1)
		if g := grace(of(tt.values...)); g != nil {
			got = *g
		}
		if got != tt.want {
			t.Errorf("grace(%q) = %d; want %d", tt.values, got, tt.want)
		}
	}
}
