// Package tests has the tests of the whole tree: import rules, and size, memory and connection limits of the daemon. Its
// subdirectories have tests that need a real containerd or a virtual machine, benchmarks, scripts of the commands, and
// example scenarios.
package tests

import (
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/evictd/evictd/"

// importRules lists for each directory the directories that its packages may import. A directory includes its
// subdirectories, except those with their own entry; a name that ends in "/..." includes all of them.
var importRules = map[string][]string{
	"bpf":                       {"bpf"},
	"kernel":                    {"kernel"},
	"cri":                       {"cri"},
	"agent/signal":              {},
	"agent/version":             {},
	"agent/config":              {"agent/signal", "agent/evict", "agent/config", "agent/selffence", "agent/shutdown"},
	"agent/evict":               {"agent/signal"},
	"agent/scenario":            {"agent/signal", "agent/config", "agent/evict", "agent/shutdown"},
	"agent/pods":                {"agent/signal", "agent/evict", "cri", "kernel", "bpf"},
	"agent/memory":              {"agent/signal", "kernel", "bpf"},
	"agent/lanes":               {"agent/pollinterval", "agent/signal", "agent/memory", "kernel", "bpf"},
	"agent/pollinterval":        {},
	"agent/tasks":               {"agent/pollinterval", "agent/signal", "agent/evict", "kernel"},
	"agent/disks":               {"agent/pollinterval", "agent/signal", "agent/evict", "cri", "kernel"},
	"agent/act":                 {"agent/evict", "kernel", "cri"},
	"agent/podfence":            {"kernel"},
	"agent/fence":               {},
	"agent/fence/kdump":         {},
	"agent/fence/execute":       {"agent/fence", "agent/fence/device", "agent/fence/device/clusterlabs", "agent/fence/plan"},
	"agent/fence/device":        {"agent/fence", "agent/fence/device"},
	"agent/fence/nodefence":     {"agent/fence"},
	"agent/fence/plan":          {"agent/fence", "agent/properties"},
	"agent/properties":          {},
	"agent/selffence":           {},
	"agent/selffence/peers":     {"agent/selffence"},
	"agent/selffence/driver":    {"agent/selffence", "agent/kube", "kernel"},
	"agent/affinity":            {},
	"agent/affinity/extender":   {"agent/affinity"},
	"agent/affinity/settings":   {"agent/affinity", "agent/properties"},
	"agent/affinity/webhook":    {"agent/affinity"},
	"agent/execute":             {"agent/signal", "agent/evict", "agent/act"},
	"agent/loop":                {"agent/pollinterval", "agent/signal", "agent/config", "agent/evict", "agent/execute", "agent/pods", "agent/memory", "agent/lanes", "agent/hot", "agent/act", "agent/disks", "agent/reclaim", "kernel"},
	"agent/reclaim":             {"agent/pollinterval", "agent/signal", "agent/evict", "kernel", "cri"},
	"agent/hot":                 {"agent/signal", "agent/evict", "agent/act", "agent/memory", "agent/lanes", "kernel"},
	"agent/oomscore":            {"agent/pollinterval", "kernel"},
	"agent/proactive":           {"kernel"},
	"agent/self":                {"agent/pollinterval", "agent/evict", "agent/act", "agent/hot", "kernel"},
	"agent/shutdown":            {"agent/evict", "agent/shutdown", "kernel"},
	"agent/shutdown/driver":     {"agent/evict", "agent/shutdown", "agent/config", "agent/execute", "agent/act", "agent/loop", "agent/pods"},
	"agent/status":              {"agent/signal", "agent/config", "agent/evict", "agent/execute", "agent/loop", "agent/pods", "agent/lanes", "agent/disks", "agent/kube", "agent/reclaim", "agent/oomscore", "agent/shutdown", "agent/selffence", "agent/selffence/driver", "agent/shutdown/driver", "agent/state", "agent/control", "agent/metrics", "agent/systemd", "agent/version", "kernel"},
	"agent/kube":                {"agent/signal", "agent/evict", "agent/selffence"},
	"agent/kube/evictions":      {"agent/evict", "agent/act", "agent/execute", "agent/kube", "agent/podfence", "agent/pods", "kernel"},
	"agent/kube/cluster":        {"agent/affinity", "agent/kube", "agent/evict", "agent/selffence", "agent/selffence/peers"},
	"agent/state":               {"agent/evict", "agent/signal", "agent/shutdown", "agent/kube"},
	"agent/control":             {"agent/signal", "agent/evict", "agent/shutdown"},
	"agent/metrics":             {"agent/signal", "agent/evict", "agent/shutdown"},
	"agent/systemd":             {},
	"agent/logflags":            {},
	"agent/controller/affinity": {"agent/affinity", "agent/affinity/settings"},
	"agent/controller/serving":  {},
	"agent/controller":          {"agent/affinity/extender", "agent/affinity/webhook", "agent/controller/affinity", "agent/controller/serving", "agent/fence", "agent/fence/kdump", "agent/fence/plan", "agent/fence/nodefence", "agent/fence/device", "agent/fence/device/clusterlabs", "agent/fence/execute", "agent/properties", "agent/selffence", "agent/version", "kernel"},
	"agent":                     {"agent/...", "kernel", "cri"},
	"cmd/evictd":                {"agent", "agent/version"},
	"cmd/evictd-controller":     {"agent/controller", "agent/controller/affinity", "agent/fence/execute", "agent/logflags", "agent/version"},
	"cmd/evictd-kube":           {"agent/kube", "agent/kube/cluster", "agent/logflags", "agent/selffence/peers", "agent/version"},
	"cmd/evictctl":              {"agent/affinity", "agent/affinity/settings", "agent/config", "agent/scenario", "agent/control", "agent/signal", "agent/evict", "agent/shutdown", "agent/version", "agent/fence", "agent/fence/plan", "kernel"},
	"deploy/image":              {},
	"tests":                     {"tests", "agent/...", "kernel", "cri", "cmd/...", "bpf"},

	"agent/fence/device/clusterlabs": {"agent/fence", "agent/fence/device", "agent/fence/plan"},
}

// forbidden lists packages that the daemon must not link, with the reason.
var forbidden = map[string]string{
	"k8s.io/client-go":               "only evictd-kube calls the API server",
	"sigs.k8s.io/controller-runtime": "only controllers need it",
	"k8s.io/cri-client":              "it imports OpenTelemetry and component-base",
	"k8s.io/kubernetes":              "the kubelet's packages are not a library",
	"github.com/spf13/cobra":         "the daemon's flags are the standard library's",
}

type listed struct {
	ImportPath string
	Imports    []string
	Deps       []string
}

func list(t *testing.T, pattern ...string) []listed {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Imports,Deps"}, pattern...)...)
	cmd.Dir = ".."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []listed
	for dec := json.NewDecoder(strings.NewReader(string(out))); dec.More(); {
		var p listed
		if err := dec.Decode(&p); err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	return all
}

// ruleDir returns the longest directory in importRules that includes a package, "" if none does.
func ruleDir(path string) string {
	best := ""
	for dir := range importRules {
		if (path == dir || strings.HasPrefix(path, dir+"/")) && len(dir) > len(best) {
			best = dir
		}
	}
	return best
}

func TestImportRules(t *testing.T) {
	for _, p := range list(t, "./...") {
		path := strings.TrimPrefix(p.ImportPath, module)
		from := ruleDir(path)
		if from == "" {
			t.Errorf("no import rule includes package %s", path)
			continue
		}
		for _, imported := range p.Imports {
			to, ours := strings.CutPrefix(imported, module)
			if !ours {
				continue
			}
			allowed := slices.ContainsFunc(importRules[from], func(dir string) bool {
				tree, all := strings.CutSuffix(dir, "/...")
				return dir == ruleDir(to) || all && (to == tree || strings.HasPrefix(to, tree+"/"))
			})
			if !allowed {
				t.Errorf("%s imports %s; %s may import %v", path, to, from, importRules[from])
			}
		}
	}
}

func TestDaemonLinksNothingForbidden(t *testing.T) {
	for _, p := range list(t, "./cmd/evictd") {
		for _, dep := range p.Deps {
			for prefix, why := range forbidden {
				if dep == prefix || strings.HasPrefix(dep, prefix+"/") {
					t.Errorf("the daemon links %s: %s", dep, why)
				}
			}
		}
	}
}

// TestControllerRuntimeIsTheControllers: only agent/controller and its subdirectories import controller-runtime, and of
// the commands only evictd-controller links it.
func TestControllerRuntimeIsTheControllers(t *testing.T) {
	const runtime = "sigs.k8s.io/controller-runtime"
	isRuntime := func(p string) bool { return p == runtime || strings.HasPrefix(p, runtime+"/") }
	for _, p := range list(t, "./...") {
		path := strings.TrimPrefix(p.ImportPath, module)
		if path != "agent/controller" && !strings.HasPrefix(path, "agent/controller/") && slices.ContainsFunc(p.Imports, isRuntime) {
			t.Errorf("%s imports controller-runtime; only agent/controller may", path)
		}
		linked := slices.ContainsFunc(p.Deps, isRuntime)
		if program := path == "cmd/evictd-controller"; strings.HasPrefix(path, "cmd/") && linked != program {
			t.Errorf("%s links controller-runtime: %t; want %t", path, linked, program)
		}
	}
}

// TestOneForker: of the packages of fencing only clusterlabs starts programs. It kills them with all of their children.
func TestOneForker(t *testing.T) {
	for _, p := range list(t, "./agent/fence/...", "./agent/controller", "./cmd/evictd-controller") {
		path := strings.TrimPrefix(p.ImportPath, module)
		if forks := slices.Contains(p.Imports, "os/exec"); forks != (path == "agent/fence/device/clusterlabs") {
			t.Errorf("%s imports os/exec: %t", path, forks)
		}
	}
}

// TestDaemonForksNothing: evictd must not fork under memory pressure, so none of its packages imports os/exec. Other
// modules may import it without calling it.
func TestDaemonForksNothing(t *testing.T) {
	for _, p := range list(t, "-deps", "./cmd/evictd") {
		if strings.HasPrefix(p.ImportPath, module) && slices.Contains(p.Imports, "os/exec") {
			t.Errorf("%s imports os/exec", p.ImportPath)
		}
	}
}

// TestToolLinksNoDaemon: evictctl must not be able to kill.
func TestToolLinksNoDaemon(t *testing.T) {
	for _, p := range list(t, "./cmd/evictctl") {
		for _, dep := range p.Deps {
			switch ruleDir(strings.TrimPrefix(dep, module)) {
			case "agent", "agent/act", "agent/memory", "agent/lanes", "agent/pods":
				if strings.HasPrefix(dep, module) {
					t.Errorf("evictctl links %s", dep)
				}
			}
		}
	}
}
