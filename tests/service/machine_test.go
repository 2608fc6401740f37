package service_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/evictd/evictd/agent"
	"github.com/evictd/evictd/agent/control"
)

const (
	unitName   = "evictd.service"
	unitDir    = "/etc/systemd/system"
	dropInDir  = "/run/systemd/system/evictd.service.d"
	programDir = "/usr/bin"
	// waitTimeout bounds each wait for a condition, on an emulated machine.
	waitTimeout = 90 * time.Second
)

// machine is this machine, with evictd installed.
type machine struct {
	t   *testing.T
	hog string
}

// install installs evictd as described in deploy/README.md, and removes it at the end of the test.
func install(t *testing.T) *machine {
	t.Helper()
	switch _, err := os.Stat("/run/systemd/system"); {
	case os.Getenv("EVICTD_TEST_VM") != "1":
		t.Skip("needs EVICTD_TEST_VM=1: it installs evictd on this machine")
	case os.Geteuid() != 0:
		t.Skip("needs root")
	case err != nil:
		t.Skip("needs a machine that was booted by systemd: ", err)
	}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err != nil {
		t.Skip("needs cgroup v2 alone: ", err)
	}
	programs := os.Getenv("EVICTD_TEST_PROGRAMS")
	if programs == "" {
		t.Fatal("EVICTD_TEST_PROGRAMS is not set: no evictd, evictctl, evictd-kube and hog")
	}
	m := &machine{t: t, hog: filepath.Join(programs, "hog")}
	m.copyFile(filepath.Join(programs, "evictd"), filepath.Join(programDir, "evictd"), 0o755)
	m.copyFile(filepath.Join(programs, "evictctl"), filepath.Join(programDir, "evictctl"), 0o755)
	for _, name := range []string{unitName, "evictd.slice"} {
		m.copyFile(filepath.Join(deployDir(), "systemd", name), filepath.Join(unitDir, name), 0o644)
	}
	m.copyFile(filepath.Join(deployDir(), "evictd.yaml"), agent.Defaults().ConfigPath, 0o644)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("journal of evictd:\n%s", m.journal())
		}
		m.must("systemctl", "stop", unitName)
		for _, dir := range []string{dropInDir, agent.Defaults().StateDir} {
			if err := os.RemoveAll(dir); err != nil {
				t.Error(err)
			}
		}
	})
	m.dropIn("")
	return m
}

// copyFile copies a file, and removes the copy at the end of the test.
func (m *machine) copyFile(from, to string, mode fs.FileMode) {
	m.t.Helper()
	content, err := os.ReadFile(from)
	if err != nil {
		m.t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(to, content, mode); err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() {
		if err := os.Remove(to); err != nil {
			m.t.Error(err)
		}
	})
}

// run runs a command, and returns its output and its exit code.
func (m *machine) run(argv ...string) (out string, code int) {
	m.t.Helper()
	// The test's context has ended when cleanups run.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(m.t.Context()), 2*waitTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "SYSTEMD_PAGER=", "SYSTEMD_COLORS=0", "SYSTEMD_URLIFY=0")
	b, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() < 0) {
		m.t.Fatalf("%s: %v: %s", strings.Join(argv, " "), err, b)
	}
	return strings.TrimSpace(string(b)), cmd.ProcessState.ExitCode()
}

// must runs a command, and fails the test if the exit code is not 0.
func (m *machine) must(argv ...string) string {
	m.t.Helper()
	out, code := m.run(argv...)
	if code != 0 {
		m.t.Fatalf("%s: exit code %d: %s\n%s", strings.Join(argv, " "), code, out, m.journal())
	}
	return out
}

// show returns a property of the service.
func (m *machine) show(property string) string {
	m.t.Helper()
	return m.showOf(unitName, property)
}

func (m *machine) pid() int {
	m.t.Helper()
	pid, err := strconv.Atoi(m.show("MainPID"))
	if err != nil {
		m.t.Fatal(err)
	}
	return pid
}

func (m *machine) restarts() int {
	m.t.Helper()
	n, err := strconv.Atoi(m.show("NRestarts"))
	if err != nil {
		m.t.Fatal(err)
	}
	return n
}

// journal returns the journal of the unit since the boot.
func (m *machine) journal() string {
	m.t.Helper()
	return m.journalOf(unitName)
}

// waitLog waits for a line of the journal with all of the words.
func (m *machine) waitLog(words ...string) {
	m.t.Helper()
	m.eventually("line in the journal with "+strings.Join(words, ", "), func() bool {
		return containsLine(m.journal(), words)
	})
}

func containsLine(text string, words []string) bool {
lines:
	for line := range strings.Lines(text) {
		for _, w := range words {
			if !strings.Contains(line, w) {
				continue lines
			}
		}
		return true
	}
	return false
}

// dropIn replaces the test's drop-in of the unit; "" is the unit as delivered.
func (m *machine) dropIn(lines string) {
	m.t.Helper()
	path := filepath.Join(dropInDir, "test.conf")
	if err := os.MkdirAll(dropInDir, 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("[Service]\n"+lines), 0o644); err != nil {
		m.t.Fatal(err)
	}
	m.must("systemctl", "daemon-reload")
}

// configure writes evictd's configuration.
func (m *machine) configure(settings string) {
	m.t.Helper()
	text := fmt.Sprintf("apiVersion: evictd.io/v1alpha1\nkind: AgentConfiguration\n%s\n", settings)
	if err := os.WriteFile(agent.Defaults().ConfigPath, []byte(text), 0o644); err != nil {
		m.t.Fatal(err)
	}
}

// eventually polls until ok returns true.
func (m *machine) eventually(what string, ok func() bool) {
	m.t.Helper()
	for end := time.Now().Add(waitTimeout); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			m.t.Fatalf("after %v: no %s", waitTimeout, what)
		}
	}
}

// waitStatus waits for a status of evictd that meets a condition, and returns it.
func (m *machine) waitStatus(what string, meets func(*control.Status) bool) (s control.Status) {
	m.t.Helper()
	client := control.NewClient(agent.Defaults().ControlSocket)
	m.eventually(what, func() bool {
		ctx, cancel := context.WithTimeout(m.t.Context(), waitTimeout)
		defer cancel()
		var err error
		s, err = client.Status(ctx)
		if err != nil && !errors.Is(err, control.ErrNotRunning) {
			m.t.Fatal(err)
		}
		return err == nil && meets(&s)
	})
	return s
}

// waitActive waits until the service is active with another process than the given one.
func (m *machine) waitActive(but int) {
	m.t.Helper()
	m.eventually(fmt.Sprintf("service by another process than %d", but), func() bool {
		state, pid := m.show("ActiveState"), m.pid()
		return state == "active" && pid != 0 && pid != but
	})
}
