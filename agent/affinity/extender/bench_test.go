package extender

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// BenchmarkFilter measures a request about 5,000 nodes, as the handler is called by the server. It reports the 99th
// percentile, too.
func BenchmarkFilter(b *testing.B) {
	const count = 5000
	names, nodes := many(count, func(i int) string { return []string{"valid", "valid", "expired"}[i%3] })
	none := `{"nodeSelectorTerms":[{"matchExpressions":[{"key":"example.com/licence","operator":"In","values":["none"]}]}]}`
	for _, bench := range []struct {
		name string
		pod  *corev1.Pod
	}{
		{"unrestricted", newPod("")}, {"annotation", newPod(requires)}, {"no_node", newPod(none)}, {"invalid", newPod("nodeSelectorTerms: []")},
	} {
		b.Run(fmt.Sprintf("%s/%d", bench.name, count), func(b *testing.B) {
			h := newHandler(nodes)
			a := newAsker(marshal(b, args(bench.pod, names...)))
			var times []time.Duration
			b.ReportAllocs()
			for b.Loop() {
				began := time.Now()
				a.ask(h)
				times = append(times, time.Since(began))
			}
			slices.Sort(times)
			b.ReportMetric(float64(times[len(times)*99/100]), "p99-ns")
		})
	}
}
