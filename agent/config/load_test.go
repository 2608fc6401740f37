package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/shutdown"
)

const kubeletHead = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"

// write puts text into a file of that name and returns its path.
func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLoadLayers(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	type wants struct {
		dryRun     bool
		dryOrigin  Origin
		thresholds string
		origins    map[string]Origin
	}
	for _, tt := range []struct {
		name           string
		agent, kubelet string // without their headers; "-" means no file
		flag           bool
		want           wants
	}{
		{"no file", "-", "-", false, wants{true, OriginDefault, "memory.available 100Mi 0s 0", map[string]Origin{
			"evictionHard.memory.available": OriginDefault,
		}}},
		{"no file, flag", "-", "-", true, wants{true, OriginFlag, "memory.available 100Mi 0s 0", nil}},
		{"agent file", "evictionHard: {memory.available: 1Gi}", "-", false, wants{false, OriginDefault, "memory.available 1Gi 0s 0", map[string]Origin{
			"evictionHard.memory.available":    OriginFile,
			"evictionHard":                     OriginFile,
			"maxVictims":                       OriginDefault,
			"evictionPressureTransitionPeriod": OriginDefault,
		}}},
		{"agent file, flag", "dryRun: false", "-", true, wants{true, OriginFlag, "memory.available 100Mi 0s 0", nil}},
		{"dry run in agent file", "dryRun: true", "-", false, wants{true, OriginFile, "memory.available 100Mi 0s 0", nil}},
		{"kubelet file only", "-", "evictionHard: {memory.available: 1Gi}", false, wants{true, OriginDefault, "memory.available 1Gi 0s 0", map[string]Origin{
			"evictionHard.memory.available": OriginKubelet,
		}}},
		{"both", "evictionHard: {memory.available: 1Gi}\nevictionPressureTransitionPeriod: 0s\nprotect: {names: [a/b]}",
			"evictionHard: {memory.available: 2Gi, nodefs.available: 5%}\nevictionPressureTransitionPeriod: 1m\nevictionMaxPodGracePeriod: 60", false,
			wants{false, OriginDefault, "memory.available 1Gi 0s 0", map[string]Origin{
				"evictionHard.memory.available":    OriginFile,
				"evictionMaxPodGracePeriod":        OriginKubelet,
				"evictionPressureTransitionPeriod": OriginDefault, // 0 means the default in either file
				"protect.names[0]":                 OriginFile,
				"protect.daemonSets":               OriginDefault,
			}}},
		{"null overrides nothing", "evictionHard: null", "evictionHard: {memory.available: 2Gi}", false, wants{false, OriginDefault, "memory.available 2Gi 0s 0", nil}},
		{"empty overrides", "evictionHard: {}", "evictionHard: {memory.available: 2Gi}", false, wants{false, OriginDefault, "", nil}},
		{"merged defaults", "mergeDefaultEvictionSettings: true", "evictionHard: {memory.available: 2Gi, imagefs.available: 0%, imagefs.inodesFree: 0%, nodefs.inodesFree: 0%}", false,
			wants{false, OriginDefault, "memory.available 2Gi 0s 0\nnodefs.available 10% 0s 0", map[string]Origin{
				"evictionHard.memory.available": OriginKubelet,
				"evictionHard.nodefs.available": OriginDefault,
				"mergeDefaultEvictionSettings":  OriginFile,
			}}},
		{"grace from one, threshold from the other", "evictionHard: {}\nevictionSoft: {memory.available: 1Gi}", "evictionSoftGracePeriod: {memory.available: 1m}", false,
			wants{false, OriginDefault, "memory.available 1Gi 1m0s 0", map[string]Origin{
				"evictionSoft.memory.available": OriginFile, "evictionSoftGracePeriod.memory.available": OriginKubelet,
			}}},
		{"grace of 0 from the kubelet's file", "evictionHard: {}\nevictionSoft: {memory.available: 1Gi}", "evictionSoftGracePeriod: {memory.available: 0s}", false,
			wants{false, OriginDefault, "memory.available 1Gi 0s 0", map[string]Origin{"evictionHard.memory.available": OriginFile}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := Options{Path: missing, DryRun: tt.flag}
			if tt.agent != "-" {
				o.Path = write(t, "agent.yaml", head+tt.agent)
			}
			if tt.kubelet != "-" {
				o.KubeletPath = write(t, "kubelet.yaml", kubeletHead+tt.kubelet)
			}
			c, err := Load(o)
			if err != nil {
				t.Fatal(err)
			}
			if c.DryRun != tt.want.dryRun || c.Origin("dryRun") != tt.want.dryOrigin {
				t.Errorf("dryRun = %t from %s; want %t from %s", c.DryRun, c.Origin("dryRun"), tt.want.dryRun, tt.want.dryOrigin)
			}
			if got := policyText(c); !strings.HasPrefix(got, tt.want.thresholds) || tt.want.thresholds == "" && got != "" {
				t.Errorf("thresholds = %s; want %s", got, tt.want.thresholds)
			}
			for path, want := range tt.want.origins {
				if got := c.Origin(path); got != want {
					t.Errorf("Origin(%s) = %s; want %s", path, got, want)
				}
			}
			again, err := parse(Options{Path: "dump.yaml"}, nil, []byte(dump(t, c)))
			if err != nil {
				t.Fatalf("the dump does not parse: %v", err)
			}
			same(t, "dump", c, again)
		})
	}
}

func TestLoadErrors(t *testing.T) {
	dir := t.TempDir()
	missing := filepath.Join(dir, "missing")
	for _, tt := range []struct {
		name string
		o    Options
		want string
	}{
		{"missing", Options{Path: missing, PathGiven: true}, "read configuration: open " + missing + ": no such file or directory"},
		{"directory", Options{Path: dir}, "read configuration: read " + dir + ": is a directory"},
		{"missing kubelet's", Options{Path: missing, KubeletPath: missing}, "read kubelet configuration: open " + missing + ": no such file or directory"},
	} {
		if _, err := Load(tt.o); err == nil || err.Error() != tt.want {
			t.Errorf("%s: Load = %v; want %s", tt.name, err, tt.want)
		}
	}
	kubelet, agent := write(t, "k.yaml", kubeletHead+"evictionHard: 5\nevictionSoft: {memory.available: 1Gi}"), write(t, "a.yaml", head+"maxVictims: 0")
	_, err := Load(Options{Path: agent, KubeletPath: kubelet})
	want := kubelet + ":3: evictionHard: is the number 5; want a map\n" +
		kubelet + ":4: evictionSoft.memory.available: has no grace period; give it one above 0 in evictionSoftGracePeriod.memory.available, or make it a threshold of evictionHard\n" +
		agent + ":3: maxVictims: is 0; want at least 1"
	if err == nil || err.Error() != want {
		t.Errorf("Load = %v; want %s", err, want)
	}
	_, err = Load(Options{Path: write(t, "a.yaml", "{"), KubeletPath: write(t, "k.yaml", "{")})
	if err == nil || strings.Count(err.Error(), "\n") != 1 {
		t.Errorf("Load of two invalid files = %v; want one problem for each", err)
	}
}

func TestKubeletFile(t *testing.T) {
	for _, tt := range []struct{ name, text, thresholds, notices string }{
		{"fields that only the kubelet uses", "address: 0.0.0.0\nauthentication: {anonymous: {enabled: false}}\nkernelMemcgNotification: yes\nevictionHard: {}\nport: 5", "", ""},
		{"no field at all", "", "memory.available 100Mi 0s 0\n", ""},
		{"unknown field", "evictionHard: {}\nevictionHrad: {}", "", "k:4: evictionHrad: is not a field here and is ignored; did you mean evictionHard?"},
		{"duplicate", "evictionHard: {memory.available: 1Gi}\nevictionHard: {pid.available: 1k}", "pid.available 1k 0s 0\n", "k:4: evictionHard: is given twice; the one in line 3 is ignored"},
		{"odd percentages", "evictionHard: {memory.available: 5%%, nodefs.available: NaN%, imagefs.available: 0.0%, pid.available: 0%%}", "memory.available 5% 0s 0\nimagefs.available 0.0% 0s 0\n", `k:3: evictionHard.memory.available: "5%%" is read as 5%, as by the kubelet
k:3: evictionHard.nodefs.available: "NaN%": in the kubelet this threshold is never met; it is ignored
k:3: evictionHard.pid.available: "0%%" is read as 0%, as by the kubelet`},
		{"odd reclaims", "evictionHard: {memory.available: 1Gi, pid.available: '5', nodefs.available: '1'}\nevictionMinimumReclaim: {memory.available: Inf%, nodefs.available: 10%%, pid.available: '1e20'}", "memory.available 1Gi 0s 0\nnodefs.available 1 0s 10%\npid.available 5 0s 9223372036854775807\n", `k:4: evictionMinimumReclaim.memory.available: "Inf%": in the kubelet this threshold is never met; it is ignored
k:4: evictionMinimumReclaim.nodefs.available: "10%%" is read as 10%, as by the kubelet
k:4: evictionMinimumReclaim.pid.available: "1e20" is read as 9223372036854775807, the largest quantity that evictd supports`},
		{"soft with grace 0 is hard", "evictionHard: {}\nevictionSoft: {memory.available: 1Gi, nodefs.available: 5%}\nevictionSoftGracePeriod: {memory.available: 0s, nodefs.available: 1s}\nevictionMinimumReclaim: {memory.available: '5'}", "memory.available 1Gi 0s 5\nnodefs.available 5% 1s 0\n", `k:5: evictionSoftGracePeriod.memory.available: is 0, which makes the threshold a hard one, as in the kubelet`},
		{"soft with grace 0 above hard", "evictionHard: {memory.available: 1Gi}\nevictionSoft: {memory.available: 2Gi}\nevictionSoftGracePeriod: {memory.available: 0s}", "memory.available 2Gi 0s 0\n", `k:5: evictionSoftGracePeriod.memory.available: is 0, which makes the threshold a hard one, as in the kubelet; of it and that of evictionHard, 1Gi, the one that is reached first counts`},
		{"soft with grace 0 below hard", "evictionHard: {memory.available: 20%}\nevictionSoft: {memory.available: 10%}\nevictionSoftGracePeriod: {memory.available: 0s}", "memory.available 20% 0s 0\n", `k:5: evictionSoftGracePeriod.memory.available: is 0, which makes the threshold a hard one, as in the kubelet; of it and that of evictionHard, 20%, the one that is reached first counts`},
		{"soft with grace 0 beside a percentage", "evictionHard: {memory.available: 20%}\nevictionSoft: {memory.available: 1Mi}\nevictionSoftGracePeriod: {memory.available: 0s}", "memory.available 20% or 1Mi 0s 0\n", `k:5: evictionSoftGracePeriod.memory.available: is 0, which makes the threshold a hard one, as in the kubelet; of it and that of evictionHard, 20%, the one that is reached first counts`},
		{"soft percentage with grace 0", "evictionHard: {memory.available: 1Gi}\nevictionSoft: {memory.available: 5%}\nevictionSoftGracePeriod: {memory.available: 0s}", "memory.available 5% or 1Gi 0s 0\n", `k:5: evictionSoftGracePeriod.memory.available: is 0, which makes the threshold a hard one, as in the kubelet; of it and that of evictionHard, 1Gi, the one that is reached first counts`},
		{"containerfs", "evictionHard: {containerfs.available: 5%}", "", `k:3: evictionHard.containerfs.available: is ignored, as by the kubelet: containerfs.available uses the thresholds of the filesystem with the writable layers`},
		{"negative periods", "evictionHard: {}\nevictionPressureTransitionPeriod: -1m\nevictionMaxPodGracePeriod: -1", "", `k:4: evictionPressureTransitionPeriod: -1m0s is negative; conditions end as soon as their threshold is no longer met
k:5: evictionMaxPodGracePeriod: -1 is negative; pods get their own grace period, as the kubelet documents; the kubelet itself gives them one second`},
		{"numbers as JSON would have them", "evictionHard: {}\nevictionMaxPodGracePeriod: 60.0\nimageGCHighThresholdPercent: 0x5a\nsystemReserved: {memory: '1e999', cpu: '500m'}", "", `k:6: systemReserved.memory: "1e999" is not a quantity of at most 64 characters and two digits of exponent; it is ignored`},
		{"shutdown groups", "evictionHard: {}\nshutdownGracePeriodByPodPriority: [{priority: 0, shutdownGracePeriodSeconds: -1}, {priority: 0, shutdownGracePeriodSeconds: 5, x: y}]", "", `k:4: shutdownGracePeriodByPodPriority[1].x: is not a field here and is ignored
k:4: shutdownGracePeriodByPodPriority[0].shutdownGracePeriodSeconds: -1 is negative and counts as 0
k:4: shutdownGracePeriodByPodPriority[1].priority: 0 is listed twice; as in the kubelet the first applies to pods of exactly that priority, the last to those above`},
		{"the kubelet's cgroups", "evictionHard: {}\nenforceNodeAllocatable: [pods, kube-reserved, system-reserved-compressible]\nkubeReservedCgroup: /kube\nsystemReservedCgroup: /system\ncgroupsPerQOS: true", "", ""},
		{"anchors", "evictionHard: &e {memory.available: 1Gi}\nevictionMinimumReclaim:\n  <<: *e", "memory.available 1Gi 0s 1Gi\n", ""},
		{"several documents", "evictionHard: {}\n---\nmore: stuff", "", "k: documents after the first are ignored"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := base()
			if err := c.readKubelet("k", []byte(kubeletHead+tt.text)); err != nil {
				t.Fatal(err)
			}
			c, err := c.finish()
			if err != nil {
				t.Fatal(err)
			}
			var own strings.Builder // without copies
			for line := range strings.Lines(policyText(c)) {
				if !strings.HasSuffix(line, " copy\n") {
					own.WriteString(line)
				}
			}
			if got := own.String(); got != tt.thresholds && !(tt.name == "no field at all" && strings.HasPrefix(got, tt.thresholds)) {
				t.Errorf("thresholds = %q; want %q", got, tt.thresholds)
			}
			got := notices(c)
			if diff := cmp.Diff(tt.notices, got); diff != "" {
				t.Errorf("notices (-want +got):\n%s", diff)
			}
			again, err := parse(Options{Path: "dump.yaml"}, nil, []byte(dump(t, c)))
			if err != nil {
				t.Fatalf("the dump does not parse: %v", err)
			}
			same(t, "dump", c, again)
		})
	}
}

// TestKubeletRefuses loads files with which a kubelet does not start.
func TestKubeletRefuses(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{kubeletHead + "evictionHard: {memory.available: lots}", `k:3: evictionHard.memory.available: "lots" is not a quantity; ` + wantThreshold},
		{kubeletHead + "evictionHard: {memory.available: '1e-1000'}", `k:3: evictionHard.memory.available: "1e-1000" is not a quantity of at most 64 characters and two digits of exponent; ` + wantThreshold},
		{kubeletHead + "evictionHard: {memory.available: e1000000009}", `k:3: evictionHard.memory.available: "e1000000009" is not a quantity of at most 64 characters and two digits of exponent; ` + wantThreshold},
		{kubeletHead + "evictionHard: {memory.available: 5% or 1Gi}", `k:3: evictionHard.memory.available: "5% or 1Gi" is not a quantity; ` + wantThreshold},
		{kubeletHead + "evictionHard: {memory.available: 200%%}", `k:3: evictionHard.memory.available: "200%" is more than 100%; ` + wantThreshold},
		{kubeletHead + "evictionHard: {memory.available: null}", "k:3: evictionHard.memory.available: is null; give it a value, or leave it out"},
		{kubeletHead + "evictionSoft: {memory.available: 1Gi}", "k:3: evictionSoft.memory.available: has no grace period; give it one above 0 in evictionSoftGracePeriod.memory.available, or make it a threshold of evictionHard"},
		{kubeletHead + "imageGCHighThresholdPercent: 80", "k:3: imageGCHighThresholdPercent: imageGCLowThresholdPercent is 80 and imageGCHighThresholdPercent is 80; want the first below the second"},
		{kubeletHead + "evictionHard: {pid.available: 5}", "k:3: evictionHard.pid.available: is the number 5; want a string: put it in quotes"},
		{kubeletHead + "evictionMinimumReclaim: {memory.available: 0.5}\nkubeReserved: {cpu: 1}", "k:3: evictionMinimumReclaim.memory.available: is the number 0.5; want a string: put it in quotes\n" +
			"k:4: kubeReserved.cpu: is the number 1; want a string: put it in quotes"},
		{kubeletHead + "systemReserved: {memory: lots, cpu: '-1', pid: 1e5x}", `k:3: systemReserved.cpu: "-1" is below 0; want a quantity of at least 0 such as 500Mi
k:3: systemReserved.memory: "lots" is not a quantity; want a quantity of at least 0 such as 500Mi
k:3: systemReserved.pid: "1e5x" is not a quantity; want a quantity of at least 0 such as 500Mi`},
		{kubeletHead + "enforceNodeAllocatable: [pods, pods]", "k:3: enforceNodeAllocatable[1]: pods is listed twice"},
		{kubeletHead + "enforceNodeAllocatable: [pods, kube-reserved, system-reserved-compressible]", "k:3: enforceNodeAllocatable[1]: kube-reserved needs kubeReservedCgroup\n" +
			"k:3: enforceNodeAllocatable[2]: system-reserved-compressible needs systemReservedCgroup"},
		{kubeletHead + "enforceNodeAllocatable: [kube-reserved-compressible, kube-reserved]\nkubeReservedCgroup: /kube", "k:3: enforceNodeAllocatable[0]: kube-reserved-compressible excludes kube-reserved; give one of them"},
		{kubeletHead + "enforceNodeAllocatable: [pods]\ncgroupsPerQOS: false", "k:3: enforceNodeAllocatable[0]: pods needs cgroupsPerQOS: true"},
		{kubeletHead + "\tx", "k:3: this line is indented with a tab; YAML is indented with spaces"},
		{head, "k:2: kind: is AgentConfiguration; want KubeletConfiguration (evictd reads its own with --config)"},
		{"evictionHard: {}", "k:1: apiVersion: is missing; want kubelet.config.k8s.io/v1beta1\nk:1: kind: is missing; want KubeletConfiguration"},
	} {
		c := base()
		err := c.readKubelet("k", []byte(tt.text))
		if err == nil {
			_, err = c.finish()
		}
		if err == nil || err.Error() != tt.want {
			t.Errorf("%q: %v; want %s", tt.text, err, tt.want)
		}
	}
}

// TestShutdownOverride sets the two ways to configure a shutdown in different
// files.
func TestShutdownOverride(t *testing.T) {
	kubelet := write(t, "k.yaml", kubeletHead+"shutdownGracePeriod: 30s\nshutdownGracePeriodCriticalPods: 10s")
	agent := write(t, "a.yaml", head+"shutdownGracePeriodByPodPriority: [{priority: 0, shutdownGracePeriodSeconds: 5}]")
	c, err := Load(Options{Path: agent, KubeletPath: kubelet})
	if err != nil {
		t.Fatal(err)
	}
	if c.ShutdownGracePeriod != 0 || c.ShutdownGracePeriodCriticalPods != 0 || len(c.ShutdownGracePeriodByPodPriority) != 1 {
		t.Errorf("shutdown = %v, %v, %v; want only the groups of the AgentConfiguration", c.ShutdownGracePeriod, c.ShutdownGracePeriodCriticalPods, c.ShutdownGracePeriodByPodPriority)
	}
	kubelet = write(t, "k.yaml", kubeletHead+"shutdownGracePeriodByPodPriority: [{priority: 0, shutdownGracePeriodSeconds: 5}]")
	agent = write(t, "a.yaml", head+"shutdownGracePeriod: 30s")
	c, err = Load(Options{Path: agent, KubeletPath: kubelet})
	if err != nil {
		t.Fatal(err)
	}
	if c.ShutdownGracePeriod == 0 || len(c.ShutdownGracePeriodByPodPriority) != 0 {
		t.Errorf("shutdown = %v, %v; want only the period of the AgentConfiguration", c.ShutdownGracePeriod, c.ShutdownGracePeriodByPodPriority)
	}
	if got := notices(c); !strings.Contains(got, "shutdownGracePeriodByPodPriority: is overridden by shutdownGracePeriod") {
		t.Errorf("notices = %s", got)
	}
}

// TestKubeUser: a user ID that something else may have gets a notice.
func TestKubeUser(t *testing.T) {
	for id, want := range map[int]string{
		61119: "", 61183: "", 61184: "DynamicUser=", 64319: "DynamicUser=", 65519: "DynamicUser=", 65520: "",
		65532: "many containers", 65533: "", 65534: "many containers", 999: "",
	} {
		c, err := Load(Options{Path: write(t, "a.yaml", fmt.Sprintf("%skube: {uid: %d}", head, id))})
		if err != nil {
			t.Fatal(err)
		}
		if got := notices(c); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("kube.uid %d: notices = %q; want %q in it, or none", id, got, want)
		}
	}
}

func TestShutdownSchedule(t *testing.T) {
	for _, tt := range []struct {
		text string
		want shutdown.Schedule
	}{
		{"", nil},
		{"shutdownGracePeriod: 30s\nshutdownGracePeriodCriticalPods: 10s\n", shutdown.Schedule{{Priority: 0, Time: 20 * time.Second}, {Priority: 2_000_000_000, Time: 10 * time.Second}}},
		{"shutdownGracePeriod: 30s\n", shutdown.Schedule{{Priority: 0, Time: 30 * time.Second}, {Priority: 2_000_000_000, Time: 0}}},
		{`shutdownGracePeriodByPodPriority:
- {priority: 100000, shutdownGracePeriodSeconds: 10}
- {priority: 10000, shutdownGracePeriodSeconds: 180}
- {priority: 1000, shutdownGracePeriodSeconds: 120}
- {priority: 0, shutdownGracePeriodSeconds: 60}
`, shutdown.Schedule{{Priority: 0, Time: time.Minute}, {Priority: 1000, Time: 2 * time.Minute}, {Priority: 10000, Time: 3 * time.Minute}, {Priority: 100000, Time: 10 * time.Second}}},
		{"shutdownGracePeriodByPodPriority: [{priority: 1, shutdownGracePeriodSeconds: 9223372036854775807}]\n", shutdown.Schedule{{Priority: 1, Time: 9223372036 * time.Second}}},
	} {
		if diff := cmp.Diff(tt.want, mustParse(t, tt.text).ShutdownSchedule()); diff != "" {
			t.Errorf("ShutdownSchedule() of %q differs (-want +got):\n%s", tt.text, diff)
		}
	}
}

// A priority given twice stops no kubelet: pods of just that priority are in the
// first of its groups, those above it in the last.
func TestKubeletPriorityTwice(t *testing.T) {
	for _, tt := range []struct{ groups, want string }{
		{"{priority: 0, shutdownGracePeriodSeconds: 5}, {priority: 0, shutdownGracePeriodSeconds: 9}", "0:5 1:9"},
		{"{priority: 5, shutdownGracePeriodSeconds: 1}, {priority: 0, shutdownGracePeriodSeconds: 5}, {priority: 0, shutdownGracePeriodSeconds: 7}, {priority: 0, shutdownGracePeriodSeconds: 9}", "0:5 1:9 5:1"},
		{"{priority: 0, shutdownGracePeriodSeconds: 5}, {priority: 0, shutdownGracePeriodSeconds: 9}, {priority: 1, shutdownGracePeriodSeconds: 3}", "0:5 1:3"},
		{"{priority: 2147483647, shutdownGracePeriodSeconds: 5}, {priority: 2147483647, shutdownGracePeriodSeconds: 9}", "2147483647:5"},
	} {
		c := base()
		if err := c.readKubelet("k", []byte(kubeletHead+"shutdownGracePeriodByPodPriority: ["+tt.groups+"]")); err != nil {
			t.Fatal(err)
		}
		c, err := c.finish()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, g := range c.ShutdownSchedule() {
			got = append(got, fmt.Sprintf("%d:%d", g.Priority, g.Time/time.Second))
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("[%s]: schedule = %q; want %s", tt.groups, got, tt.want)
		}
	}
}
