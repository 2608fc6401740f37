package pods

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/cri/critest"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/kerneltest"
)

func TestKubeletProcesses(t *testing.T) {
	for _, tt := range []struct {
		name string
		make func(n *node)
		want string // executables
	}{
		{"none", func(n *node) { n.process(70, 1, "containerd") }, ""},
		{"a kubelet", func(n *node) { n.process(70, 1, "kubelet") }, "/usr/bin/kubelet"},
		{"executable replaced by an upgrade", func(n *node) {
			n.process(70, 1, "kubelet")
			n.link(70, "exe", "/usr/bin/kubelet (deleted)")
		}, "/usr/bin/kubelet"},
		{"k3s", func(n *node) {
			n.process(70, 1, "k3s-server")
			n.link(70, "exe", "/usr/local/bin/k3s")
		}, "/usr/local/bin/k3s"},
		{"another executable, by name and command line", func(n *node) {
			n.process(70, 1, "kubelet")
			n.link(70, "exe", "/hyperkube")
			kerneltest.Write(n.t, n.proc, map[string]string{"70/cmdline": "/hyperkube\x00kubelet\x00--v=2\x00"})
		}, "kubelet"},
		{"name only", func(n *node) {
			n.process(70, 1, "kubelet")
			n.link(70, "exe", "/usr/bin/hog")
			kerneltest.Write(n.t, n.proc, map[string]string{"70/cmdline": "/usr/bin/hog\x00"})
		}, ""},
		{"argument only", func(n *node) {
			n.process(70, 1, "tail")
			kerneltest.Write(n.t, n.proc, map[string]string{"70/cmdline": "tail\x00kubelet\x00"})
		}, ""},
		{"in another pid namespace", func(n *node) {
			n.process(70, 1, "kubelet")
			n.link(70, "ns/pid", "pid:[4026532999]")
		}, ""},
		{"namespaces not readable", func(n *node) {
			n.process(70, 1, "kubelet")
			if err := os.Remove(n.proc + "/70/ns/pid"); err != nil {
				n.t.Fatal(err)
			}
		}, "/usr/bin/kubelet"},
		{"of another user", func(n *node) {
			n.process(70, 1, "kubelet")
			n.users(70, 1000, 1000, 1000, 1000)
		}, ""},
		{"set-user-id, run by another user", func(n *node) {
			n.process(70, 1, "kubelet")
			n.users(70, 1000, 0, 0, 0)
		}, ""},
		{"user unknown", func(n *node) {
			n.process(70, 1, "kubelet")
			kerneltest.Write(n.t, n.proc, map[string]string{"70/status": "Name:\tkubelet\n"})
		}, ""},
		{"root of another user namespace", func(n *node) {
			n.process(70, 1, "kubelet")
			n.link(70, "ns/user", "user:[4026532280]")
		}, ""},
		{"executable of another user", func(n *node) {
			n.process(70, 1, "kubelet")
			n.files = map[string]file{"/usr/bin/kubelet": {1000, 0o755}}
		}, ""},
		{"executable that a group can write", func(n *node) {
			n.process(70, 1, "kubelet")
			n.files = map[string]file{"/usr/bin/kubelet": {0, 0o775}}
		}, ""},
		{"executable that every user can write", func(n *node) {
			n.process(70, 1, "kubelet")
			n.files = map[string]file{"/usr/bin/kubelet": {0, 0o757}}
		}, ""},
		{"in a pod that is not listed yet", func(n *node) {
			n.cgroup("/kubepods/besteffort/podnew/c", 1<<20, 1<<20, 70)
			n.process(70, 1, "kubelet")
			n.setCgroup(70, "/kubepods/besteffort/podnew/c")
		}, ""},
		{"in a pod", func(n *node) {
			p := n.addPod(critest.Pod{Containers: []critest.Container{{PID: 100}}})
			n.process(70, 100, "kubelet")
			n.setCgroup(70, n.path(p, p.Containers[0])+"/deeper")
		}, ""},
		{"in a cgroup with a similar name", func(n *node) {
			p := n.addPod(critest.Pod{CgroupParent: critest.NoCgroupParent, Containers: []critest.Container{{PID: 100}}})
			n.process(70, 1, "kubelet")
			n.setCgroup(70, n.path(p, p.Containers[0])+"0")
		}, "/usr/bin/kubelet"},
		{"a kernel thread", func(n *node) {
			n.process(70, 2, "kubelet")
			if err := os.Remove(n.proc + "/70/exe"); err != nil {
				n.t.Fatal(err)
			}
		}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t, false)
			tt.make(n)
			i := n.synced()
			got, err := i.KubeletProcesses()
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, p := range got {
				names = append(names, p.Executable)
			}
			if strings.Join(names, " ") != tt.want {
				t.Errorf("KubeletProcesses() = %q; want %q", names, tt.want)
			}
		})
	}
	i := New(Options{Procfs: "/nowhere"})
	if got, err := i.KubeletProcesses(); err == nil {
		t.Errorf("KubeletProcesses() without a /proc = %v; want an error", got)
	}
}

// users sets a process's real, effective, saved and filesystem user ID.
func (n *node) users(pid int, ids ...int) {
	n.t.Helper()
	text := "Uid:"
	for _, id := range ids {
		text += fmt.Sprintf("\t%d", id)
	}
	kerneltest.Write(n.t, n.proc, map[string]string{fmt.Sprintf("%d/status", pid): "Name:\tx\n" + text + "\n"})
}

// A process that was found before its container was listed is dropped with the list,
// before the next scan.
func TestKubeletInContainerListedLater(t *testing.T) {
	n := newNode(t, true)
	n.process(70, 1, "kubelet")
	n.setAge(70, time.Second)
	n.setCgroup(70, "/k8s.io/late")
	i := n.synced()
	if what := i.Guard().Protected[70]; what == "" {
		t.Fatal("a kubelet outside the listed containers is not guarded")
	}
	n.addPod(critest.Pod{Containers: []critest.Container{{PID: 100, CgroupsPath: "/k8s.io/late"}}})
	if err := i.Sync(context.Background()); err != nil {
		t.Fatal(err)
	}
	if what := i.Guard().Protected[70]; what != "" {
		t.Errorf("Protected[70] = %q after its container was listed; want none", what)
	}
}

// It runs real processes that are named kubelet.
func TestKubeletOfOtherUsers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: to run processes of other users")
	}
	h, err := cgroup.Find("/sys/fs/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	i := New(Options{Hierarchy: h, Procfs: "/proc"})
	defer i.Close()
	const nobody = 65534
	for _, tt := range []struct {
		name  string
		owner int
		mode  os.FileMode
		attr  syscall.SysProcAttr
		want  bool
	}{
		{"root", 0, 0o755, syscall.SysProcAttr{}, true},
		{"process of another user", 0, 0o755, syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}, false},
		{"file of another user", nobody, 0o755, syscall.SysProcAttr{}, false},
		{"file that every user can write", 0, 0o777, syscall.SysProcAttr{}, false},
		{"root of another user namespace", 0, 0o755, syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: nobody, Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: nobody, Size: 1}},
			Credential:  &syscall.Credential{NoSetGroups: true},
		}, false},
		{"root in a user namespace of root", 0, 0o755, syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}},
		}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pid := runKubelet(t, tt.owner, tt.mode, tt.attr)
			if exe := i.kubeletExecutable(pid); exe == "" {
				t.Fatalf("process %d does not have the name of a kubelet", pid)
			}
			if got := i.IsKubelet(pid); got != tt.want {
				t.Errorf("IsKubelet(%d) = %t; want %t", pid, got, tt.want)
			}
		})
	}
}

// runKubelet runs a copy of sleep named kubelet until the test ends.
func runKubelet(t *testing.T, owner int, mode os.FileMode, attr syscall.SysProcAttr) int {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{filepath.Dir(dir), dir} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(sleep)
	if err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(dir, "kubelet")
	if err := errors.Join(os.WriteFile(at, content, 0o755), os.Chown(at, owner, -1), os.Chmod(at, mode)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(at, "3600")
	attr.Pdeathsig = syscall.SIGKILL
	cmd.SysProcAttr = &attr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return cmd.Process.Pid
}

// Only the first request scans /proc. Later scans run in WatchKubelets on its own thread,
// however many processes users start.
func TestWatchKubelets(t *testing.T) {
	n := newNode(t, true)
	i := n.inventory()
	count := func(maxAge time.Duration) int {
		t.Helper()
		s := i.recentKubeletScan(maxAge)
		if s.err != nil {
			t.Fatal(s.err)
		}
		return len(s.found)
	}
	if got := count(0); got != 0 {
		t.Fatalf("recentKubeletScan() = %d; want none", got)
	}
	n.process(70, 1, "kubelet")
	if got := count(0); got != 0 {
		t.Errorf("recentKubeletScan() without a new scan = %d; want the last result", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	prepared, done := make(chan bool, 1), make(chan error, 1)
	go func() {
		done <- i.WatchKubelets(ctx, func() error {
			prepared <- true
			return nil
		})
	}()
	<-prepared // before the first scan
	for end := time.Now().Add(20 * time.Second); count(time.Hour) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("WatchKubelets() has not found the kubelet after 20s")
		}
	}
	<-i.refresh // a list is requested, which takes over the kubelet
	cancel()
	if err := <-done; err != nil {
		t.Errorf("WatchKubelets() = %v; want nil", err)
	}
}

// Kubelet and Measure return the same value, that of the last list.
func TestKubelet(t *testing.T) {
	n := newNode(t, false)
	n.process(70, 1, "kubelet")
	n.addPod(critest.Pod{Annotations: map[string]string{evict.ConfigSourceAnnotation: "api"}, Containers: []critest.Container{{PID: 100}}})
	i := n.inventory(func(o *Options) { o.KubeletAbsent = true })
	if got := i.Kubelet(); got != (evict.Kubelet{}) {
		t.Errorf("Kubelet() before a list = %+v; want the zero value", got)
	}
	if err := i.Sync(context.Background()); err != nil {
		t.Fatal(err)
	}
	want := evict.Kubelet{Known: true, Absent: true, HasSandboxes: true, Process: "kubelet /usr/bin/kubelet (pid 70)"}
	if got := i.Kubelet(); got != want {
		t.Errorf("Kubelet() = %+v; want %+v", got, want)
	}
	if got := i.Measure(time.Now()).Kubelet; got != want {
		t.Errorf("Measure().Kubelet = %+v; want %+v", got, want)
	}
	without := n.inventory(func(o *Options) { o.Runtime = nil })
	if err := without.Sync(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got := without.Kubelet(); !got.Known || got.HasSandboxes {
		t.Errorf("Kubelet() without a runtime = %+v; want known, without pods", got)
	}
}
