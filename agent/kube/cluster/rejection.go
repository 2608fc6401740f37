package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/evictd/evictd/agent/kube"
)

// reject marks a pod Failed as the kubelet does when it rejects one (pkg/kubelet/kubelet.go: rejectPod), with the
// annotation by which the kubelet takes that from others. With a resource version the API server answers 409 if the pod
// has changed since.
func (c *client) reject(ctx context.Context, a *arrival, version, message string, write int) error {
	var p statusPatch
	p.Metadata.UID, p.Metadata.ResourceVersion = a.uid, version
	p.Metadata.Annotations = map[string]string{annotationEvicted: markOf(&kube.Order{Decided: a.decided}, write)}
	p.Status.Phase, p.Status.Reason, p.Status.Message = corev1.PodFailed, reasonAffinity, message
	body, err := json.Marshal(&p)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	return c.rest.Patch(types.StrategicMergePatchType).MaxRetries(0).Namespace(a.namespace).Resource("pods").Name(a.name).SubResource("status").
		SetHeader("Accept", metadataOnly).Body(body).Do(ctx).Error()
}

// read reads an object from the API server.
func (c *client) read(ctx context.Context, into runtime.Object, resource, namespace, name string) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	r := c.rest.Get().MaxRetries(0).Resource(resource).Name(name)
	if namespace != "" {
		r = r.Namespace(namespace)
	}
	return r.Do(ctx).Into(into)
}

// link returns the present connection; nil before the first.
func (r *Reporter) link() *connection {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.connection
}

// enforces reports whether evictd evicts pods: it is neither in dry run, nor stopping or away, and does not shut the
// node down. Only then has the Node its conditions.
func (r *Reporter) enforces() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.nodes.state
	if s == nil || s.Stopped || len(s.Conditions) == 0 {
		return false
	}
	for _, c := range s.Conditions {
		if c.Type == shutdownCondition && c.Status {
			return false
		}
	}
	return true
}

// announceRejection emits an event about a pod.
func (r *Reporter) announceRejection(e eventObject) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.enqueue(queuedEvent{eventObject: e})
}

// assert writes a rejection again that the kubelet has undone: it writes the status that it had in mind when the pod
// came. If the pod has changed since, nothing is written: the watch shows the change, and a container that has started
// ends that. Without an answer the write counts: it may have succeeded. After one that says that the API server could
// not do it, it is tried again for rejectedKept. Another failure is not repeated.
func (r *Rejector) assert(ctx context.Context, j *rejection) {
	c := r.reporter.link()
	if c == nil {
		return
	}
	if !r.reporter.enforces() {
		r.log.Info("kubelet had undone the rejection of a pod; evictd does not enforce, and it is not written again", "pod", j.namespace+"/"+j.name)
		return
	}
	r.mu.Lock()
	write, version := j.writes+1, j.version
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	err := c.reject(ctx, &j.arrival, version, j.message, write)
	if outcomeOf(err) == conflict {
		r.log.Debug("pod has changed since the kubelet had undone its rejection", "pod", j.namespace+"/"+j.name)
		return
	}
	again := unable(err) && r.postpone(j, version, err)
	if !again {
		r.mu.Lock()
		j.writes = max(j.writes, write)
		r.mu.Unlock()
	}
	if err != nil {
		c.renew(c.files.explain(err))
		r.log.Warn("could not write the rejection of a pod again that the kubelet had undone", "pod", j.namespace+"/"+j.name, "write", write,
			"again", again, "error", oneLine(err.Error()))
		return
	}
	r.log.Info("kubelet had undone the rejection of a pod; wrote it again", "pod", j.namespace+"/"+j.name, "write", write)
}

// postpone has a rejection written again later. It returns false if the pod is not watched for that any more. With the
// resource version a write that was done after all is answered by a conflict.
func (r *Rejector) postpone(j *rejection, version string, err error) bool {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rejected[j.uid] != j || now.Sub(j.decided) > rejectedKept {
		return false
	}
	if !j.again { // else the watch has shown a newer one
		j.again, j.version = true, version
	}
	j.retryAt = now.Add(max(firstDelay<<min(j.failures, 6), retryAfter(err)))
	j.failures++
	return true
}

// unable reports whether the API server has answered that it could not do a write.
func unable(err error) bool {
	var answer apierrors.APIStatus
	return outcomeOf(err) == later && errors.As(err, &answer) && !unstructured(answer.Status())
}
