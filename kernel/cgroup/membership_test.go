package cgroup

import (
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/kerneltest"
)

const hybridCgroup = `9:name=systemd:/
8:pids:/kubepods/burstable/pod1/ctr
6:freezer:/kubepods/burstable/pod1/ctr
4:memory:/kubepods/burstable/pod1/ctr
2:cpu,cpuacct:/
0::/init.scope
`

func TestParseMembership(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want Membership
		err  string
	}{
		{in: hybridCgroup, want: Membership{
			{Hierarchy: 9, Controllers: []string{"name=systemd"}, Path: "/"},
			{Hierarchy: 8, Controllers: []string{"pids"}, Path: "/kubepods/burstable/pod1/ctr"},
			{Hierarchy: 6, Controllers: []string{"freezer"}, Path: "/kubepods/burstable/pod1/ctr"},
			{Hierarchy: 4, Controllers: []string{"memory"}, Path: "/kubepods/burstable/pod1/ctr"},
			{Hierarchy: 2, Controllers: []string{"cpu", "cpuacct"}, Path: "/"},
			{Path: "/init.scope"},
		}},
		{in: "0::/a:b/cri-containerd:c\n", want: Membership{{Path: "/a:b/cri-containerd:c"}}},
		{in: `0::/system.slice/dev-disk-by\x2dlabel-x.swap` + "\n", want: Membership{{Path: `/system.slice/dev-disk-by\x2dlabel-x.swap`}}},
		{in: "0::/pod1/ctr (deleted)\n", want: Membership{{Path: "/pod1/ctr", Deleted: true}}},
		// v1 does not mark removed cgroups: this is part of the name.
		{in: "4:memory:/x (deleted)\n", want: Membership{{Hierarchy: 4, Controllers: []string{"memory"}, Path: "/x (deleted)"}}},
		{in: "0::/../../kubepods\n", want: Membership{{Path: "/../../kubepods"}}},
		{in: "", want: nil},
		{in: "0::/", err: "cut off"},
		{in: "0:/\n", err: "not hierarchy:controllers:/path"},
		{in: "0::kubepods\n", err: "not hierarchy:controllers:/path"},
		{in: "0::\n", err: "not hierarchy:controllers:/path"},
		{in: "x::/\n", err: "not hierarchy:controllers:/path"},
		{in: "-1::/\n", err: "not hierarchy:controllers:/path"},
		{in: "\n", err: "not hierarchy:controllers:/path"},
	} {
		got, err := parseMembership(tt.in)
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("parseMembership(%q) = %v; want an error with %q", tt.in, err, tt.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("parseMembership(%q) = %v; want nil", tt.in, err)
		} else if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("parseMembership(%q) (-want +got):\n%s", tt.in, diff)
		}
	}
}

func TestMembershipMemoryPath(t *testing.T) {
	for _, tt := range []struct {
		version Version
		in      string
		want    string
		err     error
	}{
		{version: Hybrid, in: hybridCgroup, want: "/kubepods/burstable/pod1/ctr"},
		{version: V1, in: hybridCgroup, want: "/kubepods/burstable/pod1/ctr"},
		{version: V2, in: hybridCgroup, want: "/init.scope"},
		{version: V1, in: "4:memory:/\n", want: "/"},
		{version: V2, in: "0::/..foo\n", want: "/..foo"},
		{version: V2, in: "0::/../foo\n", err: ErrOutsideNamespace},
		{version: V2, in: "0::/..\n", err: ErrOutsideNamespace},
		{version: V1, in: "4:memory:/../../pod1\n", err: ErrOutsideNamespace},
		{version: V2, in: "0::/pod1 (deleted)\n", err: ErrGone},
		{version: V2, in: "0::/../pod1 (deleted)\n", err: ErrOutsideNamespace},
	} {
		m, err := parseMembership(tt.in)
		if err != nil {
			t.Fatal(err)
		}
		got, err := m.MemoryPath(&Hierarchy{Version: tt.version})
		if got != tt.want || !errors.Is(err, tt.err) {
			t.Errorf("%s: MemoryPath(%q) = %q, %v; want %q, %v", tt.version, tt.in, got, err, tt.want, tt.err)
		}
	}
	m := Membership{{Hierarchy: 2, Controllers: []string{"cpu"}, Path: "/"}}
	for _, v := range []Version{V1, V2, Hybrid} {
		if got, err := m.MemoryPath(&Hierarchy{Version: v}); err == nil {
			t.Errorf("%s: MemoryPath() without a memory or v2 entry = %q; want an error", v, got)
		}
	}
}

func TestReadMembership(t *testing.T) {
	proc := kernel.FS(kerneltest.Tree(t, map[string]string{"7/cgroup": "0::/a\n"}))
	got, err := ReadMembership(proc, 7)
	if diff := cmp.Diff(Membership{{Path: "/a"}}, got); err != nil || diff != "" {
		t.Errorf("ReadMembership(7) = %v (-want +got):\n%s", err, diff)
	}
	if _, err := ReadMembership(proc, 8); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("ReadMembership(8) = %v; want %v", err, fs.ErrNotExist)
	}
}

func FuzzParseMembership(f *testing.F) {
	for _, s := range []string{hybridCgroup, "0::/a (deleted)\n", "0::/../x\n", "0:/\n", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		m, err := parseMembership(s)
		if err != nil && m != nil {
			t.Errorf("parseMembership(%q) = %v with error %v; want none", s, m, err)
		}
		for _, v := range []Version{V1, V2} {
			if path, err := m.MemoryPath(&Hierarchy{Version: v}); err == nil && !strings.HasPrefix(path, "/") {
				t.Errorf("MemoryPath(%q) = %q; want an absolute path", s, path)
			}
		}
	})
}
