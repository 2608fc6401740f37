package fencing

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/evictd/evictd/tests/controlplane"
)

const (
	csiDriver    = "csi.test.evictd.io"
	volumeHandle = "vol-0"
	storageClass = "test"
	// workloadName is the StatefulSet's, PodName that of its pod.
	workloadName = "database"
	PodName      = workloadName + "-0"
	podsPath     = "/api/v1/namespaces/default/pods"
)

// createWorkload creates a StatefulSet of one pod that prefers a node, with a volume of the CSI driver.
func createWorkload(ctx context.Context, c *controlplane.Client, node string) error {
	quantity := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	labels := map[string]string{"app": workloadName}
	class := storageClass
	for _, o := range []struct {
		path   string
		object any
	}{
		{"/apis/storage.k8s.io/v1/csidrivers", storagev1.CSIDriver{
			ObjectMeta: metav1.ObjectMeta{Name: csiDriver},
			Spec:       storagev1.CSIDriverSpec{AttachRequired: new(true)},
		}},
		{"/apis/storage.k8s.io/v1/storageclasses", storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: storageClass}, Provisioner: "kubernetes.io/no-provisioner",
		}},
		{"/api/v1/persistentvolumes", corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: volumeHandle},
			Spec: corev1.PersistentVolumeSpec{
				Capacity: quantity, AccessModes: modes, StorageClassName: storageClass, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
				PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: csiDriver, VolumeHandle: volumeHandle}},
			},
		}},
		{"/apis/apps/v1/namespaces/default/statefulsets", appsv1.StatefulSet{
			ObjectMeta: metav1.ObjectMeta{Name: workloadName},
			Spec: appsv1.StatefulSetSpec{
				Replicas: new(int32(1)), Selector: &metav1.LabelSelector{MatchLabels: labels},
				Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: podSpec(node)},
				VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{
					ObjectMeta: metav1.ObjectMeta{Name: "data"},
					Spec: corev1.PersistentVolumeClaimSpec{
						AccessModes: modes, StorageClassName: &class, Resources: corev1.VolumeResourceRequirements{Requests: quantity},
					},
				}},
			},
		}},
	} {
		if err := c.Create(ctx, o.path, o.object); err != nil {
			return fmt.Errorf("create the workload: %w", err)
		}
	}
	return nil
}

// podSpec returns the specification of a pod that prefers a node.
func podSpec(node string) corev1.PodSpec {
	return corev1.PodSpec{
		TerminationGracePeriodSeconds: new(int64(1)),
		Containers: []corev1.Container{{
			Name: "main", Image: "stand-in", VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}},
		}},
		Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
				Weight: 100,
				Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
					{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node}},
				}},
			}},
		}},
	}
}
