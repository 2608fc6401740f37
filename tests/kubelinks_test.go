package tests

import (
	"strings"
	"testing"
)

// Only evictd-kube and evictd-controller link the API client, and besides them only what compares a pod's node affinity
// links the types of the API: the privileged process with locked memory does not decode pod objects, which tenants write.
func TestWhoLinksTheAPIClient(t *testing.T) {
	const kube, controller = module + "agent/kube/cluster", module + "agent/controller"
	clients := map[string]string{
		kube: kube, module + "cmd/evictd-kube": kube,
		controller: controller, module + "agent/controller/affinity": controller, module + "agent/controller/serving": controller,
		module + "cmd/evictd-controller": controller,
	}
	types := map[string]bool{module + "agent/affinity": true, module + "agent/affinity/extender": true, module + "agent/affinity/settings": true, module + "agent/affinity/webhook": true, module + "cmd/evictctl": true}
	linked := map[string]bool{}
	for _, p := range list(t, "./...") {
		if strings.HasPrefix(p.ImportPath, module+"tests/") {
			continue
		}
		own := clients[p.ImportPath]
		for _, dep := range p.Deps {
			switch client := strings.HasPrefix(dep, "k8s.io/client-go/") ||
				strings.HasPrefix(dep, "k8s.io/api/") && !types[p.ImportPath]; {
			case dep == own:
				linked[own] = true
			case client && own == "", dep == kube, dep == controller:
				t.Errorf("%s links %s; only evictd-kube and evictd-controller may link an API client, each its own", p.ImportPath, dep)
			}
		}
	}
	for _, own := range []string{kube, controller} {
		if !linked[own] {
			t.Errorf("no command links %s", own)
		}
	}
}

// evictd-kube is unprivileged: it links nothing that reads the kernel or kills.
func TestEvictdKubeLinksNoDaemon(t *testing.T) {
	for _, p := range list(t, "./cmd/evictd-kube") {
		for _, dep := range p.Deps {
			path, ours := strings.CutPrefix(dep, module)
			if !ours {
				continue
			}
			switch r := ruleDir(path); r {
			case "agent/affinity", "agent/kube", "agent/kube/cluster", "agent/evict", "agent/signal", "agent/logflags", "agent/selffence", "agent/selffence/peers", "agent/version":
			default:
				t.Errorf("evictd-kube links %s (import rule of %s)", path, r)
			}
		}
	}
}
