package cluster

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/kube"
	kubecluster "github.com/evictd/evictd/agent/kube/cluster"
)

// TestReportUndone: a report that the kubelet takes back is written again with another
// annotation, five times at most, and not when the containers have terminated.
func TestReportUndone(t *testing.T) {
	t.Parallel()
	r := newReportRig(t)
	o := r.killed("web", "Always", kube.StageEnded)
	n := r.report()
	n.Order(o)
	for write := 1; write <= 6; write++ {
		n.until(fmt.Sprintf("write %d", write), func() bool {
			got := r.get("web")
			return got.Metadata.Annotations["evictd.io/evicted"] == fmt.Sprint(mark, write) && cmp.Equal(got.Status, evicted)
		})
		n.until("answer", func() bool { return n.count(o.ID, kube.AnswerAsserted) == write-1 })
		if write == 2 || write == 3 { // a tenant may change the annotation
			r.patch("web", `{"metadata":{"annotations":{"evictd.io/evicted":`+map[int]string{2: "null", 3: `"` + mark + `6"`}[write]+`}}}`)
		}
		if write%2 == 0 { // the kubelet's first status of a terminating pod
			r.patchStatus("web", `{"status":{"phase":"Failed","reason":null,"message":null}}`)
		} else {
			r.running("web", "")
		}
	}
	// The next event of the pod is seen before that of another pod.
	probe := r.killed("probe", "Always", kube.StageEnded)
	n.Order(probe)
	n.want(probe.ID, kube.AnswerReported)
	if got := r.get("web"); got.Status.Phase != "Failed" || got.Status.Reason != "" || got.Metadata.Annotations["evictd.io/evicted"] != mark+"6" {
		t.Errorf("pod whose report was undone six times: %+v; want five assertions", got)
	}
	n.want(o.ID, kube.AnswerReported) // which evictd waits for

	// All containers have terminated: the kubelet's last status stays.
	r.patchStatus("probe", `{"status":{"phase":"Failed","reason":null,"message":null,"containerStatuses":[
		{"name":"main","image":"x","imageID":"x","ready":false,"restartCount":0,"state":{"running":null,"terminated":{"exitCode":137}}}]}}`)
	last := r.killed("last", "Always", kube.StageEnded)
	n.Order(last)
	n.want(last.ID, kube.AnswerReported)
	if got := r.get("probe"); got.Status.Reason != "" || n.count(probe.ID, kube.AnswerAsserted) != 0 {
		t.Errorf("status after all containers have terminated: %+v; want no assertion", got.Status)
	}
}

// TestMarkSetBack: the disruption controller sets DisruptionTarget to False after two minutes, in which the processes of a
// killed pod may hang. It is set again.
func TestMarkSetBack(t *testing.T) {
	t.Parallel()
	r := newReportRig(t)
	o := r.killed("web", "Never", kube.StageWaiting)
	o.Exclusive = kube.ExclusiveJob
	n := r.report()
	n.Order(o)
	for range 2 {
		n.until("condition", func() bool { return slices.Contains(r.get("web").Status.Conditions, disrupted) })
		r.patchStatus("web", `{"status":{"conditions":[{"type":"DisruptionTarget","status":"False","reason":"x"}]}}`)
	}
	n.until("condition", func() bool { return slices.Contains(r.get("web").Status.Conditions, disrupted) })
	o.Stage = kube.StageEnded
	n.Order(o)
	n.want(o.ID, kube.AnswerReported)
}

// TestReportAfterRestart: an evictd-kube that was restarted finds in the pod what was done, and
// goes on from there.
func TestReportAfterRestart(t *testing.T) {
	t.Parallel()
	r := newReportRig(t)
	o := r.killed("web", "Never", kube.StageKilled)
	first := r.report()
	first.Order(o)
	first.want(o.ID, kube.AnswerMarked)
	ended := *o
	ended.Stage = kube.StageEnded
	first.Order(&ended)
	first.want(o.ID, kube.AnswerReported)
	first.stop()
	before := version(r, "web")

	second := r.report()
	second.Order(o)
	second.want(o.ID, kube.AnswerReported) // although its stage is earlier
	second.Order(&ended)
	if got := version(r, "web"); got != before {
		t.Errorf("resource version after the second order = %s; want %s: the pod was written again", got, before)
	}
	r.running("web", "")
	second.want(o.ID, kube.AnswerAsserted)
	second.Reset()
	second.Order(&ended)
	second.want(o.ID, kube.AnswerReported)
	second.stop()

	r.running("web", "") // while no evictd-kube runs
	third := r.report()
	third.Order(&ended)
	third.want(o.ID, kube.AnswerAsserted)
	if got := r.get("web"); got.Metadata.Annotations["evictd.io/evicted"] != mark+"3" || !cmp.Equal(got.Status, evicted) {
		t.Errorf("pod after two restarts: %+v; want the third write", got)
	}
}

func version(r *rig, pod string) string {
	r.t.Helper()
	return decode[struct {
		Metadata struct{ ResourceVersion string }
	}](r.t, r.must("GET", podPath(pod), "")).Metadata.ResourceVersion
}

// TestReportGone: another pod of the same name is never touched, nor one that is deleted.
func TestReportGone(t *testing.T) {
	t.Parallel()
	r := newReportRig(t)
	deleting := r.killed("deleting", "Always", kube.StageEnded)
	r.must("DELETE", podPath("deleting")+"?gracePeriodSeconds=100", "")
	n := r.report()
	replaced := r.killed("replaced", "Always", kube.StageEnded)
	other := *replaced
	other.ID, other.UID = "other", "00000000-0000-0000-0000-000000000000"
	n.Order(&other)
	n.want("other", kube.AnswerGone)
	absent := *replaced
	absent.ID, absent.Name, absent.UID = "absent", "absent", other.UID
	n.Order(&absent)
	n.want("absent", kube.AnswerGone)

	n.Order(deleting)
	n.want(deleting.ID, kube.AnswerTerminating)

	// The pod leaves the API while its order waits for the end of its processes.
	waiting := r.killed("waiting", "Always", kube.StageWaiting)
	n.Order(waiting)
	r.until("event of a waiting pod", func() bool {
		return strings.Contains(string(r.must("GET", "/apis/events.k8s.io/v1/namespaces/default/events", "")), "EvictionWaiting")
	})
	r.delete("waiting")
	n.want(waiting.ID, kube.AnswerGone)
	for _, name := range []string{"replaced", "deleting"} {
		if got := r.get(name); got.Status.Phase != "Running" || len(got.Metadata.Annotations) > 0 {
			t.Errorf("%s: %+v; want it untouched", name, got)
		}
	}
}

// TestReportStopping: the stages of an eviction with a grace period.
func TestReportStopping(t *testing.T) {
	t.Parallel()
	r := newReportRig(t)
	n := r.report()
	web := r.killed("web", "Always", kube.StageStopping)
	web.GraceSeconds = 20
	n.Order(web)
	n.want(web.ID, kube.AnswerReported)
	if diff := cmp.Diff(evicted, r.get("web").Status); diff != "" {
		t.Errorf("stopping pod (-want +got):\n%s", diff)
	}

	db := r.killed("db", "Always", kube.StageStopping)
	db.GraceSeconds, db.Exclusive = 20, kube.ExclusiveStatefulSet
	n.Order(db)
	n.want(db.ID, kube.AnswerReported)
	stopping := r.get("db")
	if diff := cmp.Diff(status{Phase: "Running", Conditions: []condition{disrupted}}, stopping.Status); diff != "" || stopping.Metadata.DeletionGracePeriodSeconds != 20 {
		t.Errorf("stopping pod that must not run twice: grace %d, status (-want +got):\n%s", stopping.Metadata.DeletionGracePeriodSeconds, diff)
	}
	for _, stage := range []kube.Stage{kube.StageKilled, kube.StageEnded} {
		later := *db
		later.Stage = stage
		n.Order(&later)
	}
	n.restart(db)
	if diff := cmp.Diff(stopping, r.get("db")); diff != "" {
		t.Errorf("pod that must not run twice at later stages (-want +got):\n%s", diff)
	}
}

// restart replaces evictd-kube by another one, which finds that an order is reported.
func (n *reporting) restart(o *kube.Order) *reporting {
	n.t.Helper()
	n.stop()
	again := n.report()
	again.Order(o)
	again.want(o.ID, kube.AnswerReported)
	return again
}

// TestReportUnfenced: the killed pod of a StatefulSet that has no fence is deleted, so that its replacement
// waits for a container that the kubelet may just start again. Another evictd-kube leaves it so.
func TestReportUnfenced(t *testing.T) {
	t.Parallel()
	r := newReportRig(t)
	n := r.report()
	o := r.killed("db", "Always", kube.StageEnded)
	o.Exclusive = kube.ExclusiveStatefulSet
	n.Order(o)
	n.want(o.ID, kube.AnswerReported)
	deleted := r.get("db")
	if diff := cmp.Diff(status{Phase: "Running", Conditions: []condition{disrupted}}, deleted.Status); diff != "" || deleted.Metadata.DeletionGracePeriodSeconds != 1 {
		t.Errorf("grace %d, status (-want +got):\n%s", deleted.Metadata.DeletionGracePeriodSeconds, diff)
	}
	again := n.restart(o)
	if diff := cmp.Diff(deleted, r.get("db")); diff != "" {
		t.Errorf("after a restart (-want +got):\n%s", diff)
	}
	job := r.killed("job", "OnFailure", kube.StageEnded)
	job.Exclusive = kube.ExclusiveJob
	again.Order(job)
	again.want(job.ID, kube.AnswerReported)
	if diff := cmp.Diff(evicted, r.get("job").Status); diff != "" {
		t.Errorf("pod of a Job, which is replaced when it is deleted (-want +got):\n%s", diff)
	}
}

// TestReportOutage: while the API server is paused or away, orders wait, and all are reported
// soon after it is back.
func TestReportOutage(t *testing.T) {
	t.Parallel()
	r := newReportRig(t)
	n := r.report()
	order := func(kind string) (list []*kube.Order) {
		for i := range 25 {
			list = append(list, r.killed(fmt.Sprint(kind, i), "Always", kube.StageEnded))
		}
		return list
	}
	reported := func(list []*kube.Order) func() bool {
		return func() bool {
			for _, o := range list {
				if n.answer(o.ID).Answer != kube.AnswerReported {
					return false
				}
			}
			return true
		}
	}
	paused := order("paused")
	r.pauseAPI()
	for _, o := range paused {
		n.Order(o)
	}
	n.want(paused[0].ID, kube.AnswerDelayed)
	time.Sleep(10 * time.Second) // the back-off grows
	r.resumeAPI()
	began := time.Now()
	n.until("reports after a pause", reported(paused))
	t.Logf("25 reports %v after a pause", time.Since(began))

	killed := order("killed")
	for _, o := range killed {
		n.Order(o)
	}
	r.stopAPI()
	time.Sleep(3 * time.Second)
	r.startAPI()
	began = time.Now()
	n.until("reports after a restart", reported(killed))
	t.Logf("25 reports %v after a restart", time.Since(began))
	for _, o := range append(paused, killed...) {
		if got := n.count(o.ID, kube.AnswerDelayed); got > 1 {
			t.Errorf("answer delayed to %s: %d times; want once", o.ID, got)
		}
		if diff := cmp.Diff(evicted, r.get(o.Name).Status); diff != "" {
			t.Fatalf("%s (-want +got):\n%s", o.Name, diff)
		}
	}
}

// TestReportOverDeadConnection: a connection on which nothing arrives any more, while the API
// server is well, is given up.
func TestReportOverDeadConnection(t *testing.T) {
	t.Setenv("HTTP2_READ_IDLE_TIMEOUT_SECONDS", "") // restores both
	t.Setenv("HTTP2_PING_TIMEOUT_SECONDS", "")
	kubecluster.SetConnectionTimeouts()
	r := newReportRig(t)
	direct := r.address
	p := newProxy(t, direct)
	r.address = p.listener.Addr().String() // for the kubeconfig
	n := r.report()
	r.address = direct
	o := r.killed("web", "Always", kube.StageEnded)
	probe := r.killed("probe", "Always", kube.StageEnded)
	n.Order(probe)
	n.want(probe.ID, kube.AnswerReported)
	p.stall()
	began := time.Now()
	n.Order(o)
	n.want(o.ID, kube.AnswerReported)
	t.Logf("reported after %v", time.Since(began))
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("reported after %v; want the dead connection to be given up after 10 s", took)
	}
}

// proxy forwards connections to an address until it is stalled, and then only new ones.
type proxy struct {
	listener net.Listener
	mu       sync.Mutex
	stalled  []*atomic.Bool
}

func newProxy(t *testing.T, to string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return // closed
			}
			server, err := net.Dial("tcp", to)
			if err != nil {
				from.Close()
				continue
			}
			stalled := &atomic.Bool{}
			p.mu.Lock()
			p.stalled = append(p.stalled, stalled)
			p.mu.Unlock()
			go forward(server, from, stalled)
			go forward(from, server, stalled)
		}
	}()
	return p
}

// stall drops what arrives on the present connections.
func (p *proxy) stall() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.stalled {
		s.Store(true)
	}
}

func forward(to, from net.Conn, stalled *atomic.Bool) {
	defer from.Close()
	for buffer := make([]byte, 32<<10); ; {
		n, err := from.Read(buffer)
		if err == nil && !stalled.Load() {
			_, err = to.Write(buffer[:n])
		}
		if err != nil {
			to.Close()
			return
		}
	}
}
