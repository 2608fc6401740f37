package config

import (
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/evictd/evictd/agent/config/strict"
	"github.com/evictd/evictd/agent/evict"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// golden compares text with a file under testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	name = filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

const head = "apiVersion: evictd.io/v1alpha1\nkind: AgentConfiguration\n"

func mustParse(t *testing.T, text string) *Config {
	t.Helper()
	c, err := parse(Options{Path: "f.yaml"}, nil, []byte(head+text))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func dump(t *testing.T, c *Config) string {
	t.Helper()
	text, err := c.Dump()
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func notices(c *Config) string {
	var all []string
	for _, n := range c.Notices {
		all = append(all, n.String())
	}
	return strings.Join(all, "\n")
}

func TestGolden(t *testing.T) {
	golden(t, "defaults.golden.yaml", dump(t, mustParse(t, "")))
	c, err := Load(Options{Path: filepath.Join("testdata", "full.yaml"), PathGiven: true})
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "full.golden.yaml", dump(t, c))
}

// same compares the values and the policies of two configurations.
func same(t *testing.T, what string, want, got *Config) {
	t.Helper()
	strip := func(c *Config) Config {
		s := *c
		s.Files, s.Notices, s.thresholds, s.sources, s.origin = nil, nil, nil, sources{}, nil
		return s
	}
	if diff := cmp.Diff(strip(want), strip(got), cmp.AllowUnexported(Config{}, sources{})); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
	if w, g := policyText(want), policyText(got); w != g {
		t.Errorf("%s: policy %s; want %s", what, g, w)
	}
}

// policyText prints a policy's thresholds, one a line.
func policyText(c *Config) string {
	var b strings.Builder
	for _, th := range c.Policy(evict.SingleFs).Thresholds {
		b.WriteString(strings.Join([]string{th.Signal.String(), th.Value.String(), th.Grace.String(), th.MinReclaim.String()}, " "))
		if th.Derived {
			b.WriteString(" copy")
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func TestDumpParsesAgain(t *testing.T) {
	for _, text := range []string{
		"", "evictionHard: {}", "evictionHard: {memory.available: 0%}\nmergeDefaultEvictionSettings: true",
		"enforceNodeAllocatable: []", "nodefsPath: null\nprotect: {names: [a/b]}", "trustAnnotations: ['5', 'yes', 'null', '~']",
		"shutdownGracePeriod: 30s\nshutdownGracePeriodCriticalPods: 10s",
		"notification: {bpf: off, bpfFloor: 1ms, reclaim: require}\npressure: {memory: {full: 999999us/1.5s, sustained: 2s}}",
	} {
		c := mustParse(t, text)
		again, err := parse(Options{Path: "dump.yaml"}, nil, []byte(dump(t, c)))
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		same(t, text, c, again)
	}
}

func TestPolicy(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"defaults", "", `
memory.available 100Mi 0s 0
nodefs.available 10% 0s 0
nodefs.inodesFree 5% 0s 0
imagefs.available 15% 0s 0
imagefs.inodesFree 5% 0s 0
allocatableMemory.available 100Mi 0s 0 copy
containerfs.available 10% 0s 0 copy
containerfs.inodesFree 5% 0s 0 copy
`},
		{"null is absent", "evictionHard: null\nevictionSoft: ~\nenforceNodeAllocatable:\nmaxVictims:", `
memory.available 100Mi 0s 0
nodefs.available 10% 0s 0
nodefs.inodesFree 5% 0s 0
imagefs.available 15% 0s 0
imagefs.inodesFree 5% 0s 0
allocatableMemory.available 100Mi 0s 0 copy
containerfs.available 10% 0s 0 copy
containerfs.inodesFree 5% 0s 0 copy
`},
		{"empty is none", "evictionHard: {}", "\n"},
		{"a map replaces the defaults", "evictionHard: {pid.available: 10%}", "\npid.available 10% 0s 0\n"},
		{"unless merged", "evictionHard: {memory.available: 1Gi, nodefs.available: 0%, imagefs.available: 100%}\nmergeDefaultEvictionSettings: true", `
memory.available 1Gi 0s 0
nodefs.inodesFree 5% 0s 0
imagefs.inodesFree 5% 0s 0
allocatableMemory.available 1Gi 0s 0 copy
containerfs.inodesFree 5% 0s 0 copy
`},
		{"hard and soft, in order", "evictionHard: {pid.available: 1k, memory.available: 0.5Gi}\n" +
			"evictionSoft: {nodefs.available: 20%, memory.available: 1Gi}\nevictionSoftGracePeriod: {memory.available: 90s, nodefs.available: 2m}\n" +
			"evictionMinimumReclaim: {memory.available: 5%, nodefs.available: 1Gi}", `
memory.available 512Mi 0s 5%
pid.available 1k 0s 0
memory.available 1Gi 1m30s 5%
nodefs.available 20% 2m0s 1Gi
allocatableMemory.available 512Mi 0s 5% copy
containerfs.available 20% 2m0s 1Gi copy
`},
		{"allocatable is not enforced", "evictionHard: {memory.available: 1Gi}\nenforceNodeAllocatable: [none]", "\nmemory.available 1Gi 0s 0\n"},
		{"enforcement of nothing", "evictionHard: {memory.available: 1Gi}\nenforceNodeAllocatable: []", "\nmemory.available 1Gi 0s 0\n"},
		{"enforcement of the rest", "evictionHard: {memory.available: 1Gi}\nenforceNodeAllocatable: [kube-reserved]", "\nmemory.available 1Gi 0s 0\n"},
		{"allocatable by hand", "evictionHard: {allocatableMemory.available: 1Gi}", "\nallocatableMemory.available 1Gi 0s 0\n"},
		{"soft switched off needs no grace", "evictionHard: {}\nevictionSoft: {memory.available: 0%}", "\n"},
		{"containerfs is derived", "evictionHard: {containerfs.available: 50%, nodefs.available: 10%}", `
nodefs.available 10% 0s 0
containerfs.available 10% 0s 0 copy
`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(strings.TrimPrefix(tt.want, "\n"), policyText(mustParse(t, tt.text))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestPolicyRules(t *testing.T) {
	p := mustParse(t, "evictionPressureTransitionPeriod: 0s\nevictionMaxPodGracePeriod: -1\nunknownPriority: evict").Policy(evict.SplitFs)
	if p.TransitionPeriod != 5*time.Minute || p.MaxPodGraceSeconds != -1 || p.MaxVictims != 3 || p.SettleTimeout != time.Second ||
		p.Layout != evict.SplitFs || p.ProtectUnknownPriority || !p.ProtectUnreportable || p.Protected != nil {
		t.Errorf("Policy = %+v", p)
	}
	for _, kubelet := range []string{"absent", "override"} {
		if mustParse(t, "kubelet: "+kubelet).Policy(evict.SingleFs).ProtectUnreportable {
			t.Errorf("kubelet: %s exempts pods whose eviction can't be reported", kubelet)
		}
	}
	if p := mustParse(t, "").Policy(evict.SingleFs); !p.ProtectUnknownPriority {
		t.Error("SpareUnknownPriority is not the default for a kubelet's pods of unknown priority")
	}
}

func TestProtected(t *testing.T) {
	c := mustParse(t, `
protect:
  namespaces: [kube-system]
  labelSelectors: ["app=db", "tier in (gold), !scratch"]
  names: [default/web]
  daemonSets: true`)
	protected := c.Policy(evict.SingleFs).Protected
	for _, tt := range []struct {
		pod  evict.Pod
		want string
	}{
		{evict.Pod{Namespace: "default", Name: "x"}, ""},
		{evict.Pod{Namespace: "kube-system", Name: "x"}, "namespace kube-system"},
		{evict.Pod{Namespace: "kube-system2", Name: "x"}, ""},
		{evict.Pod{Namespace: "default", Name: "web"}, "named default/web"},
		{evict.Pod{Namespace: "other", Name: "web"}, ""},
		{evict.Pod{Labels: map[string]string{"app": "db"}}, "label selector app=db"},
		{evict.Pod{Labels: map[string]string{"tier": "gold"}}, "label selector tier in (gold), !scratch"},
		{evict.Pod{Labels: map[string]string{"tier": "gold", "scratch": ""}}, ""},
		{evict.Pod{DaemonSet: true}, "a DaemonSet's pod"},
		{evict.Pod{Labels: map[string]string{"pod-template-generation": "1"}}, "a DaemonSet's pod"},
		{evict.Pod{Labels: map[string]string{"controller-revision-hash": "1"}}, ""},
	} {
		if got := protected(&tt.pod); got != tt.want {
			t.Errorf("Protected(%+v) = %q; want %q", tt.pod, got, tt.want)
		}
	}
	protected = mustParse(t, "protect: {namespaces: [a]}").Policy(evict.SingleFs).Protected
	if got := protected(&evict.Pod{DaemonSet: true}); got != "" {
		t.Errorf("a DaemonSet's pod is protected without daemonSets: %q", got)
	}
}

func TestFromNode(t *testing.T) {
	type scenario struct {
		Before int       `yaml:"before"`
		Config yaml.Node `yaml:"-"`
	}
	parse := func(text string) (*strict.Decoder, *yaml.Node) {
		d, root, err := strict.Parse("s.yaml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		var s scenario
		d.Decode(root.Content[1], &s) // wrong on purpose: the first value is not a map
		return d, root.Content[3]
	}
	d, n := parse("x: 1\nconfig:\n  evictionHard:\n    memory.available: 1Gi\n  podPidsLimit: 5\n")
	c := FromNode(d.At("config"), n)
	if c == nil || policyText(c) != "memory.available 1Gi 0s 0\nallocatableMemory.available 1Gi 0s 0 copy\n" || c.DryRun {
		t.Fatalf("FromNode = %+v, %v", c, d.Err())
	}
	if got := notices(c); !strings.HasPrefix(got, "s.yaml:5: config.podPidsLimit: has no effect here") {
		t.Errorf("notices = %s", got)
	}
	d, n = parse("x: 1\nconfig:\n  kind: AgentConfiguration\n  evictionHard: {memory.available: 0}\n  maxVictims: 0\n")
	if c := FromNode(d.At("config"), n); c != nil {
		t.Errorf("FromNode of an invalid node = %+v; want nil", c)
	}
	want := `s.yaml:1: is the number 1; want a map
s.yaml:3: config.kind: is not a field here
s.yaml:4: config.evictionHard.memory.available: "0" is not above 0; want a quantity above 0 such as 100Mi, or a percentage up to 100% such as 10%
s.yaml:5: config.maxVictims: is 0; want at least 1`
	if diff := cmp.Diff(want, d.Err().Error()); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
	d, _ = parse("x: 1\nconfig:\n")
	c = FromNode(d.At("config"), nil)
	same(t, "no node", mustParse(t, ""), c)
}

// TestFullExampleIsComplete checks that the full example sets every field of a
// configuration, so that its golden file covers it.
func TestFullExampleIsComplete(t *testing.T) {
	d, root, err := strict.Parse("full.yaml", func() []byte {
		data, err := os.ReadFile(filepath.Join("testdata", "full.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}())
	if err != nil {
		t.Fatal(err)
	}
	base().decodeAgent(d, root, &header{})
	if err := d.Err(); err != nil {
		t.Fatal(err)
	}
	for _, typ := range []reflect.Type{reflect.TypeFor[Config](), reflect.TypeFor[KubeletFields]()} {
		for i := range typ.NumField() {
			name, _, _ := strings.Cut(typ.Field(i).Tag.Get("yaml"), ",")
			if name != "" && name != "-" && !d.Has(name) && !strings.HasPrefix(name, "shutdownGracePeriod") {
				t.Errorf("testdata/full.yaml does not set %s", name)
			}
		}
	}
}
