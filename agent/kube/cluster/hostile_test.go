package cluster

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/evictd/evictd/agent/kube"
)

// evictd gets facts about every pod that the API server accepts, however a tenant writes it:
// by default a pod without facts is not evicted.
func TestHostilePodsHaveFacts(t *testing.T) {
	t.Parallel()
	a := newAPIServer(t)
	amounts := func(text string) corev1.ResourceRequirements {
		list := corev1.ResourceList{}
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
			list[name] = resource.MustParse(text)
		}
		return corev1.ResourceRequirements{Requests: list, Limits: list}
	}
	hostile := []func(*corev1.Pod){
		func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "\x1b[2J", Name: strings.Repeat("x", 100_000), Controller: new(true)}}
		},
		func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(-1)) },
		func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(1<<63 - 1)) },
		func(p *corev1.Pod) {
			for i := range 3000 {
				p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: fmt.Sprintf("c%d", i), Resources: amounts("9999P")})
			}
		},
		func(p *corev1.Pod) {
			p.Labels = map[string]string{}
			for i := range 3000 {
				p.Labels[fmt.Sprintf("l%d", i)] = strings.Repeat("v", 63)
				p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Key: fmt.Sprintf("t%d", i)})
				p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Name: fmt.Sprintf("i%d", i)})
				p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers, corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: fmt.Sprintf("e%d", i)}})
				p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: fmt.Sprintf("v%d", i), VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: new(resource.MustParse("1e30"))}}})
			}
		},
		func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: "<\u2028>"}}}}
			p.Spec.Tolerations = []corev1.Toleration{{Key: "\x00", Value: strings.Repeat("<", 100_000)}}
			p.Labels = map[string]string{"a": "\ufffd"}
			p.Status.Phase = "Half-finished"
		},
		func(p *corev1.Pod) { p.Annotations = map[string]string{"a": strings.Repeat("\x00", 200_000)} },
	}
	for _, text := range []string{"0", "1n", "0.0000000001", "1e-9", "8Ei", "1e30", "1E18", "99999999999999999999999999Gi", "123456789.123456789", "1e99"} {
		hostile = append(hostile, func(p *corev1.Pod) { p.Spec.Containers[0].Resources = amounts(text) })
	}
	for i, change := range hostile {
		a.change(watch.Added, apiPod(fmt.Sprint("p", i), change))
	}
	kubeconfig, _, _ := a.files(t)
	n := start(t, kubeconfig, "n1")
	n.until("list", func(s kube.Status) bool { return s.Watching && s.Pods+int(s.Refusals) >= len(hostile) })
	for i := range hostile {
		if uid := fmt.Sprint("p", i); n.priority(uid) != 7 {
			about, _ := n.facts.Describe(uid)
			t.Errorf("pod %d has no facts: %+v", i, about)
		}
	}
}
