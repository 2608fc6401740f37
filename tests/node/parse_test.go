package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var mountinfoTests = []struct {
	name, in string
	want     []mount
	err      bool
}{
	{name: "empty"},
	{
		name: "v1, v2 and an overlay",
		in: "25 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard,resv_strict\n" +
			"36 25 0:31 / /sys/fs/cgroup/memory rw,relatime shared:9 master:1 - cgroup cgroup rw,memory\n" +
			"42 25 0:37 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n" +
			"97 25 0:55 / /tmp/a\\040b/rootfs rw,relatime shared:41 - overlay overlay rw,lowerdir=/l,upperdir=/u\n",
		want: []mount{
			{"/", "254:0", "ext4", "rw,discard,resv_strict"},
			{"/sys/fs/cgroup/memory", "0:31", "cgroup", "rw,memory"},
			{"/sys/fs/cgroup/unified", "0:37", "cgroup2", "rw"},
			{"/tmp/a b/rootfs", "0:55", "overlay", "rw,lowerdir=/l,upperdir=/u"},
		},
	},
	{name: "no source", in: "25 1 0:4 / /x rw - tmpfs  rw\n", want: []mount{{"/x", "0:4", "tmpfs", "rw"}}},
	{name: "a dash as source", in: "25 1 0:4 / /x rw - tmpfs - rw\n", want: []mount{{"/x", "0:4", "tmpfs", "rw"}}},
	{name: "removed mountpoint", in: "25 1 0:4 / /x//deleted rw - tmpfs t rw\n", want: []mount{{"/x//deleted", "0:4", "tmpfs", "rw"}}},
	{name: "cut off", in: "36 25 0:31 / /sys/fs/cgr", err: true},
	{name: "no dash", in: "36 25 0:31 / /x rw cgroup cgroup rw\n", err: true},
	{name: "short right side", in: "36 25 0:31 / /x rw - cgroup\n", err: true},
	{name: "blank line", in: "\n", err: true},
}

func TestParseMountinfo(t *testing.T) {
	for _, tt := range mountinfoTests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseMountinfo(tt.in)
			if (err != nil) != tt.err {
				t.Fatalf("parseMountinfo(%q) = %v, %v; want error: %t", tt.in, got, err, tt.err)
			}
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(mount{})); diff != "" {
				t.Errorf("parseMountinfo(%q) (-want +got):\n%s", tt.in, diff)
			}
		})
	}
}

func FuzzParseMountinfo(f *testing.F) {
	for _, tt := range mountinfoTests {
		f.Add(tt.in)
	}
	f.Fuzz(func(t *testing.T, in string) {
		got, err := parseMountinfo(in)
		if err == nil && len(got) != strings.Count(in, "\n") && len(got) != strings.Count(in, "\n")+1 {
			t.Fatalf("parseMountinfo(%q) = %d mounts", in, len(got))
		}
	})
}

func TestUnescape(t *testing.T) {
	for in, want := range map[string]string{
		"":               "",
		"/plain":         "/plain",
		`/a\040b\011c`:   "/a b\tc",
		`/back\134slash`: `/back\slash`,
		`/end\`:          `/end\`,
		`/short\04`:      `/short\04`,
		`/not\09octal`:   `/not\09octal`,
		`\012`:           "\n",
	} {
		if got := unescape(in); got != want {
			t.Errorf("unescape(%q) = %q; want %q", in, got, want)
		}
	}
}

func TestBelow(t *testing.T) {
	for _, tt := range []struct {
		path, dir string
		want      bool
	}{
		{"/a/b", "/a", true},
		{"/a", "/a", false},
		{"/ab", "/a", false},
		{"/a", "/", true},
		{"/", "/", false},
		{"", "/a", false},
	} {
		if got := below(tt.path, tt.dir); got != tt.want {
			t.Errorf("below(%q, %q) = %t; want %t", tt.path, tt.dir, got, tt.want)
		}
	}
}

func TestMemberOf(t *testing.T) {
	const cgroup = "/evictd-test-1f2e3d4c"
	for _, tt := range []struct {
		text string
		want bool
	}{
		{"4:memory:/evictd-test-1f2e3d4c/kubepods/pod1\n0::/\n", true},
		{"4:memory:/\n0::/evictd-test-1f2e3d4c\n", true},
		{"0::/evictd-test-1f2e3d4c/system (deleted)\n", true},
		{"4:memory:/evictd-test-1f2e3d4cc/x\n0::/\n", false},
		{"4:memory:/other/evictd-test-1f2e3d4c\n", false},
		{"9:name=a:b:/evictd-test-1f2e3d4c\n", false}, // a hierarchy's name has no colon
		{"", false},
		{"0\n", false},
	} {
		if got := memberOf(tt.text, cgroup); got != tt.want {
			t.Errorf("memberOf(%q) = %t; want %t", tt.text, got, tt.want)
		}
	}
}

func TestParseMeminfo(t *testing.T) {
	got, err := parseMeminfo("MemTotal:       24684084 kB\nMemFree:        23836000 kB\nMemAvailable:   24387236 kB\n")
	if want := (meminfo{24684084 << 10, 24387236 << 10}); err != nil || got != want {
		t.Errorf("parseMeminfo = %+v, %v; want %+v", got, err, want)
	}
	for _, in := range []string{"", "MemTotal: 1 kB\n", "MemTotal: x kB\nMemAvailable: 1 kB\n", "MemTotal:\nMemAvailable: 1 kB\n"} {
		if got, err := parseMeminfo(in); err == nil {
			t.Errorf("parseMeminfo(%q) = %+v; want an error", in, got)
		}
	}
}

var recordTests = []struct {
	in string
	ok bool
}{
	{`{"id":"1f2e3d4c","dir":"/tmp/x","made":["/run/containerd"]}`, true},
	{`{"id":"1f2e3d4c","dir":"/tmp/x"}`, true},
	{`{"id":"1f2e3d4c","dir":"/tmp/x","driver":"cgroupfs"}`, true},
	{`{"id":"1f2e3d4c","dir":"/tmp/x","driver":"systemd"}`, true},
	{`{"id":"1f2e3d4c","dir":"/tmp/x","driver":"Systemd"}`, false},
	{`{"id":"","dir":"/tmp/x"}`, false},
	{`{"id":"..","dir":"/tmp/x"}`, false},
	{`{"id":"1f2e3d4c/","dir":"/tmp/x"}`, false},
	{`{"id":"1f2e3d4c","dir":""}`, false},
	{`{"id":"1f2e3d4c","dir":"/"}`, false},
	{`{"id":"1f2e3d4c","dir":"tmp"}`, false},
	{`{"id":"1f2e3d4c","dir":"/tmp/../etc"}`, false},
	{`{"id":"1f2e3d4c","dir":"/tmp/x","made":["/"]}`, false},
	{`{"id":"1f2e3d4c"`, false},
	{``, false},
}

func TestParseRecord(t *testing.T) {
	for _, tt := range recordTests {
		if got, err := parseRecord([]byte(tt.in)); (err == nil) != tt.ok {
			t.Errorf("parseRecord(%s) = %+v, %v; want it accepted: %t", tt.in, got, err, tt.ok)
		}
	}
}

func FuzzParseRecord(f *testing.F) {
	for _, tt := range recordTests {
		f.Add([]byte(tt.in))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := parseRecord(b)
		if err != nil {
			return
		}
		for _, path := range append(r.roots(), r.Dir, r.path()) {
			if !below(path, "/") || path != filepath.Clean(path) {
				t.Fatalf("parseRecord(%q) names %q", b, path)
			}
		}
	})
}

func TestParseInfo(t *testing.T) {
	got, err := parseInfo(map[string]string{"info": `{"pid":7,"config":{"linux":{"cgroup_parent":"/kubepods/pod1"}},` +
		`"runtimeSpec":{"process":{"oomScoreAdj":1000},"linux":{"cgroupsPath":"/kubepods/pod1/c1"}}}`})
	if err != nil || got.PID != 7 || got.RuntimeSpec.Linux.CgroupsPath != "/kubepods/pod1/c1" || got.Config.Linux.CgroupParent != "/kubepods/pod1" {
		t.Errorf("parseInfo = %+v, %v; want the values of the JSON", got, err)
	}
	for _, in := range []map[string]string{nil, {"info": ""}, {"info": "[]"}, {"info": `{"pid":"7"}`}} {
		if got, err := parseInfo(in); err == nil {
			t.Errorf("parseInfo(%q) = %+v; want an error", in, got)
		}
	}
}

func TestQoS(t *testing.T) {
	const mib, capacity = 1 << 20, 24 << 30
	for _, tt := range []struct {
		name       string
		containers []ContainerSpec
		want       QoS
		score      int64
	}{
		{"limits alone", []ContainerSpec{{MemoryLimit: mib}}, Guaranteed, -997},
		{"nothing", []ContainerSpec{{}}, BestEffort, 1000},
		{"an eighth of the node", []ContainerSpec{{MemoryRequest: 3 << 30}}, Burstable, 875},
		{"little", []ContainerSpec{{MemoryRequest: mib}}, Burstable, 999},
		{"all of the node", []ContainerSpec{{MemoryRequest: capacity}}, Burstable, 3},
		{"request below limit", []ContainerSpec{{MemoryRequest: 12 << 30, MemoryLimit: 13 << 30}}, Burstable, 500},
		{"one of two", []ContainerSpec{{MemoryLimit: 12 << 30}, {}}, Burstable, 500},
		{"a second container without a request", []ContainerSpec{{}, {MemoryLimit: mib}}, Burstable, 999},
	} {
		spec := PodSpec{Name: tt.name, Containers: tt.containers}
		if err := spec.setDefaults(); err != nil {
			t.Fatal(err)
		}
		if spec.QoS != tt.want {
			t.Errorf("QoS of %s = %s; want %s", tt.name, spec.QoS, tt.want)
		}
		if got := spec.QoS.oomScoreAdj(spec.Containers[0].MemoryRequest, capacity); got != tt.score {
			t.Errorf("oom_score_adj of %s = %d; want %d", tt.name, got, tt.score)
		}
	}
}

func TestSetDefaults(t *testing.T) {
	for _, spec := range []PodSpec{
		{Containers: []ContainerSpec{{}}},
		{Name: "empty"},
		{Name: "odd", QoS: "Best", Containers: []ContainerSpec{{}}},
	} {
		if err := spec.setDefaults(); err == nil {
			t.Errorf("setDefaults(%+v) = nil; want an error", spec)
		}
	}
	containers := []ContainerSpec{{}}
	spec := PodSpec{Name: "x", Containers: containers}
	if err := spec.setDefaults(); err != nil {
		t.Fatal(err)
	}
	if containers[0].Name != "" {
		t.Errorf("complete wrote %q into the caller's containers", containers[0].Name)
	}
}

func TestFindIn(t *testing.T) {
	root := t.TempDir()
	install := func(dir string, mode os.FileMode, names ...string) string {
		dir = filepath.Join(root, dir)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), mode); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	full := install("full", 0o755, "containerd", "containerd-shim-runc-v2", "ctr", "runc")
	noShim := install("no-shim", 0o755, "containerd", "ctr")
	sbin := install("sbin", 0o755, "runc")
	noExec := install("no-exec", 0o644, "containerd", "containerd-shim-runc-v2", "ctr", "runc")
	binaries := func(dir, runcDir string) Binaries {
		return Binaries{dir + "/containerd", dir + "/containerd-shim-runc-v2", dir + "/ctr", runcDir + "/runc"}
	}
	for _, tt := range []struct {
		name    string
		dirs    []string
		want    Binaries
		missing []string
	}{
		{name: "one directory", dirs: []string{noExec, full}, want: binaries(full, full)},
		{name: "runc elsewhere", dirs: []string{noShim, sbin, full}, want: binaries(full, sbin)},
		{name: "nothing", dirs: []string{noExec, ""}, missing: []string{"containerd with", "runc"}},
		{name: "relative", dirs: []string{"full"}, missing: []string{"containerd with", "runc"}},
		{name: "no runc", dirs: []string{noShim}, missing: []string{"containerd with", "runc"}},
		{name: "no shim", dirs: []string{noShim, sbin}, missing: []string{"containerd with"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := findIn(tt.dirs)
			if (err != nil) != (tt.missing != nil) {
				t.Fatalf("findIn(%q) = %+v, %v", tt.dirs, got, err)
			}
			for _, name := range tt.missing {
				if !strings.Contains(err.Error(), name) {
					t.Errorf("findIn(%q) = %v; want it to name %s", tt.dirs, err, name)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("findIn(%q) (-want +got):\n%s", tt.dirs, diff)
			}
		})
	}
}

func TestPrepareDirRefuses(t *testing.T) {
	used := t.TempDir()
	if err := os.WriteFile(filepath.Join(used, "thesis.tex"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{
		"":   "no directory",
		used: "has thesis.tex",
		filepath.Join(t.TempDir(), strings.Repeat("x", 100)): "too long",
	} {
		if r, err := prepareDir(dir, Cgroupfs, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("prepareDir(%q) = %+v, %v; want an error with %q", dir, r, err, want)
		}
	}
}
