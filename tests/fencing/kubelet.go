package fencing

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/evictd/evictd/tests/controlplane"
)

const (
	// syncInterval is the interval of the stand-ins' loops.
	syncInterval = 100 * time.Millisecond
	// renewInterval is the interval at which a Lease is renewed. The kubelet's is 10 s.
	renewInterval = time.Second
	// statusInterval is that at which an unchanged status is written.
	statusInterval = 5 * time.Second
	leasePath      = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
	nodePath       = "/api/v1/nodes"
	csiNodePath    = "/apis/storage.k8s.io/v1/csinodes"
)

// kubelet writes what a kubelet writes: the Node, its Lease, and the status of its pods, which it runs in name only.
type kubelet struct {
	machine *Machine
	bootID  string
	// pods are those that it runs, with the names of their volumes.
	pods map[types.UID]runningPod
	// executors are the pods of Jobs.
	executors map[types.UID]*executorPod
	// attached are the volumes that the attach/detach controller has attached to the node.
	attached   []string
	renewed    time.Time
	written    time.Time
	inUse      []string
	registered bool
}

// runningPod is a pod with its volumes, as the kubelet and the attach/detach controller name them.
type runningPod struct {
	name    string
	volumes []string
}

// run runs the kubelet until ctx is done. It finishes no request after that.
func (k *kubelet) run(ctx context.Context) {
	k.pods, k.executors = map[types.UID]runningPod{}, map[types.UID]*executorPod{}
	defer k.stopExecutors()
	for {
		if err := k.sync(ctx); err != nil && ctx.Err() == nil {
			k.machine.report(fmt.Errorf("kubelet of %s: %w", k.machine.Name, err))
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(syncInterval):
		}
	}
}

func (k *kubelet) sync(ctx context.Context) error {
	if !k.registered {
		if err := k.register(ctx); err != nil {
			return err
		}
		k.registered = true
	}
	return errors.Join(k.renew(ctx), k.syncPods(ctx), k.writeStatus(ctx))
}

// register creates the objects of the node, unless an earlier boot has.
func (k *kubelet) register(ctx context.Context) error {
	name := k.machine.Name
	meta := metav1.ObjectMeta{Name: name}
	node := corev1.Node{ObjectMeta: *meta.DeepCopy()}
	node.Labels = map[string]string{corev1.LabelHostname: name}
	node.Annotations = map[string]string{"volumes.kubernetes.io/controller-managed-attach-detach": "true"}
	driver := storagev1.CSINodeDriver{Name: csiDriver, NodeID: name}
	return errors.Join(
		k.create(ctx, nodePath, node),
		k.create(ctx, csiNodePath, storagev1.CSINode{ObjectMeta: meta, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{driver}}}),
		k.create(ctx, leasePath, coordinationv1.Lease{ObjectMeta: meta, Spec: coordinationv1.LeaseSpec{HolderIdentity: &name}}),
	)
}

func (k *kubelet) create(ctx context.Context, path string, object any) error {
	err := k.machine.client.Create(ctx, path, object)
	if e, ok := errors.AsType[*controlplane.StatusError](err); ok && e.Code == http.StatusConflict {
		return nil
	}
	return err
}

// renew renews the Lease.
func (k *kubelet) renew(ctx context.Context) error {
	if time.Since(k.renewed) < renewInterval {
		return nil
	}
	k.renewed = time.Now()
	return k.machine.client.Patch(ctx, leasePath+"/"+k.machine.Name, controlplane.MergePatch,
		fields{"spec": fields{"renewTime": metav1.NowMicro(), "leaseDurationSeconds": 40}})
}

// fields are those of a patch.
type fields map[string]any

// syncPods runs the pods that are bound to the node, and ends those that are deleted.
func (k *kubelet) syncPods(ctx context.Context) error {
	var list corev1.PodList
	if err := k.machine.client.Get(ctx, "/api/v1/pods?fieldSelector=spec.nodeName%3D"+k.machine.Name, &list); err != nil {
		return err
	}
	var errs []error
	bound := map[types.UID]bool{}
	for i := range list.Items {
		bound[list.Items[i].UID] = true
		errs = append(errs, k.syncPod(ctx, &list.Items[i]))
	}
	for uid := range k.pods {
		if !bound[uid] {
			k.end(uid)
		}
	}
	return errors.Join(errs...)
}

func (k *kubelet) syncPod(ctx context.Context, pod *corev1.Pod) error {
	if pod.Labels["batch.kubernetes.io/job-name"] != "" && k.machine.executors != nil {
		return k.syncExecutor(ctx, pod)
	}
	path := "/api/v1/namespaces/" + pod.Namespace + "/pods/" + pod.Name
	running, known := k.pods[pod.UID]
	switch {
	case pod.DeletionTimestamp != nil:
		if pod.DeletionTimestamp.After(time.Now()) {
			return nil
		}
		k.end(pod.UID)
		return k.machine.client.Delete(ctx, path, metav1.DeleteOptions{
			GracePeriodSeconds: new(int64), Preconditions: &metav1.Preconditions{UID: &pod.UID},
		})
	case !known:
		volumes, err := k.volumes(ctx, pod)
		if err != nil {
			return err
		}
		k.pods[pod.UID] = runningPod{name: pod.Namespace + "/" + pod.Name, volumes: volumes}
		return nil
	case slices.ContainsFunc(running.volumes, func(v string) bool { return !slices.Contains(k.attached, v) }):
		return nil // not attached yet
	}
	k.machine.storage.use("pod "+running.name, k.machine.Name)
	for _, v := range running.volumes {
		k.machine.storage.use("volume "+v, k.machine.Name)
	}
	if pod.Status.Phase == corev1.PodRunning {
		return nil
	}
	now := metav1.Now()
	container := corev1.ContainerStatus{
		Name: pod.Spec.Containers[0].Name, Image: pod.Spec.Containers[0].Image, Ready: true, ContainerID: "stand-in://" + string(pod.UID),
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
	}
	return k.machine.client.Patch(ctx, path+"/status", controlplane.StrategicMergePatch, fields{"status": corev1.PodStatus{
		Phase: corev1.PodRunning, StartTime: &now, ContainerStatuses: []corev1.ContainerStatus{container},
		Conditions: []corev1.PodCondition{
			{Type: corev1.ContainersReady, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: corev1.ConditionTrue},
		},
	}})
}

// volumes returns the CSI volumes of a pod. The error says if a claim is not bound yet.
func (k *kubelet) volumes(ctx context.Context, pod *corev1.Pod) (names []string, err error) {
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim == nil {
			continue
		}
		var claim corev1.PersistentVolumeClaim
		var volume corev1.PersistentVolume
		if err := k.machine.client.Get(ctx, "/api/v1/namespaces/"+pod.Namespace+"/persistentvolumeclaims/"+v.PersistentVolumeClaim.ClaimName, &claim); err != nil {
			return nil, err
		}
		if err := k.machine.client.Get(ctx, "/api/v1/persistentvolumes/"+claim.Spec.VolumeName, &volume); err != nil {
			return nil, err
		}
		names = append(names, "kubernetes.io/csi/"+volume.Spec.CSI.Driver+"^"+volume.Spec.CSI.VolumeHandle)
	}
	return names, nil
}

// end ends a pod and unmounts its volumes.
func (k *kubelet) end(uid types.UID) {
	pod := k.pods[uid]
	delete(k.pods, uid)
	k.machine.storage.leave("pod "+pod.name, k.machine.Name)
	for _, v := range pod.volumes {
		k.machine.storage.leave("volume "+v, k.machine.Name)
	}
}

// writeStatus writes the status of the node if its volumes in use have changed or the interval is over, and reads the
// volumes that are attached.
func (k *kubelet) writeStatus(ctx context.Context) error {
	var inUse []string
	for _, pod := range k.pods {
		inUse = append(inUse, pod.volumes...)
	}
	slices.Sort(inUse)
	path := nodePath + "/" + k.machine.Name
	if slices.Equal(inUse, k.inUse) && time.Since(k.written) < statusInterval {
		return k.readAttached(ctx, path)
	}
	now := metav1.Now()
	ready := corev1.NodeCondition{
		Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: now, LastTransitionTime: now,
	}
	amounts := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi"), corev1.ResourcePods: resource.MustParse("110"),
	}
	err := k.machine.client.Patch(ctx, path+"/status", controlplane.StrategicMergePatch, fields{"status": fields{
		"capacity": amounts, "allocatable": amounts, "conditions": []corev1.NodeCondition{ready}, "volumesInUse": inUse,
		"nodeInfo": fields{"bootID": k.bootID, "systemUUID": k.machine.SystemUUID, "kubeletVersion": "v" + controlplane.Version},
	}})
	if err != nil {
		return err
	}
	if k.written.IsZero() {
		k.machine.log(Event{At: time.Now(), Kind: Booted, Object: k.machine.Name, Detail: "kubelet started, boot " + k.bootID})
	}
	k.written, k.inUse = now.Time, inUse
	return k.readAttached(ctx, path)
}

// readAttached reads which volumes are attached, while a pod waits for its own.
func (k *kubelet) readAttached(ctx context.Context, path string) error {
	if len(k.pods) == 0 {
		return nil
	}
	var node corev1.Node
	if err := k.machine.client.Get(ctx, path, &node); err != nil {
		return err
	}
	names := map[string]bool{}
	for _, v := range node.Status.VolumesAttached {
		names[string(v.Name)] = true
	}
	k.attached = slices.Sorted(maps.Keys(names))
	return nil
}
