package fencing

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	storagev1 "k8s.io/api/storage/v1"

	"github.com/evictd/evictd/tests/controlplane"
)

const (
	attachmentPath = "/apis/storage.k8s.io/v1/volumeattachments"
	// attacherFinalizer is that of the sidecar external-attacher for the driver.
	attacherFinalizer = "external-attacher/evictd-test"
)

// attacher answers for the CSI driver's controller: it attaches what the attach/detach controller asks for, and
// detaches what that deletes. Neither asks the machine.
type attacher struct {
	client *controlplane.Client
	report func(error)
}

func (a *attacher) run(ctx context.Context) {
	for {
		if err := a.sync(ctx); err != nil && ctx.Err() == nil {
			a.report(fmt.Errorf("attacher: %w", err))
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(syncInterval):
		}
	}
}

func (a *attacher) sync(ctx context.Context) error {
	var list storagev1.VolumeAttachmentList
	if err := a.client.Get(ctx, attachmentPath, &list); err != nil {
		return err
	}
	var errs []error
	for i := range list.Items {
		v := &list.Items[i]
		path := attachmentPath + "/" + v.Name
		switch {
		case v.DeletionTimestamp != nil && slices.Contains(v.Finalizers, attacherFinalizer):
			errs = append(errs, a.client.Patch(ctx, path, controlplane.MergePatch, fields{"metadata": fields{"finalizers": []string{}}}))
		case v.DeletionTimestamp == nil && !v.Status.Attached:
			errs = append(errs,
				a.client.Patch(ctx, path, controlplane.MergePatch, fields{"metadata": fields{"finalizers": []string{attacherFinalizer}}}),
				a.client.Patch(ctx, path+"/status", controlplane.MergePatch, fields{"status": fields{"attached": true}}))
		}
	}
	return errors.Join(errs...)
}
