package pods

import (
	"testing"

	"github.com/evictd/evictd/agent/evict"
)

func TestEssential(t *testing.T) {
	for reason, want := range map[string]bool{"": false, "a kubelet's pod in kube-system": false, "contains containerd (pid 7)": true} {
		if got := Essential(&evict.Pod{ProtectedReason: reason}); got != want {
			t.Errorf("Essential(%q) = %t; want %t", reason, got, want)
		}
	}
}
