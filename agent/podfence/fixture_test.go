package podfence

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/kerneltest"
)

// These tests make real cgroups.

const (
	testUID  = "8f2a6d0e-31c4-4c1a-9d57-0e8f2a6d31c4"
	testBoot = "3c2b7bd4-1b7d-4d3e-9a55-5d6b1f6f8a10"
)

// testPod is a pod's cgroup and that of its container, below a kubepods of the test.
type testPod struct {
	t          testing.TB
	hierarchy  *cgroup.Hierarchy
	root       kernel.FS
	uid, path  string
	containers []string
	files      []cgroup.LimitFile // that the pod's cgroup has
}

// eachHierarchy runs a test on the hierarchy of this machine with the pids controller,
// and on its v2 hierarchy, which on a hybrid node is another.
func eachHierarchy(t *testing.T, test func(t *testing.T, h *cgroup.Hierarchy)) {
	h := native(t)
	t.Run(h.Version.String(), func(t *testing.T) { test(t, h) })
	if h.Version == cgroup.Hybrid {
		t.Run("unified", func(t *testing.T) { test(t, unified(h)) })
	}
}

func native(t testing.TB) *cgroup.Hierarchy {
	t.Helper()
	h, err := cgroup.Find("/sys/fs/cgroup")
	if err != nil {
		t.Skip("needs cgroups: ", err)
	}
	if h.Version != cgroup.V2 && h.Pids == "" {
		t.Skip("needs the pids controller")
	}
	return h
}

// unified is the v2 hierarchy of a hybrid node, which lacks the pids controller.
func unified(h *cgroup.Hierarchy) *cgroup.Hierarchy {
	return &cgroup.Hierarchy{Version: cgroup.V2, Memory: h.Unified, Unified: h.Unified}
}

func newPod(t testing.TB, h *cgroup.Hierarchy) *testPod {
	t.Helper()
	p := &testPod{t: t, hierarchy: h, root: h.Pids, uid: testUID}
	if h.Version == cgroup.V2 {
		p.root = h.Memory
	}
	path := kerneltest.Cgroup(t, p.root)
	for _, name := range []string{"kubepods", "burstable", "pod" + testUID, "ctr"} {
		if h.Version == cgroup.V2 {
			// Fails on a hybrid node, where pids is on v1.
			_ = kerneltest.EnableControllers(p.root.Path(path), "pids")
		}
		path = filepath.Join(path, name)
		kerneltest.MakeCgroup(t, p.root.Path(path))
	}
	p.path, p.containers = filepath.Dir(path), []string{path}
	for f := range cgroup.LimitFiles {
		if _, err := os.Stat(p.file(f)); err == nil {
			p.files = append(p.files, f)
		}
	}
	return p
}

func (p *testPod) file(f cgroup.LimitFile) string { return p.root.Path(p.path, f.String()) }

func (p *testPod) write(f cgroup.LimitFile, value string) {
	p.t.Helper()
	if err := os.WriteFile(p.file(f), []byte(value), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// limits returns the content of the pod's files, such as "500 max".
func (p *testPod) limits() string {
	p.t.Helper()
	var all []string
	for _, f := range p.files {
		content, err := os.ReadFile(p.file(f))
		if err != nil {
			p.t.Fatal(err)
		}
		all = append(all, strings.TrimSpace(string(content)))
	}
	return strings.Join(all, " ")
}

// all returns the same value for each of the pod's files.
func (p *testPod) all(value string) string {
	return strings.Join(slices.Repeat([]string{value}, len(p.files)), " ")
}

// remove removes the pod's cgroups. The fixture tolerates that.
func (p *testPod) remove() {
	p.t.Helper()
	for _, path := range []string{p.containers[0], p.path} {
		if err := os.Remove(p.root.Path(path)); err != nil {
			p.t.Fatal(err)
		}
	}
}

func (p *testPod) make() {
	p.t.Helper()
	for _, path := range []string{p.path, p.containers[0]} {
		if err := os.Mkdir(p.root.Path(path), 0o755); err != nil {
			p.t.Fatal(err)
		}
	}
}

// disablePIDs disables the pids controller in the pod's cgroup, which removes pids.max.
func (p *testPod) disablePIDs() {
	p.t.Helper()
	for _, path := range []string{p.path, filepath.Dir(p.path)} {
		if err := os.WriteFile(p.root.Path(path, "cgroup.subtree_control"), []byte("-pids"), 0); err != nil {
			p.t.Fatal(err)
		}
	}
}

func (p *testPod) prepare(t *Table) *Fence {
	p.t.Helper()
	f, err := t.Prepare(p.uid, p.containers)
	if err != nil {
		p.t.Fatal(err)
	}
	return f
}

// mkdir returns the error of making another container's cgroup.
func (p *testPod) mkdir() error {
	dir := p.root.Path(p.path, "new")
	err := os.Mkdir(dir, 0o755)
	if err == nil {
		os.Remove(dir)
	}
	return err
}

// startForker starts a process in the container's cgroup. The function that it returns lets
// it fork, and returns the error of that.
func (p *testPod) startForker() (fork func() error) {
	p.t.Helper()
	perl, err := exec.LookPath("perl")
	if err != nil {
		p.t.Skip("needs perl: ", err)
	}
	const script = `$| = 1; while (<STDIN>) { my $p = fork; if (defined $p && !$p) { exit } print defined $p ? 0 : $!+0, "\n"; wait }`
	cmd := exec.Command("sh", "-c", fmt.Sprintf("echo $$ > %s && exec %s -e '%s'", p.root.Path(p.containers[0], "cgroup.procs"), perl, script))
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	lines := bufio.NewReader(out)
	return func() error {
		p.t.Helper()
		io.WriteString(in, "\n")
		line, err := lines.ReadString('\n')
		if err != nil {
			p.t.Fatal(err)
		}
		errno, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil {
			p.t.Fatal(err)
		}
		if errno == 0 {
			return nil
		}
		return unix.Errno(errno)
	}
}

func marksFile(t testing.TB) string { return filepath.Join(t.TempDir(), "run", "fences") }

// openTable opens a table that must have no problem, and closes it when the test ends.
func openTable(t testing.TB, h *cgroup.Hierarchy, file string) (*Table, []Left) {
	t.Helper()
	table, found, err := Open(Options{File: file, BootID: testBoot, Hierarchy: h})
	if err != nil || found.Problem != nil {
		t.Fatalf("Open = %v, %v", found.Problem, err)
	}
	t.Cleanup(func() { table.Close() })
	return table, found.Fences
}

// marksIn returns the marks in a file.
func marksIn(t testing.TB, file string) []slotMark {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	marks, err := parseMarks(content, testBoot)
	if err != nil {
		t.Fatal(err)
	}
	return marks
}

func mkdirTemp(t testing.TB, parent string) (string, error) {
	dir, err := os.MkdirTemp(parent, "evictd-test-")
	if err == nil {
		t.Cleanup(func() { os.RemoveAll(dir) })
	}
	return dir, err
}
