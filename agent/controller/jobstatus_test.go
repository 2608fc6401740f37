package controller

import (
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/evictd/evictd/agent/fence/execute"
)

func jobUse(id string) *use {
	m := offMethod()
	m.Agent, m.Executor = "fence_x", "job"
	return &use{node: "n1", fence: fenceUID, method: &m, id: id}
}

// ranPod returns a pod of a Job on n2 whose container has ended with a report.
func ranPod(job *batchv1.Job, r execute.Report) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: job.Namespace, Name: job.Name + "-x", UID: types.UID("pod-of-" + job.Name),
			Labels:          map[string]string{batchv1.JobNameLabel: job.Name},
			OwnerReferences: []metav1.OwnerReference{{UID: job.UID, Name: job.Name, Controller: new(true)}},
		},
		Spec: corev1.PodSpec{NodeName: "n2"},
		Status: corev1.PodStatus{Phase: corev1.PodSucceeded, ContainerStatuses: []corev1.ContainerStatus{{
			Name: executorContainer, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				ExitCode: int32(r.ExitCode()), Message: string(r.Marshal()),
			}},
		}}},
	}
	if r.ExitCode() != 0 {
		p.Status.Phase = corev1.PodFailed
	}
	return p
}

func readOff() execute.Report {
	return execute.Report{ID: "read-1", Action: execute.Status, Result: execute.ReadOff}
}

// TestJobStatus: a report of off counts only if exactly one pod of the Job ran, once, on another node, and what it says
// agrees with its exit status.
func TestJobStatus(t *testing.T) {
	notYet := func(p *corev1.Pod, phase corev1.PodPhase, state corev1.ContainerState) {
		p.Status.Phase, p.Status.ContainerStatuses[0].State = phase, state
	}
	for name, tt := range map[string]struct {
		change func(*batchv1.Job, *corev1.Pod) (others []corev1.Pod)
		noPod  bool
		err    string // none and no wait: the report counts
		waits  string
	}{
		"off": {},
		"of another request": {change: func(_ *batchv1.Job, p *corev1.Pod) []corev1.Pod {
			p.Status.ContainerStatuses[0].State.Terminated.Message = string(execute.Report{ID: "read-2", Action: execute.Status, Result: execute.ReadOff}.Marshal())
			return nil
		}, err: "another request"},
		"exit status of on": {change: func(_ *batchv1.Job, p *corev1.Pod) []corev1.Pod {
			p.Status.ContainerStatuses[0].State.Terminated.ExitCode = 0
			return nil
		}, err: "its result is off, but the exit status is 0"},
		"no report": {change: func(_ *batchv1.Job, p *corev1.Pod) []corev1.Pod {
			p.Status.ContainerStatuses[0].State.Terminated.Message = "Status: OFF"
			return nil
		}, err: "exit status 2 and without a report"},
		"another container": {change: func(_ *batchv1.Job, p *corev1.Pod) []corev1.Pod {
			p.Status.ContainerStatuses[0].Name = "sidecar"
			p.Status.Phase = corev1.PodRunning
			return nil
		}, waits: "is Running"},
		"on the node that is fenced": {change: func(_ *batchv1.Job, p *corev1.Pod) []corev1.Pod {
			p.Spec.NodeName = "n1"
			return nil
		}, err: "is on node n1, which is to be fenced"},
		"two pods": {change: func(j *batchv1.Job, _ *corev1.Pod) []corev1.Pod {
			return []corev1.Pod{*ranPod(j, readOff())}
		}, err: "Kubernetes started 2 pods"},
		"pod of another Job": {change: func(_ *batchv1.Job, _ *corev1.Pod) []corev1.Pod {
			return []corev1.Pod{*ranPod(&batchv1.Job{ObjectMeta: metav1.ObjectMeta{UID: "other"}}, readOff())}
		}},
		"only a pod of another Job": {noPod: true, change: func(_ *batchv1.Job, _ *corev1.Pod) []corev1.Pod {
			return []corev1.Pod{*ranPod(&batchv1.Job{ObjectMeta: metav1.ObjectMeta{UID: "other"}}, readOff())}
		}, waits: "it has no pod yet"},
		"container started twice": {change: func(_ *batchv1.Job, p *corev1.Pod) []corev1.Pod {
			p.Status.ContainerStatuses[0].RestartCount = 1
			return nil
		}, err: "its container was started 2 times"},
		"second pod after one that is gone": {change: func(j *batchv1.Job, p *corev1.Pod) []corev1.Pod {
			j.Status.Failed = 1
			p.Status.Phase = corev1.PodRunning
			return nil
		}, err: "an earlier pod of it failed"},
		"evicted": {change: func(_ *batchv1.Job, p *corev1.Pod) []corev1.Pod {
			p.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "The node was low on resource:\nmemory"}
			return nil
		}, err: "failed: Evicted The node was low on resource: memory"},
		"deadline of the Job": {noPod: true, change: func(j *batchv1.Job, _ *corev1.Pod) []corev1.Pod {
			j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue, Reason: "DeadlineExceeded"}}
			return nil
		}, err: "it ended without a report: DeadlineExceeded"},
		"condition that is false": {noPod: true, change: func(j *batchv1.Job, _ *corev1.Pod) []corev1.Pod {
			j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionFalse}}
			return nil
		}, waits: "it has no pod yet"},
		"Job deleted": {noPod: true, change: func(j *batchv1.Job, _ *corev1.Pod) []corev1.Pod {
			j.DeletionTimestamp = new(metav1.Now())
			return nil
		}, err: "it was deleted"},
		"image cannot be pulled": {change: func(_ *batchv1.Job, p *corev1.Pod) []corev1.Pod {
			notYet(p, corev1.PodPending, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"}})
			return nil
		}, waits: "on node n2 has not started: ImagePullBackOff no such image"},
		"not scheduled": {change: func(_ *batchv1.Job, p *corev1.Pod) []corev1.Pod {
			p.Spec.NodeName, p.Status = "", corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
				{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/1 nodes are available"},
			}}
			return nil
		}, waits: "is not scheduled: 0/1 nodes are available"},
		"running": {change: func(_ *batchv1.Job, p *corev1.Pod) []corev1.Pod {
			notYet(p, corev1.PodRunning, corev1.ContainerState{Running: &corev1.ContainerStateRunning{}})
			return nil
		}, waits: "on node n2 is Running"},
	} {
		job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "fence-x", UID: "job"}}
		pod := ranPod(job, readOff())
		var pods []corev1.Pod
		if tt.change != nil {
			pods = tt.change(job, pod)
		}
		if !tt.noPod {
			pods = append(pods, *pod)
		}
		got := statusOf(jobUse("read-1"), execute.Status, job, pods)
		switch {
		case tt.err != "":
			if !got.ended || got.err == nil || !strings.Contains(got.err.Error(), tt.err) || got.report.Result != "" {
				t.Errorf("%s: statusOf = %+v; want the error %q and no report", name, got, tt.err)
			}
		case tt.waits != "":
			if got.ended || got.err != nil || !strings.Contains(got.waits, tt.waits) {
				t.Errorf("%s: statusOf = %+v; want that it waits: %q", name, got, tt.waits)
			}
		case !got.ended || got.err != nil || got.report != readOff() || got.node != "n2":
			t.Errorf("%s: statusOf = %+v; want the report of off from n2", name, got)
		}
	}
}

func TestExcerpt(t *testing.T) {
	if got := excerpt("a\nb\x1b[0m\xff" + strings.Repeat("ä", 400)); len(got) > maxExcerpt || !strings.HasPrefix(got, "a b [0m?ä") {
		t.Errorf("excerpt = %q; want one line of at most %d bytes", got, maxExcerpt)
	}
}
