package service_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent"
	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/shutdown/logind"
	"github.com/evictd/evictd/kernel/kerneltest"
)

// directive is a line of a unit (systemd.syntax(7)).
type directive struct {
	section, name, value string
	line                 int
	// explained means that there is a comment above the directive or its block of lines.
	explained bool
}

// unit has the directives of a unit file in order.
type unit []directive

// parseUnit parses a unit file. It fails for continued lines.
func parseUnit(text string) (unit, error) {
	var u unit
	section, explained, n := "", false, 0
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		n++
		line := lines.Text()
		switch {
		case line == "":
			explained = false
		case line[0] == '#':
			explained = true
		case line[0] == '[' && strings.HasSuffix(line, "]"):
			section, explained = line[1:len(line)-1], false
		default:
			name, value, ok := strings.Cut(line, "=")
			if !ok || section == "" || strings.HasSuffix(value, `\`) || name != strings.TrimSpace(name) {
				return nil, fmt.Errorf("line %d: %q is not a directive", n, line)
			}
			u = append(u, directive{section, name, value, n, explained})
		}
	}
	return u, nil
}

// all returns the values of a directive in order.
func (u unit) all(name string) (values []string) {
	for _, d := range u {
		if d.name == name {
			values = append(values, d.value)
		}
	}
	return values
}

// capabilities returns the capability bounding set, sorted.
func (u unit) capabilities() []string {
	return slices.Sorted(slices.Values(strings.Fields(strings.Join(u.all("CapabilityBoundingSet"), " "))))
}

func TestParseUnit(t *testing.T) {
	got, err := parseUnit("# a\n[Unit]\nDescription=x = y\n\n[Service]\n# why\nType=notify\nUser=root\n\nGroup=\n")
	want := unit{
		{"Unit", "Description", "x = y", 3, false},
		{"Service", "Type", "notify", 7, true},
		{"Service", "User", "root", 8, true},
		{"Service", "Group", "", 10, false},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(directive{})); diff != "" || err != nil {
		t.Errorf("parseUnit() = %v, (-want +got):\n%s", err, diff)
	}
	for _, bad := range []string{"Type=notify\n", "[Service]\nType\n", "[Service]\nType =notify\n", "[Service]\nExecStart=a \\\nb\n"} {
		if got, err := parseUnit(bad); err == nil {
			t.Errorf("parseUnit(%q) = %v; want an error", bad, got)
		}
	}
}

// deployDir returns the directory of the files to install.
func deployDir() string {
	if dir := os.Getenv("EVICTD_TEST_DEPLOY"); dir != "" {
		return dir
	}
	return filepath.Join("..", "..", "deploy")
}

func readUnit(t *testing.T, name string) unit {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(deployDir(), "systemd", name))
	if err != nil {
		t.Fatal(err)
	}
	u, err := parseUnit(string(text))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return u
}

// TestDirectivesAreExplained: each directive has a comment with its reason, and each capability a row in the README.
func TestDirectivesAreExplained(t *testing.T) {
	for _, name := range []string{"evictd.service", "evictd.slice", "evictd-kube.service", "evictd-kube.conf"} {
		for _, d := range readUnit(t, name) {
			if (d.section == "Service" || d.section == "Slice") && !d.explained {
				t.Errorf("%s:%d: %s= has no comment that gives its reason", name, d.line, d.name)
			}
		}
	}
	section := readmeSection(t, "## Capabilities")
	for _, c := range readUnit(t, "evictd.service").capabilities() {
		if !strings.Contains(section, "| "+c+" |") {
			t.Errorf("deploy/README.md does not explain %s", c)
		}
	}
	for _, row := range regexp.MustCompile(`(?m)^\| (CAP_\w+) \|`).FindAllStringSubmatch(section, -1) {
		if !slices.Contains(readUnit(t, "evictd.service").capabilities(), row[1]) {
			t.Errorf("deploy/README.md explains %s, which the unit does not have", row[1])
		}
	}
}

// TestSocketGroup: evictd may make the system calls with which it gives its socket to the group of evictd-kube. The
// last filter counts, and os.Lchown makes another call on architectures without lchown(2).
func TestSocketGroup(t *testing.T) {
	filters := readUnit(t, "evictd.service").all("SystemCallFilter")
	last := strings.Fields(filters[len(filters)-1])
	for _, call := range []string{"lchown", "fchownat"} {
		if !slices.Contains(last, call) {
			t.Errorf("last SystemCallFilter= is %q; want %s in it", last, call)
		}
	}
	groups, user := readUnit(t, "evictd-kube.conf").all("SupplementaryGroups"), readUnit(t, "evictd-kube.service").all("Group")
	if len(user) != 1 || !slices.Equal(groups, user) {
		t.Errorf("evictd is a member of %q, evictd-kube of %q; want one group", groups, user)
	}
}

// readmeSection returns the text under a heading.
func readmeSection(t *testing.T, heading string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(deployDir(), "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, after, ok := strings.Cut(string(text), "\n"+heading+"\n")
	if !ok {
		t.Fatalf("deploy/README.md has no heading %q", heading)
	}
	section, _, _ := strings.Cut(after, "\n## ")
	return section
}

// TestMemoryMin: the slice has the memory.min of the service, because a parent's limits the effective one.
func TestMemoryMin(t *testing.T) {
	service, slice := readUnit(t, "evictd.service"), readUnit(t, "evictd.slice")
	if got := service.all("Slice"); !slices.Equal(got, []string{"evictd.slice"}) {
		t.Errorf("the service is in %q; want evictd.slice", got)
	}
	own, above := service.all("MemoryMin"), slice.all("MemoryMin")
	if len(own) != 1 || !slices.Equal(own, above) {
		t.Errorf("MemoryMin= of the service is %q, of its slice %q; want one value in both", own, above)
	}
}

// TestPathsAgree: the directories of the unit are those that evictd uses without flags.
func TestPathsAgree(t *testing.T) {
	u, o := readUnit(t, "evictd.service"), agent.Defaults()
	for _, tt := range []struct {
		directive, under string
		want             []string
	}{
		{"StateDirectory", "/var/lib", []string{o.StateDir}},
		{"RuntimeDirectory", "/run", []string{filepath.Dir(o.ControlSocket), logind.DropInDir}},
	} {
		got := u.all(tt.directive)
		for i := range got {
			got[i] = filepath.Join(tt.under, got[i])
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s= below %s: %q; want %q", tt.directive, tt.under, got, tt.want)
		}
	}
	if dir := filepath.Dir(o.ControlSocket); filepath.Dir(o.KubeSocket) != dir || filepath.Dir(o.FenceFile) != dir {
		t.Errorf("the socket for evictd-kube is %s and the fence marks are %s; want both in %s", o.KubeSocket, o.FenceFile, dir)
	}
	// The fence marks must survive the end of evictd.
	if got := u.all("RuntimeDirectoryPreserve"); !slices.Equal(got, []string{"yes"}) {
		t.Errorf("RuntimeDirectoryPreserve=%q; want yes", got)
	}
	// Fences are written to cgroups.
	if got := u.all("ProtectControlGroups"); len(got) > 0 {
		t.Errorf("ProtectControlGroups=%q; want none", got)
	}
	// The reload has no paths: evictd reloads the files with which it was started.
	if got := u.all("ExecReload"); !slices.Equal(got, []string{"/usr/bin/evictctl reload"}) {
		t.Errorf("ExecReload=%q; want /usr/bin/evictctl reload", got)
	}
	// No restart after errors that a restart can't fix (cmd/evictd: exitUsage, exitConfig).
	if got := u.all("RestartPreventExitStatus"); !slices.Equal(got, []string{"2 78"}) {
		t.Errorf("RestartPreventExitStatus=%q; want the exit codes of wrong flags and of a wrong configuration", got)
	}
	if got := u.all("ExecStart"); !slices.Equal(got, []string{"/usr/bin/evictd"}) {
		t.Errorf("ExecStart=%q; want /usr/bin/evictd without flags", got)
	}
}

// TestConfiguration: the installed configuration is valid and in dry run.
func TestConfiguration(t *testing.T) {
	path := filepath.Join(deployDir(), "evictd.yaml")
	c, err := config.Load(config.Options{Path: path, PathGiven: true})
	if err != nil {
		t.Fatal(err)
	}
	if !c.DryRun || c.Origin("dryRun") != config.OriginFile {
		t.Errorf("dryRun is %t, by %s; want true, by the file", c.DryRun, c.Origin("dryRun"))
	}
	// The examples in its comments are valid too.
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	full := regexp.MustCompile(`(?m)^#( *\w+(\.\w+)?: ?|\w+:$)`).ReplaceAllString(string(text), "$1")
	if full == string(text) {
		t.Fatal("the configuration has no example in a comment")
	}
	examples := filepath.Join(t.TempDir(), "examples.yaml")
	if err := os.WriteFile(examples, []byte(full), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err = config.Load(config.Options{Path: examples, PathGiven: true})
	if err != nil {
		t.Fatalf("with the examples: %v\n%s", err, full)
	}
	if len(c.EvictionSoft) == 0 || c.RuntimeEndpoint == "" {
		t.Errorf("with the examples: evictionSoft %v, runtimeEndpoint %q; want both", c.EvictionSoft, c.RuntimeEndpoint)
	}
}

// TestInstall: the commands in the README install all files, evictd-kube's too. When they are run again, they keep the operator's
// configuration. Others remove all files again.
func TestInstall(t *testing.T) {
	var script []string
	for line := range strings.Lines(readmeSection(t, "## Install") + readmeSection(t, "## evictd-kube as a unit")) {
		if command, ok := strings.CutPrefix(line, "    "); ok && strings.Contains(command, "install ") && strings.Contains(command, "$DESTDIR") {
			script = append(script, command)
		}
	}
	root, dest := t.TempDir(), t.TempDir()
	for _, binary := range []string{"evictd", "evictctl", "evictd-kube"} {
		kerneltest.Write(t, root, map[string]string{".build/" + binary: "#!/bin/sh\n"})
	}
	deploy, err := filepath.Abs(deployDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(deploy, filepath.Join(root, "deploy")); err != nil {
		t.Fatal(err)
	}
	install := func() {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "sh", "-e", "-c", strings.Join(script, ""))
		cmd.Dir, cmd.Env = root, append(os.Environ(), "DESTDIR="+dest)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", script, err, out)
		}
	}
	install()
	for _, file := range []string{
		"usr/bin/evictd", "usr/bin/evictctl", "usr/lib/systemd/system/evictd.service", "usr/lib/systemd/system/evictd.slice", "etc/evictd/config.yaml",
		"usr/bin/evictd-kube", "usr/lib/systemd/system/evictd-kube.service", "usr/lib/systemd/system/evictd.service.d/evictd-kube.conf", "usr/lib/sysusers.d/evictd-kube.conf",
	} {
		if _, err := os.Stat(filepath.Join(dest, file)); err != nil {
			t.Errorf("after the installation: %v", err)
		}
	}
	const own = "dryRun: false\n"
	configuration := filepath.Join(dest, agent.Defaults().ConfigPath)
	if err := os.WriteFile(configuration, []byte(own), 0o600); err != nil {
		t.Fatal(err)
	}
	install()
	if got, err := os.ReadFile(configuration); string(got) != own || err != nil {
		t.Errorf("after an upgrade the configuration is %q, %v; want %q, the operator's", got, err, own)
	}

	kerneltest.Write(t, dest, map[string]string{"etc/evictd/evictd-kube.kubeconfig": "", "var/lib/evictd/state.json": ""})
	removeInstalled(t, dest)
}

// removeInstalled removes from dest what the README says; the test fails unless that is all.
func removeInstalled(t *testing.T, dest string) {
	t.Helper()
	for line := range strings.Lines(readmeSection(t, "### Remove the units")) {
		arguments, ok := strings.CutPrefix(line, "    rm ")
		if !ok {
			continue
		}
		for _, path := range strings.Fields(strings.TrimPrefix(arguments, "-r ")) {
			if _, err := os.Stat(filepath.Join(dest, path)); err != nil {
				t.Errorf("the README removes a file that was not installed: %v", err)
			}
			if err := os.RemoveAll(filepath.Join(dest, path)); err != nil {
				t.Error(err)
			}
		}
	}
	err := filepath.WalkDir(dest, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			t.Errorf("after the removal there is %s", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// mostExposed and kubeMostExposed are the maximum exposure levels of systemd-analyze security, times ten.
const mostExposed, kubeMostExposed = 35, 11

// TestExposure: the exposure level of each unit is at most its maximum, and the README explains each remaining point.
func TestExposure(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("needs systemd-analyze: ", err)
	}
	for _, tt := range []struct {
		unit, section string
		most          int
	}{
		{"evictd.service", "## What stays exposed", mostExposed},
		{"evictd-kube.service", "## evictd-kube as a unit", kubeMostExposed},
	} {
		stays := exposed(t, tt.unit, tt.most)
		var explained []string
		for _, row := range regexp.MustCompile("(?m)^\\| `(.+?)` \\| .*\\w").FindAllStringSubmatch(readmeSection(t, tt.section), -1) {
			explained = append(explained, strings.ReplaceAll(row[1], `\|`, "|"))
		}
		slices.Sort(explained)
		if diff := cmp.Diff(stays, explained); diff != "" {
			t.Errorf("what stays exposed of %s, and what deploy/README.md explains (-stays +explained):\n%s", tt.unit, diff)
		}
	}
}

// exposed returns the names of the remaining points of a unit, sorted. The test fails if its level is above the maximum.
func exposed(t *testing.T, name string, most int) (stays []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	path := filepath.Join(deployDir(), "systemd", name)
	cmd := exec.CommandContext(ctx, "systemd-analyze", "security", "--offline=yes", "--no-pager", "--json=short", fmt.Sprintf("--threshold=%d", most), path)
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("systemd-analyze security --threshold=%d %s: %v", most, name, err)
	}
	var verdicts []struct {
		Set         bool
		Name        string
		Description string
		Exposure    *string
	}
	if err := json.Unmarshal(out, &verdicts); err != nil {
		t.Fatalf("systemd-analyze security: %v: %s", err, out)
	}
	for _, v := range verdicts {
		if !v.Set && v.Exposure != nil {
			stays = append(stays, v.Name)
		}
	}
	slices.Sort(stays)
	return stays
}

// capabilityNames has the numbers of the capabilities in the unit.
var capabilityNames = map[string]int{
	"CAP_KILL": unix.CAP_KILL, "CAP_SYS_PTRACE": unix.CAP_SYS_PTRACE, "CAP_SYS_RESOURCE": unix.CAP_SYS_RESOURCE,
	"CAP_BPF": unix.CAP_BPF, "CAP_PERFMON": unix.CAP_PERFMON, "CAP_DAC_READ_SEARCH": unix.CAP_DAC_READ_SEARCH,
}

// capabilityMask returns a set of capabilities as in /proc/PID/status.
func capabilityMask(t *testing.T, names []string) string {
	t.Helper()
	var mask uint64
	for _, name := range names {
		bit, ok := capabilityNames[name]
		if !ok {
			t.Fatalf("no number for %s", name)
		}
		mask |= 1 << bit
	}
	return fmt.Sprintf("%016x", mask)
}
