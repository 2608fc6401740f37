package affinity

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// BenchmarkStep measures a step with 50,000 pods that violate in a cluster of 5,000 nodes: in a storm, within the rates,
// and where no node fits. The pods of a workload of ten share a requirement, which is equal to those of the others.
func BenchmarkStep(b *testing.B) {
	const pods, nodes, labels, affected = 50_000, 5_000, 30, 900
	for _, name := range []string{"storm", "rates", "no node fits"} {
		b.Run(fmt.Sprintf("%s/%d", name, pods), func(b *testing.B) {
			in := Inputs{Workloads: map[string]Workload{}, Config: DefaultConfig()}
			in.Config.Enforce = true
			for i := range nodes {
				object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("node-", i), Labels: map[string]string{}}}
				for j := range labels {
					object.Labels[fmt.Sprint("label-", j)] = "v"
				}
				object.Labels[licence] = "valid"
				if i < affected || name == "no node fits" {
					object.Labels[licence] = "expired"
				}
				in.Nodes = append(in.Nodes, Node{Object: object, Ready: true})
			}
			over := affected
			if name == "storm" {
				over = nodes
			}
			tolerations := []corev1.Toleration{
				{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
				{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
			}
			var shared *Requirement
			for i := range pods {
				if i%10 == 0 {
					shared = mustRequirement(b, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
						Annotations: map[string]string{Annotation: requiresKey}}})
				}
				uid := fmt.Sprintf("%08x-0000-4000-8000-%012x", i, i)
				workload := fmt.Sprintf("Deployment/default/w%d/uid", i/10)
				in.Workloads[workload] = Workload{Desired: 10, Ready: 10}
				p := Pod{
					PodKey: PodKey{Namespace: "default", Name: fmt.Sprint("pod-", i), UID: types.UID(uid)}, Node: fmt.Sprint("node-", i%over),
					Workload: workload, Tolerations: tolerations,
					Requirement: shared,
				}
				p.Verdict = p.Requirement.Match(in.Nodes[i%over].Object)
				in.Violating = append(in.Violating, p)
			}
			state, _ := Step(State{}, in, start)
			orders := 0
			for b.Loop() {
				_, o := Step(state, in, start.Add(time.Minute))
				orders = len(o.Evict)
			}
			if want := map[string]int{"rates": maxRequests}[name]; orders != want {
				b.Errorf("orders = %d; want %d", orders, want)
			}
		})
	}
}
