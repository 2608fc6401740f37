package pods

import (
	"testing"

	"github.com/evictd/evictd/agent/evict"
)

func TestEssential(t *testing.T) {
	for spared, want := range map[string]bool{"": false, "a kubelet's pod in kube-system": false, "contains containerd (pid 7)": true} {
		if got := Essential(&evict.Pod{ProtectedReason: spared}); got != want {
			t.Errorf("Vital(%q) = %t; want %t", spared, got, want)
		}
	}
}
