package controller

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/evictd/evictd/agent/fence"
)

// volumeReader says on which storage volumes are. What it cannot find out is unknown storage; only failed requests are
// errors. It reads each PersistentVolume once.
type volumeReader struct {
	live    liveReader
	volumes map[string]*corev1.PersistentVolume // nil for one that does not exist
}

// addVolumes adds to a load of these pods and VolumeAttachments on which storage their volumes are.
func addVolumes(
	ctx context.Context, live liveReader, l *fence.Load, pods []corev1.Pod, attachments []storagev1.VolumeAttachment,
) error {
	r := volumeReader{live, make(map[string]*corev1.PersistentVolume)}
	volumes := make([][]fence.Volume, len(pods))
	users := make(map[types.NamespacedName][]string) // UIDs of pods by claim
	for i := range pods {
		var err error
		if volumes[i], err = r.ofPod(ctx, &pods[i]); err != nil {
			return err
		}
		for _, claim := range claims(&pods[i]) {
			users[claim] = append(users[claim], string(pods[i].UID))
		}
	}
	of := make([]fence.Volume, len(attachments))
	claimOf := make([]types.NamespacedName, len(attachments))
	for i := range attachments {
		var err error
		if of[i], claimOf[i], err = r.ofAttachment(ctx, &attachments[i]); err != nil {
			return err
		}
	}
	for i := range volumes {
		l.Pods[i].Volumes = volumes[i]
	}
	for i := range of {
		l.Attachments[i].Volume, l.Attachments[i].Pods = of[i], users[claimOf[i]]
	}
	return nil
}

// claims returns the PersistentVolumeClaims of a pod.
func claims(p *corev1.Pod) []types.NamespacedName {
	var names []types.NamespacedName
	for i := range p.Spec.Volumes {
		if name := claimName(p, &p.Spec.Volumes[i]); name != "" {
			names = append(names, types.NamespacedName{Namespace: p.Namespace, Name: name})
		}
	}
	return names
}

// claimName returns the name of the PersistentVolumeClaim of a pod's volume, empty if it has none.
func claimName(p *corev1.Pod, v *corev1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		return p.Name + "-" + v.Name
	}
	return ""
}

// ofPod returns the volumes of a pod that outlive it. A directory of the node is unknown storage: another filesystem may
// be mounted there.
func (r *volumeReader) ofPod(ctx context.Context, p *corev1.Pod) ([]fence.Volume, error) {
	var volumes []fence.Volume
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		switch {
		case v.EmptyDir != nil, v.ConfigMap != nil, v.Secret != nil, v.DownwardAPI != nil, v.Projected != nil, v.Image != nil:
		case v.CSI != nil:
			volumes = append(volumes, fence.Volume{Driver: v.CSI.Driver})
		case claimName(p, v) != "":
			volume, err := r.ofClaim(ctx, p, v)
			if err != nil {
				return nil, err
			}
			volumes = append(volumes, volume)
		default:
			volumes = append(volumes, fence.Volume{})
		}
	}
	return volumes, nil
}

// ofClaim returns where the volume of a claim is. The claim of an ephemeral volume must be the pod's own: the kubelet
// does not mount another one either.
func (r *volumeReader) ofClaim(ctx context.Context, p *corev1.Pod, v *corev1.Volume) (fence.Volume, error) {
	claim := &corev1.PersistentVolumeClaim{}
	key := types.NamespacedName{Namespace: p.Namespace, Name: claimName(p, v)}
	if found, err := r.get(ctx, key, claim); err != nil || !found {
		return fence.Volume{}, err
	}
	if v.Ephemeral != nil && !metav1.IsControlledBy(claim, p) {
		return fence.Volume{}, nil
	}
	volume, err := r.persistent(ctx, claim.Spec.VolumeName)
	if err != nil || volume == nil || volume.Spec.ClaimRef == nil || volume.Spec.ClaimRef.UID != claim.UID {
		return fence.Volume{}, err
	}
	return storageOf(volume), nil
}

// ofAttachment returns where the volume of a VolumeAttachment is, and its claim.
func (r *volumeReader) ofAttachment(
	ctx context.Context, a *storagev1.VolumeAttachment,
) (of fence.Volume, claim types.NamespacedName, err error) {
	if a.Spec.Source.PersistentVolumeName == nil {
		return fence.Volume{}, claim, nil
	}
	volume, err := r.persistent(ctx, *a.Spec.Source.PersistentVolumeName)
	if err != nil || volume == nil || volume.Spec.ClaimRef == nil {
		return fence.Volume{}, claim, err
	}
	claim = types.NamespacedName{Namespace: volume.Spec.ClaimRef.Namespace, Name: volume.Spec.ClaimRef.Name}
	if of = storageOf(volume); of.Driver != a.Spec.Attacher {
		of = fence.Volume{}
	}
	return of, claim, nil
}

// storageOf returns the storage of a PersistentVolume. That of another type than CSI is unknown, also if a CSI driver
// took it over.
func storageOf(v *corev1.PersistentVolume) fence.Volume {
	if v.Spec.CSI == nil {
		return fence.Volume{}
	}
	return fence.Volume{Driver: v.Spec.CSI.Driver, Class: v.Spec.StorageClassName}
}

// persistent returns a PersistentVolume, nil if there is none.
func (r *volumeReader) persistent(ctx context.Context, name string) (*corev1.PersistentVolume, error) {
	if name == "" {
		return nil, nil
	}
	if v, read := r.volumes[name]; read {
		return v, nil
	}
	v := &corev1.PersistentVolume{}
	found, err := r.get(ctx, types.NamespacedName{Name: name}, v)
	if err != nil {
		return nil, err
	}
	if !found {
		v = nil
	}
	r.volumes[name] = v
	return v, nil
}

func (r *volumeReader) get(ctx context.Context, key types.NamespacedName, o client.Object) (found bool, err error) {
	err = r.live.reader.Get(ctx, key, o)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read %T %s: %w", o, key, err)
	}
	return true, nil
}
