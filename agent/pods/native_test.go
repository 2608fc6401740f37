package pods

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/evictd/evictd/cri"
	"github.com/evictd/evictd/cri/critest"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/kerneltest"
)

// TestMain lets the test binary run as a container's process: it allocates 32 MiB, prints a
// line and waits for the end of its standard input.
func TestMain(m *testing.M) {
	if os.Getenv("EVICTD_TEST_CONTAINER") != "" {
		memory := make([]byte, 32<<20)
		for i := range memory {
			memory[i] = 1
		}
		fmt.Println("ready", memory[len(memory)-1])
		bufio.NewReader(os.Stdin).ReadByte()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// makeCgroups creates a cgroup on the host with others below it. They are removed when the
// test ends.
func makeCgroups(t *testing.T, h *cgroup.Hierarchy, below ...string) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: makes a cgroup")
	}
	top := fmt.Sprintf("/evictd-test-%d-pods", os.Getpid())
	at := top
	dirs := []string{h.Memory.Path(at)}
	for _, name := range below {
		at = filepath.Join(at, name)
		dirs = append(dirs, h.Memory.Path(at))
	}
	for _, dir := range dirs {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Skipf("needs a cgroup tree that can be written: %v", err)
		}
		t.Cleanup(func() { os.Remove(dir) })
	}
	if h.Version == cgroup.V2 {
		// On v2 a cgroup has the controllers that its parent enables.
		for _, dir := range dirs[:len(dirs)-1] {
			if err := kerneltest.EnableControllers(dir, "memory", "pids"); err != nil {
				t.Skipf("needs memory and pids in the cgroup tree: %v", err)
			}
		}
	}
	return at
}

// A process in a real cgroup is proven and measured. When it has ended and its cgroup was
// removed, the pod is gone, although the runtime still lists it.
//
// Complexity: the lifetime of one process, with a check after each step.
//
//gocyclo:ignore
func TestNative(t *testing.T) {
	h, err := cgroup.Find("/sys/fs/cgroup")
	if err != nil {
		t.Skipf("needs a cgroup tree: %v", err)
	}
	at := makeCgroups(t, h, "podu1", "c0ffee")

	cmd := exec.Command("/bin/sh", "-c", "read go; exec /proc/"+strconv.Itoa(os.Getpid())+"/exe")
	cmd.Env = append(os.Environ(), "EVICTD_TEST_CONTAINER=1")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	// Memory is charged to the cgroup of the process when it is allocated: a shell waits
	// until it was moved, and then executes the process.
	if err := cmd.Start(); err != nil {
		t.Skipf("needs a shell: %v", err)
	}
	end := func() {
		stdin.Close()
		cmd.Process.Kill()
		cmd.Wait()
	}
	t.Cleanup(end)
	if err := os.WriteFile(h.Memory.Path(at, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0); err != nil {
		t.Skipf("needs a cgroup that a process can be moved to: %v", err)
	}
	fmt.Fprintln(stdin, "go")
	if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		t.Fatal(err)
	}

	runtime := critest.Start(t)
	runtime.AddPod(critest.Pod{
		UID: "u1", CgroupParent: filepath.Dir(at),
		Containers: []critest.Container{{ID: "c0ffee", PID: cmd.Process.Pid}},
	})
	client, err := cri.Connect(runtime.Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	i := New(Options{Hierarchy: h, Procfs: kernel.FS("/proc"), Runtime: NewCRI(client, runtime.Endpoint())})
	defer i.Close()
	if err := i.Sync(context.Background()); err != nil {
		t.Fatal(err)
	}
	s := i.Measure(time.Now())
	c := s.Handles["u1"].Containers[0]
	if c.Cgroup != at || c.Unproven != "" || c.InitStart == 0 {
		t.Errorf("container = %+v; want %s proven", c, at)
	}
	if u := s.Pods[0].Usage; u.Freeable < 32<<20 || u.Memory < u.Freeable || u.PIDs < 1 {
		t.Errorf("usage = %+v; want at least 32 MiB and a task", u)
	}
	// Its parent is not a shim but the test itself, which is guarded anyway.
	if got := i.Guard().Inits[cmd.Process.Pid]; got != "c0ffee" {
		t.Errorf("Inits[%d] = %q; want c0ffee", cmd.Process.Pid, got)
	}

	end()
	if err := os.Remove(h.Memory.Path(at)); err != nil {
		t.Fatal(err)
	}
	if s := i.Measure(time.Now()); len(s.Pods) != 0 {
		t.Errorf("pods after the cgroup has gone = %q; want none", names(s))
	}
	for range 2 { // the runtime still lists it
		if err := i.Sync(context.Background()); err != nil {
			t.Fatal(err)
		}
		if s := i.Measure(time.Now()); len(s.Pods) != 0 {
			t.Errorf("pods after the cgroup has gone, in a new list = %q; want none", names(s))
		}
	}
}

// The cgroups of the host can be scanned.
func TestNativeScan(t *testing.T) {
	h, err := cgroup.Find("/sys/fs/cgroup")
	if err != nil {
		t.Skipf("needs a cgroup tree: %v", err)
	}
	i := New(Options{Hierarchy: h, Procfs: kernel.FS("/proc")})
	defer i.Close()
	if err := i.Sync(context.Background()); err != nil {
		t.Fatal(err)
	}
	got := i.SystemCgroups(5)
	if len(got) == 0 {
		t.Error("SystemCgroups(5) lists nothing on a running host")
	}
	for n := 1; n < len(got); n++ {
		if got[n].Memory > got[n-1].Memory {
			t.Errorf("SystemCgroups(5) = %v; want the largest first", got)
		}
	}
	i.ForeignContainers()
	if _, err := i.KubeletProcesses(); err != nil {
		t.Error(err)
	}
}
