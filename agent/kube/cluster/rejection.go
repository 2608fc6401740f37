package cluster

import (
	"context"
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
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
