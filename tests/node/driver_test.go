package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestDriverChild(t *testing.T) {
	for _, tt := range []struct {
		driver       Driver
		parent, name string
		want         string
	}{
		{Cgroupfs, "/evictd-test-1f2e3d4c", "kubepods", "/evictd-test-1f2e3d4c/kubepods"},
		{Cgroupfs, "/r/kubepods/burstable", "poda-b", "/r/kubepods/burstable/poda-b"},
		{Systemd, "/r_1.slice", "kubepods", "/r_1.slice/r_1-kubepods.slice"},
		{Systemd, "/r.slice/r-kubepods.slice", "poda-b", "/r.slice/r-kubepods.slice/r-kubepods-poda_b.slice"},
	} {
		if got := tt.driver.child(tt.parent, tt.name); got != tt.want {
			t.Errorf("%s.child(%s, %s) = %s; want %s", tt.driver, tt.parent, tt.name, got, tt.want)
		}
	}
}

func TestContainerCgroup(t *testing.T) {
	const pod = "/r.slice/r-kubepods.slice/r-kubepods-podu.slice"
	for _, tt := range []struct {
		cgroupsPath, pod, want string
		err                    bool
	}{
		{cgroupsPath: "/r/kubepods/podu/c1", pod: "/r/kubepods/podu", want: "/r/kubepods/podu/c1"},
		{cgroupsPath: "/k8s.io/c1", want: "/k8s.io/c1"},
		{cgroupsPath: "r-kubepods-podu.slice:cri-containerd:c1", pod: pod, want: pod + "/cri-containerd-c1.scope"},
		{cgroupsPath: "r-kubepods-podx.slice:cri-containerd:c1", pod: pod, err: true},
		{cgroupsPath: "r-kubepods-podu.slice:c1", pod: pod, err: true},
		{cgroupsPath: "c1", pod: pod, err: true},
		{cgroupsPath: "", pod: pod, err: true},
	} {
		got, err := containerCgroup(tt.cgroupsPath, tt.pod)
		if (err != nil) != tt.err || got != tt.want {
			t.Errorf("containerCgroup(%q, %q) = %q, %v; want %q, error: %t", tt.cgroupsPath, tt.pod, got, err, tt.want, tt.err)
		}
	}
}

func TestResolveDriver(t *testing.T) {
	for _, tt := range []struct {
		given  Driver
		env    string
		want   Driver
		blames string
	}{
		{want: Cgroupfs},
		{env: "systemd", want: Systemd},
		{given: Cgroupfs, env: "systemd", want: Cgroupfs},
		{env: "cgroupsfs", blames: DriverEnv},
		{given: "runc", blames: `"runc"`},
	} {
		t.Setenv(DriverEnv, tt.env)
		got, err := tt.given.resolve()
		if got != tt.want || (err != nil) != (tt.blames != "") || err != nil && !strings.Contains(err.Error(), tt.blames) {
			t.Errorf("with %q: %q.resolve() = %q, %v; want %q and an error with %q", tt.env, tt.given, got, err, tt.want, tt.blames)
		}
	}
}

func TestReadSlowFactor(t *testing.T) {
	dir := t.TempDir()
	cpuinfo := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	emulator := cpuinfo("emulator", "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: QEMU TCG CPU version 2.5+\nflags\t\t: fpu de\n")
	metal := cpuinfo("metal", "processor\t: 0\nmodel name\t: Intel(R) Xeon(R) Processor @ 2.60GHz\nbugs\t\t: QEMU TCG CPU\n")
	for _, tt := range []struct {
		variable, cpuinfo string
		want              int64
		err               bool
	}{
		{cpuinfo: metal, want: 1},
		{cpuinfo: emulator, want: emulatedFactor},
		{variable: "3", cpuinfo: emulator, want: 3},
		{variable: "1", cpuinfo: filepath.Join(dir, "absent"), want: 1},
		{cpuinfo: filepath.Join(dir, "absent"), err: true},
		{variable: "0", cpuinfo: metal, err: true},
		{variable: "2.5", cpuinfo: metal, err: true},
		{variable: "-1", cpuinfo: metal, err: true},
	} {
		got, err := readSlowFactor(tt.variable, tt.cpuinfo)
		if (err != nil) != tt.err || int64(got) != tt.want {
			t.Errorf("readSlowFactor(%q, %s) = %d, %v; want %d, error: %t", tt.variable, filepath.Base(tt.cpuinfo), int64(got), err, tt.want, tt.err)
		}
	}
}

func TestPrebuilt(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"evictd": 0o755, "hog": 0o644} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv(ProgramsEnv, "")
	if got, err := Prebuilt("evictd"); got != nil || err != nil {
		t.Errorf("Prebuilt without a directory = %q, %v; want none", got, err)
	}
	t.Setenv(ProgramsEnv, dir)
	if got, err := Prebuilt("evictd"); err != nil || len(got) != 1 || got[0] != filepath.Join(dir, "evictd") {
		t.Errorf("Prebuilt(evictd) = %q, %v; want it in %s", got, err, dir)
	}
	_, err := Prebuilt("evictd", "evictctl", "hog")
	if err == nil || !strings.HasSuffix(err.Error(), "no executable evictctl, hog") {
		t.Errorf("Prebuilt of missing executables = %v; want an error that names evictctl and hog", err)
	}
}
