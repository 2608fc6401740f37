package tests

import (
	"strings"
	"testing"
)

// Only evictd-kube links the API client: the privileged process with locked memory does not
// decode pod objects, which tenants write.
func TestOnlyEvictdKubeLinksTheAPIClient(t *testing.T) {
	const cluster = module + "agent/kube/cluster"
	linked := false
	for _, p := range list(t, "./...") {
		own := p.ImportPath == cluster || p.ImportPath == module+"cmd/evictd-kube"
		for _, dep := range p.Deps {
			switch client := strings.HasPrefix(dep, "k8s.io/client-go/") || strings.HasPrefix(dep, "k8s.io/api/"); {
			case dep == cluster && own:
				linked = true
			case (dep == cluster || client) && !own:
				t.Errorf("%s links %s; only cmd/evictd-kube may", p.ImportPath, dep)
			}
		}
	}
	if !linked {
		t.Error("cmd/evictd-kube does not link agent/kube/cluster")
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
			case "agent/kube", "agent/kube/cluster", "agent/evict", "agent/signal", "agent/version":
			default:
				t.Errorf("evictd-kube links %s (import rule of %s)", path, r)
			}
		}
	}
}
