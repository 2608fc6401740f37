package service_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestSandbox runs a probe in the unit instead of evictd and checks which operations are permitted, with all
// capabilities and without each of them.
func TestSandbox(t *testing.T) {
	m := install(t)
	delivered := readUnit(t, unitName).capabilities()
	type variant struct {
		name  string
		lines string
		kept  []string
	}
	variants := []variant{{"as delivered", "", delivered}}
	for _, c := range delivered {
		kept := slices.DeleteFunc(slices.Clone(delivered), func(other string) bool { return other == c })
		variants = append(variants, variant{"without " + c, onlyCapabilities(kept), kept})
	}
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			got := m.runProbe(t, v.lines)
			for _, a := range abilities {
				may := !a.never && !slices.ContainsFunc(a.needs, func(c string) bool { return !slices.Contains(v.kept, c) })
				problem, tried := got[a.name]
				switch {
				case !tried:
					t.Errorf("the probe has no result of %s", a.name)
				case may && problem != "":
					t.Errorf("%s: %s; want it to be allowed", a.name, problem)
				case !may && problem == "":
					t.Errorf("%s: allowed; want it to be refused", a.name)
				}
			}
		})
	}
}

// onlyCapabilities returns the lines of a drop-in with only these capabilities.
func onlyCapabilities(names []string) string {
	return "CapabilityBoundingSet=\nCapabilityBoundingSet=" + strings.Join(names, " ") + "\n"
}

// runProbe runs the probe in the unit with further lines, and returns the error of each ability.
func (m *machine) runProbe(t *testing.T, lines string) map[string]string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	const probe, results = "/usr/bin/evictd-probe", "/var/lib/evictd/probe.json"
	copyTo := machine{t: t}
	copyTo.copyFile(self, probe, 0o755)
	at := m.targets(t)
	makeFiles(t)
	m.dropIn(fmt.Sprintf("Type=oneshot\nWatchdogSec=0\nRestart=no\nExecReload=\nExecStart=\nExecStart=%s\nEnvironment=EVICTD_TEST_PROBE=%s EVICTD_TEST_TARGETS=%s\n%s",
		probe, results, at, lines))
	m.must("systemctl", "start", unitName)
	b, err := os.ReadFile(results)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(results); err != nil {
		t.Fatal(err)
	}
	var got map[string]string
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	return got
}

// makeFiles creates the files that the probe reads and removes, and removes the remaining ones at the end of the test.
func makeFiles(t *testing.T) {
	t.Helper()
	var made []string
	t.Cleanup(func() {
		for _, path := range made {
			if err := os.RemoveAll(path); err != nil {
				t.Error(err)
			}
		}
	})
	for _, dir := range []string{privateDir, filepath.Dir(podLogs), podLogs, filepath.Dir(logLink)} {
		err := os.Mkdir(dir, 0o755)
		if err == nil {
			made = append([]string{dir}, made...)
		} else if !errors.Is(err, fs.ErrExist) {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Chown(privateDir, nobody, nobody), os.Chmod(privateDir, 0o700)); err != nil {
		t.Fatal(err)
	}
	made = append([]string{logLink, homeFile}, made...)
	if err := errors.Join(os.WriteFile(filepath.Join(podLogs, "0.log"), nil, 0o600), os.WriteFile(homeFile, nil, 0o600), os.Symlink(podLogs, logLink)); err != nil {
		t.Fatal(err)
	}
}

// nobody is the user ID of containers that do not run as root.
const nobody = 65534

// targets starts a process of another user in each of two cgroups, and removes them at the end of the test.
func (m *machine) targets(t *testing.T) targets {
	t.Helper()
	v := targets("/sys/fs/cgroup/evictd-test-sandbox")
	hog := filepath.Join(programDir, "evictd-test-hog")
	copyTo := machine{t: t}
	copyTo.copyFile(m.hog, hog, 0o755)
	for _, group := range []string{byPidfd, byCgroup} {
		if err := os.MkdirAll(v.path(group), 0o755); err != nil {
			t.Fatal(err)
		}
		dir, err := unix.Open(v.path(group), unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(hog, "pause")
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Credential: &syscall.Credential{Uid: nobody, Gid: nobody}, UseCgroupFD: true, CgroupFD: dir,
		}
		err = cmd.Start()
		unix.Close(dir)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill() // the probe may have killed it
			_ = cmd.Wait()
			if err := os.Remove(v.path(group)); err != nil {
				t.Error(err)
			}
			if group == byPidfd { // cleaned up last
				if err := os.Remove(string(v)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	return v
}
