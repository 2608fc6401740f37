package service_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/kernel/process"
)

const (
	kubeUnitName   = "evictd-kube.service"
	kubeconfigPath = "/etc/evictd/evictd-kube.kubeconfig" // LoadCredential=
	// stopTarget stops both units when it is started.
	stopTarget = "evictd-test-stop.target"
)

// TestKubeUnit: evictd-kube ends after evictd, which waits for its last reports, and before the
// network. It is given the time that it needs for them (cmd/evictd-kube: stopTimeout), and the user
// of sysusers.d, with the number that it has in a pod.
func TestKubeUnit(t *testing.T) {
	u := readUnit(t, "evictd-kube.service")
	for _, tt := range []struct{ name, want string }{
		{"Before", "evictd.service"},
		{"After", "network.target"},
		{"TimeoutStopSec", "10s"},
		{"Nice", "-20"},
		{"Slice", "evictd.slice"},
		{"User", "evictd-kube"},
		{"CapabilityBoundingSet", ""},
		{"ExecPaths", "/usr/bin/evictd-kube"},
		{"ExecStart", "/usr/bin/evictd-kube --kubeconfig=${CREDENTIALS_DIRECTORY}/kubeconfig"},
		{"RestartPreventExitStatus", "2"},
	} {
		if got := u.all(tt.name); !slices.Equal(got, []string{tt.want}) {
			t.Errorf("%s=%q; want %s", tt.name, got, tt.want)
		}
	}
	for _, name := range []string{"PartOf", "BindsTo", "Requires", "DynamicUser"} {
		if got := u.all(name); len(got) > 0 {
			t.Errorf("%s=%q; want none", name, got)
		}
	}
	users, err := os.ReadFile(filepath.Join(deployDir(), "systemd", "evictd-kube.sysusers"))
	if err != nil || !strings.Contains(string(users), "\nu evictd-kube 61119 ") {
		t.Errorf("evictd-kube.sysusers: %q, %v; want the user evictd-kube", users, err)
	}
	if base, err := os.ReadFile(filepath.Join(deployDir(), "kubernetes", "base", "config.yaml")); err != nil || !strings.Contains(string(base), " uid: 61119\n") {
		t.Errorf("kubernetes/base/config.yaml: %q, %v; want the user of sysusers.d", base, err)
	}
}

// kube: evictd-kube runs as its unit with a kubeconfig that only root can read, and connects to evictd. It ends after
// evictd. Without a kubeconfig it does not start. Both are stopped at the end.
func (s *lifecycle) kube(t *testing.T) {
	s.installKube(t)
	if out := s.must("systemd-analyze", "verify", kubeUnitName); out != "" {
		t.Errorf("systemd-analyze verify: %s; want no output", out)
	}
	if out, code := s.run("systemd-analyze", "security", "--no-pager", fmt.Sprintf("--threshold=%d", kubeMostExposed), kubeUnitName); code != 0 {
		t.Errorf("systemd-analyze security --threshold=%d: exit code %d: %s", kubeMostExposed, code, out)
	}
	s.must("systemctl", "restart", unitName)
	s.must("systemctl", "start", kubeUnitName)
	// Nothing listens there: evictd-kube has read the kubeconfig, and evictd has accepted its user.
	s.waitStatus("connection of evictd-kube", func(s *control.Status) bool {
		k := s.Kubernetes
		return k != nil && k.Connected && !k.Watching && strings.Contains(k.Error, "https://127.0.0.1:1")
	})
	pid := s.showOf(kubeUnitName, "MainPID")
	status, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		t.Fatal(err)
	}
	environment, err := os.ReadFile("/proc/" + pid + "/environ")
	if err != nil {
		t.Fatal(err)
	}
	boot, err := process.BootID("/proc")
	if want := "BOOT_ID=" + strings.ReplaceAll(boot, "-", "") + "\x00"; err != nil || !strings.Contains(string(environment), want) {
		t.Errorf("environment %q, %v; want %q", environment, err, want)
	}
	uid := s.must("id", "--user", "evictd-kube")
	for _, line := range []string{
		"Uid:\t" + strings.Join([]string{uid, uid, uid, uid}, "\t"), "CapPrm:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2",
	} {
		if !strings.Contains(string(status), line+"\n") {
			t.Errorf("/proc/%s/status has no line %q:\n%s", pid, line, status)
		}
	}

	// One transaction stops both, as a shutdown does; systemctl stop makes one for each.
	s.must("systemctl", "start", stopTarget)
	s.eventually("end of evictd-kube", func() bool { return containsLine(s.journalOf(kubeUnitName), []string{"Stopped", kubeUnitName}) })
	both := s.journalOf(unitName, kubeUnitName)
	if ended, asked := strings.LastIndex(both, "Stopped "+unitName), strings.LastIndex(both, "Stopping "+kubeUnitName); ended < 0 || ended > asked {
		t.Errorf("evictd-kube was stopped before evictd had ended:\n%s", both)
	}
	if !strings.Contains(both, kubeUnitName+": Deactivated successfully") {
		t.Errorf("evictd-kube did not end successfully:\n%s", both)
	}

	if err := os.Remove(kubeconfigPath); err != nil {
		t.Fatal(err)
	}
	s.run("systemctl", "start", kubeUnitName) // fails, or is tried again at once
	s.eventually("failed start without a kubeconfig", func() bool { return s.showOf(kubeUnitName, "ExecMainStatus") == "243" })
	s.must("systemctl", "stop", kubeUnitName)
}

// installKube installs evictd-kube as described in deploy/README.md, until the end of the part.
func (s *lifecycle) installKube(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("journal of evictd-kube:\n%s", s.journalOf(kubeUnitName))
		}
		s.must("systemctl", "daemon-reload")
	})
	systemd := filepath.Join(deployDir(), "systemd")
	s.copyFile(filepath.Join(filepath.Dir(s.hog), "evictd-kube"), filepath.Join(programDir, "evictd-kube"), 0o755)
	s.copyFile(filepath.Join(systemd, kubeUnitName), filepath.Join(unitDir, kubeUnitName), 0o644)
	s.copyFile(filepath.Join(systemd, "evictd-kube.conf"), filepath.Join(unitDir, unitName+".d", "evictd-kube.conf"), 0o644)
	s.copyFile(filepath.Join(systemd, "evictd-kube.sysusers"), "/etc/sysusers.d/evictd-kube.conf", 0o644)
	s.must("systemd-sysusers", "evictd-kube.conf")
	stop := "[Unit]\nConflicts=evictd.service evictd-kube.service\nAfter=evictd.service evictd-kube.service\n"
	if err := os.WriteFile(filepath.Join("/run/systemd/system", stopTarget), []byte(stop), 0o644); err != nil {
		t.Fatal(err)
	}
	kubeconfig := `{"apiVersion":"v1","kind":"Config","current-context":"c","clusters":[{"name":"k","cluster":{"server":"https://127.0.0.1:1"}}],
		"users":[{"name":"u","user":{"token":"t"}}],"contexts":[{"name":"c","context":{"cluster":"k","user":"u"}}]}`
	if err := os.WriteFile(kubeconfigPath, []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	s.configure(fmt.Sprintf("%s\nkube: {uid: %s, gid: %s}", s.settings("100Mi"), s.must("id", "--user", "evictd-kube"), s.must("id", "--group", "evictd-kube")))
	s.must("systemctl", "daemon-reload")
}

// showOf returns a property of a unit.
func (m *machine) showOf(unit, property string) string {
	m.t.Helper()
	return m.must("systemctl", "show", "--value", "--property", property, unit)
}

// journalOf returns the journal of units since the boot, in the order of the lines.
func (m *machine) journalOf(units ...string) string {
	m.t.Helper()
	argv := []string{"journalctl", "--boot", "--no-pager", "--output", "cat"}
	for _, u := range units {
		argv = append(argv, "--unit", u)
	}
	out, _ := m.run(argv...)
	return out
}
