package config

import (
	"testing"

	"github.com/evictd/evictd/agent/evict"
)

// Newer labels of another source protect a pod, and do not end the protection by the labels
// that the runtime was given.
func TestProtectedByEitherLabels(t *testing.T) {
	protected := (&Protect{LabelSelectors: []string{"tier=gold"}, DaemonSets: true}).protected()
	gold, generation := map[string]string{"tier": "gold"}, map[string]string{"pod-template-generation": "1"}
	for _, tt := range []struct {
		labels, runtime map[string]string
		want            string
	}{
		{nil, nil, ""},
		{gold, nil, "label selector tier=gold"},
		{gold, map[string]string{}, "label selector tier=gold"},
		{map[string]string{"tier": "none"}, gold, "label selector tier=gold"},
		{map[string]string{}, generation, "a DaemonSet's pod"},
	} {
		if got := protected(&evict.Pod{Labels: tt.labels, RuntimeLabels: tt.runtime}); got != tt.want {
			t.Errorf("protected(%v, %v) = %q; want %q", tt.labels, tt.runtime, got, tt.want)
		}
	}
}
