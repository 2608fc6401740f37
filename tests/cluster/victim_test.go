package cluster

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/tests/node"
)

// disruptionReason is the reason of the condition DisruptionTarget of an evicted pod.
const disruptionReason = "TerminationByEvictd"

// victim is a pod that is about to be evicted. It is observed until its cgroup is gone.
type victim struct {
	c    *kubeNode
	w    *workload
	pod  corev1.Pod
	done chan struct{} // closed when the cgroup is gone
	// interrupted is set if evictd was killed during the eviction: its record may end there.
	interrupted bool
	soft        bool // it has a grace period, with which its times begin

	first  map[int]bool // the processes of the image that it had at first
	ignore map[int]bool // the others: of the sandbox; and those that are in revived

	mu      sync.Mutex
	alive   time.Time // when one of the first processes certainly still existed
	empty   time.Time // none of the first processes was seen any more
	revived []string  // later processes
	fenced  time.Time // the limit was first seen to be 0: cgroup.max.descendants, on v1 pids.max
	lifted  bool      // and later not to be 0 any more
	gone    time.Time // of the pod's cgroup
}

// promptReport is the time from the kill to the report within which the kubelet does not
// notice the kill by itself as a rule: it looks once a second.
const promptReport = 200 * time.Millisecond

// observeInterval is how often the processes of a victim are read.
const observeInterval = 3 * time.Millisecond

// observe begins to observe a pod with processes.
func (c *kubeNode) observe(w *workload, p *corev1.Pod) *victim {
	v := &victim{c: c, w: w, pod: *p, done: make(chan struct{}), first: map[int]bool{}, ignore: map[int]bool{}}
	for _, pid := range c.pids(p) {
		_, ok := image(pid)
		v.first[pid], v.ignore[pid] = ok, !ok
	}
	dir := c.podCgroup("pids", p)
	ctx := c.t.Context()
	go func() {
		defer close(v.done)
		for ctx.Err() == nil && v.look(dir) {
			time.Sleep(observeInterval)
		}
	}()
	return v
}

// look reads the victim's processes and the limit of its fence once. It returns false when
// the cgroup is gone.
func (v *victim) look(dir string) bool {
	limit, err := os.ReadFile(filepath.Join(dir, "cgroup.max.descendants"))
	if errors.Is(err, os.ErrNotExist) { // v1, or the cgroup is gone
		limit, err = os.ReadFile(filepath.Join(dir, "pids.max"))
	}
	began := time.Now()
	left, later := v.processesLeft()
	now := time.Now()
	v.mu.Lock()
	defer v.mu.Unlock()
	if err != nil {
		v.gone = now
		return false
	}
	switch fenced := strings.TrimSpace(string(limit)) == "0"; {
	case fenced && v.fenced.IsZero():
		v.fenced = now
	case !fenced && !v.fenced.IsZero():
		v.lifted = true
	}
	if left {
		v.alive = began // not now: on a busy machine that may be much later
	} else if v.empty.IsZero() {
		v.empty = now
	}
	for _, p := range later {
		v.revived = append(v.revived, fmt.Sprint(p))
	}
	return true
}

// processesLeft reports whether one of the first processes is left, also while it dies, and returns
// processes of the image that were started later and not returned yet.
func (v *victim) processesLeft() (left bool, later []process) {
	for _, pid := range v.c.pids(&v.pod) {
		if v.ignore[pid] {
			continue
		}
		if v.first[pid] {
			left = true
		} else if p, ok := image(pid); ok {
			later = append(later, p)
			v.ignore[pid] = true
		}
	}
	return left, later
}

// ended reports whether none of the first processes is left.
func (v *victim) ended() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return !v.empty.IsZero()
}

// isFenced reports whether the fence of the pod was seen.
func (v *victim) isFenced() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return !v.fenced.IsZero()
}

// outcome is what became of a victim, as times and as errors.
type outcome struct {
	killed      time.Time // SIGKILL
	empty       time.Time // no process is left
	fenced      time.Time // observed
	failed      time.Time // the API server has the phase Failed and the reason Evicted
	gone        time.Time // the pod's cgroup
	replacement time.Time // another pod of the workload runs; zero for a bare pod
	problems    []problem
}

// problem is something that must not happen.
type problem struct {
	kind problemKind
	text string
}

type problemKind string

const (
	problemRestart problemKind = "restart"             // a process ran after the kill
	problemFence   problemKind = "fence"               // it was not set, or lifted too early
	problemDouble  problemKind = "double run"          // of a pod that must not run twice
	problemTarget  problemKind = "no DisruptionTarget" // in the final status
	problemReason  problemKind = "no reason"           // in the final status
	// problemLate: the report came so late that the kubelet had noticed the end of the
	// containers by itself, and its verdict has no reason.
	problemLate problemKind = "no reason, reported late"
	// problemDeleted: the controller has deleted the object while it had no reason, because
	// the kubelet had dropped it a moment before. The condition has one, and the event.
	problemDeleted problemKind = "no reason when deleted"
	problemRecord  problemKind = "record"
	problemEvent   problemKind = "event"
)

func (e *outcome) String() string {
	after := func(t time.Time) string {
		if t.IsZero() {
			return "-"
		}
		return fmt.Sprint(t.Sub(e.killed).Round(100 * time.Microsecond))
	}
	return fmt.Sprintf("after SIGKILL: last process gone %s, fenced %s, status %s, cgroup gone %s, replacement %s",
		after(e.empty), after(e.fenced), after(e.failed), after(e.gone), after(e.replacement))
}

// result waits for the end of the eviction and of what follows from it, and returns what is
// not as it must be.
func (v *victim) result() outcome {
	v.c.t.Helper()
	var e outcome
	v.c.until("end of the cgroup of "+v.w.name, func() bool {
		select {
		case <-v.done:
			return true
		default:
			return false
		}
	})
	v.c.until("final status of "+v.w.name, func() bool {
		states := v.c.events.of(string(v.pod.UID))
		last := states[len(states)-1]
		return last.deleted || last.Status.Phase == corev1.PodFailed && !slices.ContainsFunc(
			slices.Concat(last.Status.ContainerStatuses, last.Status.InitContainerStatuses),
			func(s corev1.ContainerStatus) bool { return s.State.Running != nil })
	})
	if v.w.kind != "Pod" {
		v.c.until("replacement of "+v.w.name, func() bool {
			e.replacement = v.replacement()
			return !e.replacement.IsZero()
		})
	}
	v.c.until("record of "+v.w.name, func() bool {
		r, ok := v.record()
		return ok && r.Result != evict.ResultPending
	})
	r, _ := v.record()
	v.mu.Lock()
	defer v.mu.Unlock()
	e.killed, e.empty, e.fenced, e.gone = r.SignalSent, v.empty, v.fenced, v.gone
	e.problems = append(v.processProblems(&r), v.statusProblems(&e)...)
	e.problems = append(e.problems, v.eventProblems(&r)...)
	return e
}

// record returns evictd's record of the eviction.
func (v *victim) record() (evict.Record, bool) {
	for _, r := range v.c.status().Records {
		if r.UID == string(v.pod.UID) {
			return r, true
		}
	}
	return evict.Record{}, false
}

// replacement returns when another pod of the workload first ran its hog's container.
func (v *victim) replacement() time.Time {
	created := v.c.events.of(string(v.pod.UID))[0].at
	for _, s := range v.c.events.last(v.w.name) {
		states := v.c.events.of(string(s.UID))
		if !states[0].at.After(created) {
			continue
		}
		if ran, ok := first(states, func(s *podState) bool { return v.w.runs(&s.Pod) }); ok {
			return ran.at
		}
	}
	return time.Time{}
}

func (v *victim) processProblems(r *evict.Record) (problems []problem) {
	if len(v.revived) > 0 {
		problems = append(problems, problem{problemRestart, fmt.Sprintf("processes after the kill: %v", v.revived)})
	}
	for _, s := range v.c.events.of(string(v.pod.UID)) {
		for _, status := range slices.Concat(s.Status.ContainerStatuses, s.Status.InitContainerStatuses) {
			if status.State.Running != nil && !v.ranBefore(status.ContainerID) {
				problems = append(problems, problem{problemRestart, fmt.Sprintf("container %s ran again as %s", status.Name, status.ContainerID)})
			}
		}
	}
	if logs := v.c.restarted(&v.pod); len(logs) > 0 {
		problems = append(problems, problem{problemRestart, fmt.Sprintf("containers ran again: %v", logs)})
	}
	if v.fenced.IsZero() || v.lifted {
		problems = append(problems, problem{problemFence, fmt.Sprintf("fenced at %v, lifted before the cgroup was gone: %t", v.fenced, v.lifted)})
	}
	want := evict.ResultKilled
	if v.soft {
		want = evict.ResultStopped
	}
	if r.Result != want && !v.interrupted {
		problems = append(problems, problem{problemRecord, fmt.Sprintf("result of the record %s: %s; want %s", r.Result, r.Error, want)})
	}
	return problems
}

// statusProblems judges the states that the API server has shown, and sets the time of the
// status in e.
func (v *victim) statusProblems(e *outcome) (problems []problem) {
	states := v.c.events.of(string(v.pod.UID))
	final := states[len(states)-1]
	if s, ok := first(states, func(s *podState) bool {
		return s.Status.Phase == corev1.PodFailed && s.Status.Reason == "Evicted"
	}); ok {
		e.failed = s.at
	}
	if final.Status.Phase != corev1.PodFailed || final.Status.Reason != "Evicted" {
		problems = append(problems, problem{e.lostReason(&final), fmt.Sprintf("final status %s, reason %q, message %q", final.Status.Phase, final.Status.Reason, final.Status.Message)})
	}
	if !slices.ContainsFunc(final.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason == disruptionReason
	}) {
		problems = append(problems, problem{problemTarget, fmt.Sprintf("no condition DisruptionTarget with reason %s: %+v", disruptionReason, final.Status.Conditions)})
	}
	if s, ok := first(states, func(s *podState) bool { return s.Status.Phase == corev1.PodFailed }); ok && v.w.exclusive() && s.at.Before(v.alive) {
		problems = append(problems, problem{problemDouble, fmt.Sprintf("a process was left %v after Failed", v.alive.Sub(s.at))})
	}
	if !e.replacement.IsZero() && v.w.exclusive() && e.replacement.Before(v.alive) {
		problems = append(problems, problem{problemDouble, fmt.Sprintf("a process was left %v after the replacement ran", v.alive.Sub(e.replacement))})
	}
	return problems
}

// ranBefore reports whether a container is one of those that ran when the victim was chosen.
func (v *victim) ranBefore(id string) bool {
	return slices.ContainsFunc(slices.Concat(v.pod.Status.ContainerStatuses, v.pod.Status.InitContainerStatuses),
		func(s corev1.ContainerStatus) bool { return s.ContainerID == id })
}

// lostReason returns why the final status has no reason.
func (e *outcome) lostReason(final *podState) problemKind {
	switch {
	case e.failed.IsZero():
		return problemReason
	case final.deleted:
		return problemDeleted
	case e.failed.Sub(e.killed) > promptReport:
		return problemLate
	}
	return problemReason
}

// repaired reports whether the reason was taken back and is there again.
func (v *victim) repaired() bool {
	states := v.c.events.of(string(v.pod.UID))
	evicted := func(s podState) bool { return s.Status.Phase == corev1.PodFailed && s.Status.Reason == "Evicted" }
	at := slices.IndexFunc(states, evicted)
	return at >= 0 && evicted(states[len(states)-1]) && slices.ContainsFunc(states[at:], func(s podState) bool { return !evicted(s) })
}

// history returns what the API server has shown of the victim since it was killed.
func (v *victim) history(e *outcome) string {
	var b strings.Builder
	for _, s := range v.c.events.of(string(v.pod.UID)) {
		if s.at.Before(e.killed) {
			continue
		}
		fmt.Fprintf(&b, "\n%v after SIGKILL: %s %q, report %q, deleted %t, gone %t:", s.at.Sub(e.killed).Round(100*time.Microsecond),
			s.Status.Phase, s.Status.Reason, s.Annotations["evictd.io/evicted"], s.DeletionTimestamp != nil, s.deleted)
		for _, status := range slices.Concat(s.Status.InitContainerStatuses, s.Status.ContainerStatuses) {
			switch state := status.State; {
			case state.Terminated != nil:
				fmt.Fprintf(&b, " %s terminated with %d (%s)", status.Name, state.Terminated.ExitCode, state.Terminated.Reason)
			case state.Waiting != nil:
				fmt.Fprintf(&b, " %s waits (%s)", status.Name, state.Waiting.Reason)
			default:
				fmt.Fprintf(&b, " %s runs", status.Name)
			}
		}
	}
	return b.String()
}

// exclusive reports whether two pods of the workload must not run at the same time.
func (w *workload) exclusive() bool { return w.kind == "StatefulSet" || w.kind == "Job" }

// eventProblems judges the event about the pod.
func (v *victim) eventProblems(r *evict.Record) (problems []problem) {
	var found *eventsv1.Event
	for deadline := time.Now().Add(node.ScaleTimeout(30 * time.Second)); found == nil && time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		content, err := v.c.request(http.MethodGet, "/apis/events.k8s.io/v1/namespaces/"+v.pod.Namespace+"/events?fieldSelector=reason%3DEvicted,regarding.uid%3D"+string(v.pod.UID), "", "")
		if err != nil {
			continue
		}
		for _, e := range decode[eventsv1.EventList](v.c.t, content).Items {
			if e.Regarding.UID == v.pod.UID && e.Reason == "Evicted" {
				found = &e
			}
		}
	}
	if found == nil {
		return []problem{{problemEvent, "no event Evicted"}}
	}
	for name, value := range r.Annotations {
		if found.Annotations[name] != value {
			problems = append(problems, problem{problemEvent, fmt.Sprintf("annotation %s of the event = %q; want %q", name, found.Annotations[name], value)})
		}
	}
	// An evictd that was killed before it saved the record does not know its annotations.
	if len(r.Annotations) == 0 && !v.interrupted || found.Note != r.Message {
		problems = append(problems, problem{problemEvent, fmt.Sprintf("event with %d annotations, note %q; want that of the record, %q", len(found.Annotations), found.Note, r.Message)})
	}
	return problems
}
