package controller

import (
	"errors"
	"fmt"
	"strings"
	"unicode"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/evictd/evictd/agent/fence/execute"
)

// jobStatus is what Kubernetes says of a Job.
type jobStatus struct {
	// ended says that no more is waited for: there is a report or an error.
	ended  bool
	report execute.Report
	err    error
	// started says that the container may run, or may have run.
	started bool
	// node is where its pod runs, empty if it is not scheduled.
	node string
	// waits is what the Job waits for if it has not ended.
	waits string
}

// statusOf returns the status of the Job of a use. A report counts only if one pod of the Job has run, once, on another
// node than the one that is fenced.
func statusOf(u *use, action execute.Action, job *batchv1.Job, pods []corev1.Pod) jobStatus {
	var own []*corev1.Pod
	for i := range pods {
		if metav1.IsControlledBy(&pods[i], job) {
			own = append(own, &pods[i])
		}
	}
	failed := func(format string, arguments ...any) jobStatus {
		s := jobStatus{ended: true, err: fmt.Errorf("wait for Job %s: "+format, append([]any{job.Name}, arguments...)...)}
		if len(own) > 0 {
			s.node = own[0].Spec.NodeName
		}
		return s
	}
	switch {
	case len(own) > 1:
		return failed("Kubernetes started %d pods of it; no report of them counts", len(own))
	case len(own) == 1:
		pod := own[0]
		if pod.Spec.NodeName == u.node {
			return failed("its pod is on node %s, which is to be fenced; its report does not count", u.node)
		}
		if job.Status.Failed > 0 && pod.Status.Phase != corev1.PodFailed {
			return failed("an earlier pod of it failed; no report counts")
		}
		if c := terminated(pod); c != nil {
			if c.RestartCount > 0 {
				return failed("its container was started %d times; no report counts", c.RestartCount+1)
			}
			r, err := execute.ParseReport(c.State.Terminated.Message, u.id, action, int(c.State.Terminated.ExitCode))
			if err != nil {
				return failed("pod %s on node %s: %w", pod.Name, pod.Spec.NodeName, err)
			}
			return jobStatus{ended: true, report: r, node: pod.Spec.NodeName}
		}
		if pod.Status.Phase == corev1.PodFailed {
			return failed("pod %s on node %s failed: %s", pod.Name, pod.Spec.NodeName, excerpt(pod.Status.Reason+" "+pod.Status.Message))
		}
	}
	for _, c := range job.Status.Conditions {
		over := c.Type == batchv1.JobFailed || c.Type == batchv1.JobComplete
		if over && c.Status == corev1.ConditionTrue {
			return failed("it ended without a report: %s", excerpt(c.Reason+" "+c.Message))
		}
	}
	if job.DeletionTimestamp != nil {
		return failed("it was deleted")
	}
	s := jobStatus{waits: "it has no pod yet"}
	if len(own) == 1 {
		s.node, s.waits = own[0].Spec.NodeName, podWaits(own[0])
		s.started = own[0].Status.Phase != corev1.PodPending && own[0].Status.Phase != ""
	}
	return s
}

// terminated returns the container that has ended, nil if it has not.
func terminated(pod *corev1.Pod) *corev1.ContainerStatus {
	for i := range pod.Status.ContainerStatuses {
		c := &pod.Status.ContainerStatuses[i]
		if c.Name == executorContainer && c.State.Terminated != nil {
			return c
		}
	}
	return nil
}

// podWaits returns why the container of a pod has not ended.
func podWaits(pod *corev1.Pod) string {
	if pod.Spec.NodeName == "" {
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
				return "pod " + pod.Name + " is not scheduled: " + excerpt(c.Message)
			}
		}
		return "pod " + pod.Name + " is not scheduled"
	}
	where := "pod " + pod.Name + " on node " + pod.Spec.NodeName
	for _, c := range pod.Status.ContainerStatuses {
		if w := c.State.Waiting; w != nil {
			return where + " has not started: " + excerpt(w.Reason+" "+w.Message)
		}
	}
	return where + " is " + string(pod.Status.Phase)
}

// maxExcerpt is how much of a text of Kubernetes becomes a part of an error.
const maxExcerpt = 300

// excerpt returns the beginning of a text that other programs wrote, on one line.
func excerpt(text string) string {
	text = strings.TrimSpace(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?")))
	return strings.ToValidUTF8(text[:min(len(text), maxExcerpt)], "")
}

// errNotOurs says that the Job of a name is not that of the use.
var errNotOurs = errors.New("there is a Job of this name that is not that of this act; it does not count")
