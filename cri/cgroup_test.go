package cri_test

import (
	"path"
	"strings"
	"testing"

	"github.com/evictd/evictd/cri"
)

const containerID = "0f015e94ce5e5f2447eead525a890c4382492538f4f86a83081c47756f812a80"

var cgroupPaths = []struct {
	in      string
	want    string // "" for an error
	systemd bool
	err     string // part of the error
}{
	{in: "/kubepods/burstable/pod8f2a1b3c-0000-4000-8000-00000000c0de/" + containerID,
		want: "/kubepods/burstable/pod8f2a1b3c-0000-4000-8000-00000000c0de/" + containerID},
	{in: "/kubepods/burstable/podX/crio-" + containerID, want: "/kubepods/burstable/podX/crio-" + containerID},
	{in: "/" + containerID, want: "/" + containerID},
	{in: "/a:b:c", want: "/a:b:c"},
	{in: "/kubepods.slice/pod.slice/x", want: "/kubepods.slice/pod.slice/x"},
	{in: "/docker/with space", want: "/docker/with space"},
	{in: "/...", want: "/..."},

	{in: "kubepods-burstable-pod8f2a1b3c_0000.slice:cri-containerd:ID", systemd: true,
		want: "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod8f2a1b3c_0000.slice/cri-containerd-ID.scope"},
	{in: "kubepods-podX.slice:crio:ID", systemd: true, want: "/kubepods.slice/kubepods-podX.slice/crio-ID.scope"},
	{in: "a-b-c.slice:runc:x", systemd: true, want: "/a.slice/a-b.slice/a-b-c.slice/runc-x.scope"},
	{in: "system.slice:docker:ID", systemd: true, want: "/system.slice/docker-ID.scope"},
	{in: ":cri-containerd:ID", systemd: true, want: "/system.slice/cri-containerd-ID.scope"},
	{in: "-.slice:crio:ID", systemd: true, want: "/crio-ID.scope"},
	{in: "memory-x.slice:crio:ID", systemd: true, err: "escapes"},
	{in: "a.slice:cpu:x.y", systemd: true, want: "/a.slice/cpu-x.y.scope"},
	{in: "a\\x2db.slice:crio:ID", systemd: true, want: "/a\\x2db.slice/crio-ID.scope"},

	{in: "", err: "empty"},
	{in: "/", err: "root"},
	{in: containerID, err: "neither absolute"},
	{in: "kubepods/podX/ID", err: "neither absolute"},
	{in: "../x", err: "neither absolute"},
	{in: "/..", err: "not a clean path"},
	{in: "/kubepods/../system.slice", err: "not a clean path"},
	{in: "/kubepods/./x", err: "not a clean path"},
	{in: "/kubepods//x", err: "not a clean path"},
	{in: "//", err: "not a clean path"},
	{in: "/kubepods/x/", err: "not a clean path"},
	{in: "/kubepods/x\x00", err: "NUL"},
	{in: "/kubepods/x\n0::/y", err: "newline"},
	{in: "/" + strings.Repeat("x", 256), err: "NAME_MAX"},
	{in: strings.Repeat("/x", 2048), err: "PATH_MAX"},
	{in: ":", err: "neither absolute"},
	{in: "::", err: "empty"},
	{in: "a.slice::ID", err: "empty"},
	{in: "a.slice:crio:", err: "empty"},
	{in: "a.slice:crio:ID:more", err: "neither absolute"},
	{in: "a.slice:crio", err: "neither absolute"},
	{in: "a:crio:ID", err: "not a slice"},
	{in: ".slice:crio:ID", err: "not a slice"},
	{in: "--.slice:crio:ID", err: "between dashes"},
	{in: "-a.slice:crio:ID", err: "between dashes"},
	{in: "a-.slice:crio:ID", err: "between dashes"},
	{in: "a--b.slice:crio:ID", err: "between dashes"},
	{in: "../a.slice:crio:ID", err: "not allowed"},
	{in: "a/b.slice:crio:ID", err: "not allowed"},
	{in: "a.slice:crio:../../x", err: "not allowed"},
	{in: "a.slice:../x:ID", err: "not allowed"},
	{in: "a.slice:crio:\x00", err: "not allowed"},
	{in: "a.slice:crio:other.slice", err: "is a slice"},
	{in: "_a.slice:crio:ID", err: "escapes"},
	{in: "..slice:crio:ID", err: "escapes"},
	{in: "cgroup.slice:crio:ID", err: "escapes"},
	{in: "pids.slice:crio:ID", err: "escapes"},
	{in: "a.slice:crio:" + strings.Repeat("x", 250), err: "systemd allows 255"},
	{in: strings.Repeat("a", 250) + ".slice:crio:ID", err: "systemd allows 255"},
	{in: strings.Repeat("a-", 100) + "a.slice:crio:ID", err: "PATH_MAX"},
}

func TestCgroupPath(t *testing.T) {
	for _, tt := range cgroupPaths {
		got, systemd, err := cri.CgroupPath(tt.in)
		if tt.want == "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) || got != "" {
				t.Errorf("CgroupPath(%.80q) = %q, %v; want an error with %q", tt.in, got, err, tt.err)
			}
			continue
		}
		if err != nil || got != tt.want || systemd != tt.systemd {
			t.Errorf("CgroupPath(%q) = %q, %v, %v; want %q, %v", tt.in, got, systemd, err, tt.want, tt.systemd)
		}
	}
}

func FuzzCgroupPath(f *testing.F) {
	for _, tt := range cgroupPaths {
		f.Add(tt.in)
	}
	f.Fuzz(func(t *testing.T, in string) {
		got, systemd, err := cri.CgroupPath(in)
		if err != nil {
			if got != "" {
				t.Fatalf("CgroupPath(%q) = %q with error %v; want no path", in, got, err)
			}
			return
		}
		if got == "/" || got[0] != '/' || path.Clean(got) != got || strings.ContainsAny(got, "\x00\n") || len(got) > 4095 {
			t.Fatalf("CgroupPath(%q) = %q; want a clean absolute path below the root", in, got)
		}
		if systemd != (in[0] != '/') {
			t.Fatalf("CgroupPath(%q): systemd = %v", in, systemd)
		}
		if systemd && !strings.HasSuffix(got, ".scope") {
			t.Fatalf("CgroupPath(%q) = %q; want a scope", in, got)
		}
		// A path below the root is its own cgroupsPath for the cgroupfs driver.
		if again, _, err := cri.CgroupPath(got); err != nil || again != got {
			t.Fatalf("CgroupPath(%q) = %q, %v; want it unchanged", got, again, err)
		}
	})
}
