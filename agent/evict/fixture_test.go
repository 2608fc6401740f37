package evict

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/evictd/evictd/agent/signal"
)

const (
	mi = 1 << 20
	gi = 1 << 30
)

// start is when every timeline starts. Only differences matter.
var start = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

func qty(text string) *resource.Quantity {
	q := resource.MustParse(text)
	return &q
}

// option changes a pod that a test creates.
type option func(*Pod)

// aPod returns the pod default/<name> with UID <name>, statistics, and one container c
// without requests and usage.
func aPod(name string, options ...option) Pod {
	p := Pod{UID: name, Namespace: "default", Name: name, HasStats: true, Containers: []Container{{Name: "c"}}}
	for _, o := range options {
		o(&p)
	}
	return p
}

// using sets the memory of the pod and of its first container. A kill frees all of it.
func using(bytes int64) option {
	return func(p *Pod) {
		p.Usage.Memory, p.Usage.Freeable = bytes, bytes
		p.Containers[0].Usage.Memory = bytes
	}
}

func withRootfs(bytes int64) option {
	return func(p *Pod) { p.Containers[0].Usage.Rootfs = bytes }
}

func withInodes(n int64) option {
	return func(p *Pod) { p.Containers[0].Usage.Inodes = n }
}

func withPIDs(n int64) option { return func(p *Pod) { p.Usage.PIDs = n } }

// requesting sets the first container's requests; an empty text leaves a request
// absent.
func requesting(memory, storage string) option {
	return func(p *Pod) {
		r := &p.Containers[0].Resources.Requests
		if memory != "" {
			r.Memory = qty(memory)
		}
		if storage != "" {
			r.EphemeralStorage = qty(storage)
		}
	}
}

func withPriority(n int32) option { return func(p *Pod) { p.Priority = &n } }

func withGrace(seconds int64) option {
	return func(p *Pod) { p.TerminationGraceSeconds = &seconds }
}

func withoutStats(p *Pod) { p.HasStats = false }

func uid(text string) option { return func(p *Pod) { p.UID = text } }

func ofKubelet(p *Pod) { p.Kubelet = true }

func unreportable(p *Pod) { p.Unreportable = "no facts" }

func hard(s signal.Signal, value string) Threshold { return soft(s, value, 0) }

func soft(s signal.Signal, value string, grace time.Duration) Threshold {
	v, err := signal.ParseThreshold(value)
	if err != nil {
		panic(err)
	}
	return Threshold{Threshold: signal.Threshold{Signal: s, Value: v, Grace: grace}}
}

func (t Threshold) reclaiming(value string) Threshold {
	v, err := signal.ParseMinReclaim(value)
	if err != nil {
		panic(err)
	}
	t.MinReclaim = v
	return t
}

// timeline is a node on which consecutive Steps are made. Each Step also checks that
// Step does not change its arguments, that it returns the same when it is called again,
// and that its state survives JSON.
type timeline struct {
	t     *testing.T
	in    Inputs
	state State
}

// newTimeline returns a node with the configuration's defaults.
func newTimeline(t *testing.T, thresholds ...Threshold) *timeline {
	return &timeline{t: t, in: Inputs{Policy: &Policy{
		Thresholds: thresholds, TransitionPeriod: 5 * time.Minute, MaxVictims: 3, SettleTimeout: time.Second,
	}}}
}

// observe sets the available amount of a signal for the following Steps.
func (tl *timeline) observe(s signal.Signal, available int64) {
	o := &tl.in.Observations[s]
	o.Status, o.Available = signal.Observed, available
}

// pod returns one of the node's pods for changing it.
func (tl *timeline) pod(uid string) *Pod {
	tl.t.Helper()
	for i := range tl.in.Pods {
		if tl.in.Pods[i].UID == uid {
			return &tl.in.Pods[i]
		}
	}
	tl.t.Fatalf("no pod %s", uid)
	return nil
}

func (tl *timeline) remove(uid string) {
	var left []Pod
	for _, p := range tl.in.Pods {
		if p.UID != uid {
			left = append(left, p)
		}
	}
	tl.in.Pods = left
}

// step calls Step at a time after start. outcomes are inputs of this Step only.
func (tl *timeline) step(at time.Duration, outcomes ...Outcome) Orders {
	tl.t.Helper()
	now := start.Add(at)
	tl.in.Outcomes = outcomes
	before, pods := tl.state.Clone(), jsonCopy(tl.t, tl.in.Pods)
	state, orders := Step(tl.state, tl.in, now)
	if diff := cmp.Diff(before, tl.state, readings); diff != "" {
		tl.t.Fatalf("at %v: Step changed its state argument (-before +after):\n%s", at, diff)
	}
	if diff := cmp.Diff(pods, tl.in.Pods, quantities); diff != "" {
		tl.t.Fatalf("at %v: Step changed the pods in its inputs (-before +after):\n%s", at, diff)
	}
	again, ordersAgain := Step(tl.state, tl.in, now)
	if diff := cmp.Diff(state, again, readings); diff != "" {
		tl.t.Fatalf("at %v: Step returned another state when called again (-first +second):\n%s", at, diff)
	}
	if diff := cmp.Diff(orders, ordersAgain, quantities, unexported); diff != "" {
		tl.t.Fatalf("at %v: Step returned other orders when called again (-first +second):\n%s", at, diff)
	}
	copied := jsonCopy(tl.t, state)
	copied.Readings = state.Readings // not stored
	if diff := cmp.Diff(state, copied, emptyIsNil, readings); diff != "" {
		tl.t.Fatalf("at %v: the state does not survive JSON (-before +after):\n%s", at, diff)
	}
	tl.state = copied
	return orders
}

var (
	quantities = cmp.Comparer(func(a, b resource.Quantity) bool { return a.String() == b.String() })
	emptyIsNil = cmpopts.EquateEmpty()
	readings   = cmp.Comparer(func(a, b signal.Readings) bool { return a == b })
	unexported = cmp.AllowUnexported(Ranked{}, signal.Value{})
)

// jsonCopy returns a deep copy of v, made through JSON.
func jsonCopy[T any](t *testing.T, v T) T {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var c T
	if err := json.Unmarshal(data, &c); err != nil {
		t.Fatal(err)
	}
	return c
}

// victims returns the UIDs of the pods to evict.
func victims(o Orders) []string {
	var names []string
	for i := range o.Evict {
		names = append(names, o.Evict[i].UID)
	}
	return names
}

// ranking returns the UIDs of a ranking.
func ranking(ranked []Ranked) []string {
	var uids []string
	for i := range ranked {
		uids = append(uids, ranked[i].UID)
	}
	return uids
}
