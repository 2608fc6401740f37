package cluster

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestKubernetesIsPinned: the build of Kubernetes has the checksum of each module, at the
// version that the tests start.
func TestKubernetesIsPinned(t *testing.T) {
	read := func(name string) string {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(content)
	}
	mod, sum := read("kubernetes/go.mod"), read("kubernetes/go.sum")
	sibling := "0." + strings.TrimPrefix(apiVersion, "1.") // the version of staging modules
	if !strings.Contains(mod, "\nrequire k8s.io/kubernetes v"+apiVersion+"\n") {
		t.Errorf("kubernetes/go.mod does not require k8s.io/kubernetes v%s", apiVersion)
	}
	for _, m := range regexp.MustCompile(`(?m)^\t(k8s\.io/\S+) => k8s\.io/\S+ v(\S+)$`).FindAllStringSubmatch(mod, -1) {
		if m[2] != sibling {
			t.Errorf("kubernetes/go.mod has %s v%s; want v%s", m[1], m[2], sibling)
		}
	}
	for _, m := range []string{"k8s.io/kubernetes v" + apiVersion, "k8s.io/apiserver v" + sibling} {
		if !strings.Contains(sum, "\n"+m+" h1:") {
			t.Errorf("kubernetes/go.sum has no checksum of %s", m)
		}
	}
	if !strings.Contains(read("fetch.sh"), "GOFLAGS=-mod=readonly ") {
		t.Error("fetch.sh may build modules that kubernetes/go.sum does not have")
	}
}
