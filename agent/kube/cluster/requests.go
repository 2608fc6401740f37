package cluster

import (
	"context"
	"encoding/json"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/evictd/evictd/agent/kube"
)

// writeTimeout bounds a request for an order. A paused API server accepts requests and does not
// answer.
const writeTimeout = 5 * time.Second

// lateTimeouts bound the writes of an order after those that were not answered in time. A pod
// with 64,000 annotations takes an API server seconds.
var lateTimeouts = []time.Duration{writeTimeout, 10 * time.Second, 20 * time.Second, 30 * time.Second}

// metadataOnly asks for the metadata of the pod in the answer. The pod can have 1.5 MB.
const metadataOnly = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"

// request carries out an action for an order. It returns the pod if it was read, and its
// metadata if it was patched. It makes one attempt: client-go's own retries would keep one of the few requests in flight.
func (c *client) request(ctx context.Context, o *kube.Order, a action, generation int64, timeout time.Duration) (*corev1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	pod := func(r *rest.Request) *rest.Request {
		return r.MaxRetries(0).Namespace(o.Namespace).Resource("pods").Name(o.Name)
	}
	switch a.kind {
	case readPod:
		p := &corev1.Pod{}
		return p, pod(c.rest.Get()).Do(ctx).Into(p)
	case deletePod:
		body, err := deletionOf(o, a.grace)
		if err != nil {
			return nil, err
		}
		return nil, pod(c.rest.Delete()).SetHeader("Accept", metadataOnly).SetHeader("Content-Type", "application/json").Body(body).Do(ctx).Error()
	}
	body, err := patchOf(o, generation, a.write, a.plain)
	if err != nil {
		return nil, err
	}
	result := pod(c.rest.Patch(types.StrategicMergePatchType)).SubResource("status").SetHeader("Accept", metadataOnly).Body(body).Do(ctx)
	if err := result.Error(); err != nil {
		return nil, err
	}
	p := &corev1.Pod{}
	if body, err := result.Raw(); err != nil || json.Unmarshal(body, p) != nil {
		return nil, nil // the write has succeeded
	}
	return p, nil
}

// create posts an object that is not of this package's scheme, and returns the answer.
func (c *client) create(ctx context.Context, object any, path ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	body, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	result := c.rest.Post().MaxRetries(0).AbsPath(path...).SetHeader("Content-Type", "application/json").Body(body).Do(ctx)
	if err := result.Error(); err != nil {
		return nil, err
	}
	return result.Raw()
}
