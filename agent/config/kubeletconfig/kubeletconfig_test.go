package kubeletconfig

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
)

// load returns the configuration of an AgentConfiguration with these fields.
func load(t *testing.T, fields string) *config.Config {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte("apiVersion: evictd.io/v1alpha1\nkind: AgentConfiguration\n"+fields), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(config.Options{Path: path, PathGiven: true})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// capacities are those of a node with 16 GiB, disks of 100 GiB and a million inodes, and 32768 PIDs.
func capacities() (all signal.Observations) {
	for s := range all {
		all[s] = signal.Observation{Status: signal.Observed, Capacity: 100 << 30}
	}
	all[signal.MemoryAvailable].Capacity = 16 << 30
	all[signal.NodeFsInodesFree].Capacity, all[signal.ImageFsInodesFree].Capacity = 1e6, 1e6
	all[signal.PIDAvailable].Capacity = 32768
	return all
}

// The kubelet's thresholds are below evictd's, above zero, and listed for all signals.
func TestHard(t *testing.T) {
	defaults := map[string]string{"memory.available": "100Mi", "nodefs.available": "10%", "nodefs.inodesFree": "5%", "imagefs.available": "15%", "imagefs.inodesFree": "5%"}
	with := func(changes map[string]string) map[string]string {
		all := map[string]string{}
		for k, v := range defaults {
			all[k] = v
		}
		for k, v := range changes {
			all[k] = v
		}
		return all
	}
	for fields, want := range map[string]map[string]string{
		"":                                      {"memory.available": "75Mi", "nodefs.available": "5%", "nodefs.inodesFree": "2.5%", "imagefs.available": "7.5%", "imagefs.inodesFree": "2.5%"},
		"evictionHard: {memory.available: 1Gi}": with(map[string]string{"memory.available": "512Mi"}),
		"evictionHard: {memory.available: 150Mi}":                                     with(map[string]string{"memory.available": "100Mi"}),
		"evictionHard: {memory.available: 120Mi}":                                     with(map[string]string{"memory.available": "90Mi"}),
		"evictionHard: {memory.available: 5%}":                                        with(map[string]string{"memory.available": "2.5%"}),
		"evictionHard: {memory.available: 5% or 1Gi}":                                 with(map[string]string{"memory.available": "2.5%"}),
		"evictionHard: {memory.available: 1}":                                         with(map[string]string{"memory.available": "1"}),
		"evictionHard: {pid.available: 1001}":                                         with(map[string]string{"pid.available": "500"}),
		"evictionHard: {nodefs.available: 10Gi, nodefs.inodesFree: 3}":                with(map[string]string{"nodefs.available": "5Gi", "nodefs.inodesFree": "1"}),
		"evictionHard: {nodefs.available: 0.1%}":                                      with(map[string]string{"nodefs.available": "0.05%"}),
		"evictionHard: {nodefs.available: 0.0%}":                                      defaults,
		"evictionHard: {allocatableMemory.available: 1Gi, containerfs.available: 1%}": defaults,
		"evictionHard: {nodefs.available: 0%}":                                        defaults,
		"evictionHard: {memory.available: 1Gi}\nevictionSoft: {nodefs.available: 20%, memory.available: 2Gi}\nevictionSoftGracePeriod: {nodefs.available: 1m, memory.available: 1m}": with(map[string]string{"memory.available": "512Mi", "nodefs.available": "10%"}),
	} {
		c := load(t, fields)
		f, got := For(c), map[string]string{}
		observed := capacities()
		for _, h := range f.Hard {
			got[h.Signal.String()] = h.Value
			v, err := signal.ParseThreshold(h.Value)
			if err != nil {
				t.Errorf("%s: %s<%s: %v", fields, h.Signal, h.Value, err)
			}
			if own, ok := lowest(c, h.Signal); ok && evict.NotBelow(v, own, &observed[h.Signal]) && h.Value != "1" {
				t.Errorf("%s: %s<%s is not below %s", fields, h.Signal, h.Value, own)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: thresholds (-want +got):\n%s", fields, diff)
		}
	}
}

// Both formats are the same KubeletConfiguration, which evictd's own reader accepts without a notice
// about a field that it does not know, and which fits.
func TestFormats(t *testing.T) {
	for _, fields := range []string{
		"", "evictionHard: {memory.available: 1Gi, pid.available: 1000}", "shutdownGracePeriod: 30s\nshutdownGracePeriodCriticalPods: 10s",
		"shutdownGracePeriod: 30s\nshutdown: {besideKubelet: own}", "shutdownGracePeriod: 30s\nkube: {uid: 4711}",
		"dryRun: true\nshutdownGracePeriod: 30s\nshutdown: {besideKubelet: own}", "dryRun: true\nshutdownGracePeriod: 30s\nkube: {uid: 4711}",
		"shutdownGracePeriod: 30s\nkube: {uid: 4711}\nshutdown: {besideKubelet: kubelet}", "shutdownGracePeriodByPodPriority: [{priority: 0, shutdownGracePeriodSeconds: 30}, {priority: 7, shutdownGracePeriodSeconds: 5}]",
	} {
		c := load(t, fields)
		f := For(c)
		asJSON, err := json.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		var dumps []string
		for _, content := range [][]byte{f.YAML(), asJSON} {
			path := filepath.Join(t.TempDir(), "kubelet.yaml")
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}
			kubelet, err := config.Load(config.Options{Path: filepath.Join(t.TempDir(), "none"), KubeletPath: path})
			if err != nil {
				t.Errorf("%s: %v\n%s", fields, err, content)
				continue
			}
			if len(kubelet.Notices) > 0 {
				t.Errorf("%s: notices %v\n%s", fields, kubelet.Notices, content)
			}
			dump, err := kubelet.Dump()
			if err != nil {
				t.Fatal(err)
			}
			dumps = append(dumps, string(dump))
			observed := capacities()
			running := Running{
				EvictionHard: kubelet.EvictionHard, EvictionSoft: kubelet.EvictionSoft, EvictionMinimumReclaim: kubelet.EvictionMinimumReclaim,
				ShutsDown: kubelet.ShutdownSchedule().Total() > 0,
			}
			if got := Compare(c, &running, &observed, Shutdown{Logind: true}); len(got) > 0 {
				t.Errorf("%s: differences of the fragment: %+v; want none", fields, got)
			}
			evictd := !strings.Contains(fields, "dryRun") && (strings.Contains(fields, ": own}") || strings.HasSuffix(fields, "4711}"))
			if want := strings.Contains(fields, "shutdown") && !evictd; running.ShutsDown != want {
				t.Errorf("%s: the kubelet shuts down: %t; want %t", fields, running.ShutsDown, want)
			}
			if text := string(f.YAML()); strings.Contains(text, "\n# evictd stops the pods") != evictd || strings.Contains(text, "a pod does not: then set it here.\nshutdownGracePeriod: \"0s\"\n") != evictd {
				t.Errorf("%s: fragment says that evictd stops the pods: %t; want %t\n%s", fields, !evictd, evictd, text)
			}
		}
		if len(dumps) == 2 && dumps[0] != dumps[1] {
			t.Errorf("%s: YAML and JSON differ:\n%s", fields, cmp.Diff(dumps[0], dumps[1]))
		}
	}
}

// Each difference has a consequence and a remedy, and what fits is none.
func TestCompare(t *testing.T) {
	good := func() Running {
		return Running{EvictionHard: map[string]string{
			"memory.available": "75Mi", "nodefs.available": "5%", "nodefs.inodesFree": "2%", "imagefs.available": "1Gi", "imagefs.inodesFree": "1%", "pid.available": "1",
		}}
	}
	for _, tt := range []struct {
		name, fields string
		change       func(*Running)
		want         []string // fields
		memory       bool
	}{
		{"fits", "", func(*Running) {}, nil, false},
		{"the kubelet's defaults", "", func(r *Running) {
			r.EvictionHard = map[string]string{"memory.available": "100Mi", "nodefs.available": "10%", "nodefs.inodesFree": "5%", "imagefs.available": "15%", "imagefs.inodesFree": "5%"}
		}, []string{"evictionHard.memory.available", "evictionHard.nodefs.available", "evictionHard.nodefs.inodesFree", "evictionHard.imagefs.available", "evictionHard.imagefs.inodesFree"}, true},
		{"none", "evictionHard: {memory.available: 1Gi}", func(r *Running) { r.EvictionHard = map[string]string{"nodefs.available": "0%"} },
			[]string{"evictionHard.memory.available", "evictionHard.nodefs.available", "evictionHard.nodefs.inodesFree", "evictionHard.imagefs.available", "evictionHard.imagefs.inodesFree"}, false},
		{"only the kubelet evicts", "evictionHard: {memory.available: 1Gi}", func(*Running) {}, nil, false},
		{"no PIDs", "evictionHard: {memory.available: 1Gi, pid.available: 100}", func(r *Running) { delete(r.EvictionHard, "pid.available") }, []string{"evictionHard.pid.available"}, false},
		{"other unit", "", func(r *Running) { r.EvictionHard["nodefs.available"] = "11Gi" }, []string{"evictionHard.nodefs.available"}, false},
		{"not understood", "", func(r *Running) { r.EvictionHard["nodefs.available"] = "5%%" }, []string{"evictionHard.nodefs.available"}, false},
		{"minimum reclaim above", "", func(r *Running) { r.EvictionMinimumReclaim = map[string]string{"nodefs.available": "6Gi"} }, []string{"evictionMinimumReclaim.nodefs.available"}, false},
		{"minimum reclaim below", "", func(r *Running) { r.EvictionMinimumReclaim = map[string]string{"nodefs.available": "4Gi"} }, nil, false},
		{"soft", "", func(r *Running) { r.EvictionSoft = map[string]string{"memory.available": "1Gi", "x": "1"} }, []string{"evictionSoft.memory.available"}, false},
		{"both shut down", "shutdownGracePeriod: 30s\nshutdown: {besideKubelet: own}", func(r *Running) { r.ShutsDown = true }, []string{"shutdownGracePeriod"}, false},
		{"neither shuts down", "shutdownGracePeriod: 30s\nshutdown: {besideKubelet: kubelet}\nkube: {uid: 4711}", func(*Running) {}, []string{"shutdownGracePeriod"}, false},
		{"neither shuts down, without reports", "shutdownGracePeriod: 30s", func(*Running) {}, []string{"shutdownGracePeriod"}, false},
		{"neither shuts down, enforcing without reports", "shutdownGracePeriod: 30s\nkubelet: override\nkube: {uid: 4711}", func(*Running) {}, []string{"shutdownGracePeriod"}, false},
		{"evictd shuts down, as the kubelet does not", "shutdownGracePeriod: 30s\nkube: {uid: 4711}", func(*Running) {}, nil, false},
		{"the kubelet shuts down, else evictd would", "shutdownGracePeriod: 30s\nkube: {uid: 4711}", func(r *Running) { r.ShutsDown = true }, nil, false},
		{"no shutdown", "kube: {uid: 4711}", func(*Running) {}, nil, false},
		{"the kubelet shuts down", "shutdownGracePeriod: 30s", func(r *Running) { r.ShutsDown = true }, nil, false},
		{"cgroup root", "cgroupRoot: /a", func(r *Running) { r.CgroupRoot = "a/" }, nil, false},
		{"other cgroup root", "", func(r *Running) { r.CgroupRoot = "/a" }, []string{"cgroupRoot"}, false},
		{"no cgroups of pods", "", func(r *Running) { r.CgroupsPerQOS = new(false) }, []string{"cgroupsPerQOS"}, false},
	} {
		running, observed := good(), capacities()
		tt.change(&running)
		var fields []string
		memory := false
		for _, d := range Compare(load(t, tt.fields), &running, &observed, Shutdown{Logind: true}) {
			fields = append(fields, d.Field)
			memory = memory || d.MemoryOverlap
			if d.Consequence == "" || d.Remedy == "" {
				t.Errorf("%s: %+v; want a consequence and a remedy", tt.name, d)
			}
		}
		if !slices.Equal(fields, tt.want) || memory != tt.memory {
			t.Errorf("%s: differences %q, of memory %t; want %q, %t", tt.name, fields, memory, tt.want, tt.memory)
		}
	}
}

// Where evictd is configured to stop the pods in a shutdown and does not do so, a kubelet that does not
// either is a difference, and one that does is none.
func TestCompareShutdown(t *testing.T) {
	const auto, own = "shutdownGracePeriod: 30s\nkube: {uid: 4711}", "shutdownGracePeriod: 30s\nshutdown: {besideKubelet: own}"
	const unit, configure = "or run evictd as a systemd unit", "set kubelet: auto and kube.uid"
	for _, tt := range []struct {
		name, fields        string
		shutdown            Shutdown
		kubelet             bool
		consequence, remedy string // parts; "" for no difference
	}{
		{"evictd", auto, Shutdown{Logind: true}, false, "", ""},
		{"no logind", auto, Shutdown{}, false, "does not reach logind", unit},
		{"no logind, own", own, Shutdown{}, false, "does not reach logind", unit},
		{"no logind, the kubelet", auto, Shutdown{}, true, "", ""},
		{"no logind, own, the kubelet", own, Shutdown{}, true, "", ""},
		{"own, the kubelet", own, Shutdown{Logind: true}, true, "evictd is configured to do it", "to 0s"},
		{"skipped", auto, Shutdown{SkipReasons: []string{"why"}, Logind: true}, false, "evictd does not either: why", "set the kubelet's shutdownGracePeriod"},
		{"dry run", "dryRun: true\n" + auto, Shutdown{SkipReasons: []string{"dryRun"}, Logind: true}, false, "evictd does not either: dryRun", "set the kubelet's shutdownGracePeriod"},
		{"dry run, own, the kubelet", "dryRun: true\n" + own, Shutdown{SkipReasons: []string{"dryRun"}, Logind: true}, true, "", ""},
		{"not configured, no logind", "shutdownGracePeriod: 30s", Shutdown{}, false, "evictd leaves that to the kubelet", configure},
		{"no schedule, no logind", "kube: {uid: 4711}", Shutdown{}, false, "", ""},
	} {
		observed := capacities()
		var got Difference
		for _, d := range Compare(load(t, tt.fields), &Running{ShutsDown: tt.kubelet}, &observed, tt.shutdown) {
			if d.Field == "shutdownGracePeriod" {
				got = d
			}
		}
		if (got.Field != "") != (tt.remedy != "") || !strings.Contains(got.Consequence, tt.consequence) || !strings.Contains(got.Remedy, tt.remedy) {
			t.Errorf("%s: %+v; want the consequence %q and the remedy %q", tt.name, got, tt.consequence, tt.remedy)
		}
	}
}

// Where evictd has the thresholds of the kubelet's file, lower ones there would lower its own.
func TestCompareOwnFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubelet.yaml")
	content := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nevictionHard: {nodefs.available: 10%}\n"
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(config.Options{Path: filepath.Join(t.TempDir(), "none"), KubeletPath: path})
	if err != nil {
		t.Fatal(err)
	}
	observed := capacities()
	for _, d := range Compare(c, &Running{EvictionHard: map[string]string{"nodefs.available": "10%"}}, &observed, Shutdown{}) {
		if own := d.Field == "evictionHard.nodefs.available"; strings.HasPrefix(d.Remedy, "set evictionHard in evictd's configuration") != own {
			t.Errorf("%+v; want to set evictd's first: %t", d, own)
		}
	}
}
