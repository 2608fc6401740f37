package controller

import (
	"context"
	"errors"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/fence/nodefence"
)

// observer reads what decisions need, from the API server and not from a cache.
type observer struct {
	live   liveReader
	leases *leases
	failed *unreadable
}

// objects returns Node and NodeFence of a node, nil for one that does not exist. Without both there is no decision, so
// known is false if one could not be read.
func (o *observer) objects(ctx context.Context, name string) (node *corev1.Node, nf *nodefence.NodeFence, known bool) {
	known = o.read("Nodes", func() (err error) {
		node, err = o.live.node(ctx, name)
		return err
	}) && o.read("NodeFences", func() (err error) {
		nf, err = o.live.nodeFence(ctx, name)
		return err
	})
	return node, nf, known
}

// lease returns what is known of the Lease of a node.
func (o *observer) lease(ctx context.Context, name string) (l fence.Lease) {
	var r renewal
	l.Known = o.read("Leases", func() (err error) {
		r, l.Found, err = o.live.lease(ctx, name)
		return err
	})
	if l.Known && l.Found {
		l.Renewed, l.UnchangedSince = r.renewed, o.leases.observe(name, r, time.Now())
	}
	return l
}

// listLeases lists the Leases of all nodes.
func (o *observer) listLeases(ctx context.Context) error {
	asked := time.Now()
	all, err := o.live.leases(ctx)
	if outage(err) {
		o.leases.forgetAll()
	}
	if err == nil {
		o.leases.list(all, asked, time.Now())
	}
	return err
}

// load returns what is known of the pods and volumes of a node.
func (o *observer) load(ctx context.Context, name string) fence.Load {
	return o.loadAs(ctx, name, false)
}

// loadAs returns the load, and with volumes also on which storage the volumes are: several requests for each.
func (o *observer) loadAs(ctx context.Context, name string, volumes bool) (l fence.Load) {
	var pods []corev1.Pod
	var list []storagev1.VolumeAttachment
	l.PodsKnown = o.failed.read("Pods", func() (err error) {
		pods, err = o.live.pods(ctx, name)
		return err
	})
	if !l.PodsKnown {
		return l // which volumes are kept is unknown, too
	}
	for i := range pods {
		l.Pods = append(l.Pods, podFacts(&pods[i]))
	}
	l.AttachmentsKnown = o.failed.read("VolumeAttachments", func() (err error) {
		if list, err = o.live.attachments(ctx, name); err != nil {
			return err
		}
		l.Attachments, err = attachmentFacts(ctx, o.live, list, keptClaims(pods))
		return err
	})
	if volumes && l.AttachmentsKnown {
		// Without it they are on unknown storage, which is not released.
		o.failed.read("PersistentVolumeClaims", func() error { return addVolumes(ctx, o.live, &l, pods, list) })
	}
	return l
}

// read calls f as unreadable.read does. Kubelets can't renew their Leases in an outage of the API server either, so
// after one each Lease counts as seen for the first time.
func (o *observer) read(part string, f func() error) bool {
	return o.failed.read(part, func() error {
		err := f()
		if outage(err) {
			o.leases.forgetAll()
		}
		return err
	})
}

// outage reports whether an error may mean that kubelets don't reach the API server either.
func outage(err error) bool {
	if err == nil {
		return false
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return true
	}
	code := status.Status().Code
	return code >= http.StatusInternalServerError || code == http.StatusTooManyRequests
}
