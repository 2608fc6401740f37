package cluster

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel/kerneltest"
	"github.com/evictd/evictd/tests/node"
)

// nodeAddress is the address of the node. The kubelet refuses one of 127.0.0.0/8.
const nodeAddress = "192.0.2.1"

// namespacesEnv is the environment variable with the directory of the programs in the child
// process of inNamespaces.
const namespacesEnv = "CLUSTER_TEST_PROGRAMS"

// inNamespaces reports whether the test runs in mount and network namespaces of its own.
// If not, it runs the test again in a child process that does, and fails if that fails.
//
// The ports, mounts and files of a whole cluster are then invisible outside, and the kernel
// removes them with the last process. The cgroups, containerd and the pods are those of
// tests/node. If the test is killed, the kernel kills the child and what that has started;
// the next node removes the rest.
//
// More packages can be built into the directory of the programs.
func inNamespaces(t *testing.T, more ...string) bool {
	t.Helper()
	if os.Getenv(namespacesEnv) != "" {
		return true
	}
	t.Parallel()
	if err := node.Check(""); err != nil {
		t.Skipf("needs %v", err)
	}
	findPrograms(t, etcd, apiServer, controllerManager, scheduler, kubelet, kustomize)
	dir := sharedDir(t)
	buildInto(t, dir, append(more, "./cmd/evictd", "./cmd/evictd-kube", "./tests/hog")...)
	args := []string{"-test.v", "-test.run", "^" + t.Name() + "$"}
	if deadline, ok := t.Deadline(); ok {
		// The child then says where it was, before this process is killed.
		args = append(args, "-test.timeout", (time.Until(deadline) - 5*time.Second).String())
	}
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), namespacesEnv+"="+dir)
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Unshareflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET, // os/exec makes the mounts private
		Pdeathsig:    syscall.SIGKILL,
	}
	if err := cmd.Run(); err != nil {
		t.Errorf("%s in namespaces: %v", t.Name(), err)
	}
	return false
}

// sysctls are the settings of the machine that a kubelet writes
// (pkg/kubelet/cm/container_manager_linux.go: setupKernelTunables).
var sysctls = []string{
	"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
}

// isolate prepares the namespaces: the loopback device has the node's address, /var/lib is
// an empty filesystem, and /var/log, /run/containerd and the settings of the machine that a
// kubelet writes are private. It moves the programs of inNamespaces to /var/lib and returns
// their directory.
func isolate(t *testing.T) string {
	t.Helper()
	startLoopback(t)
	point := kerneltest.MountLoop(t, "ext4", 4<<30, "", "-q")
	// The loop device has the file open until the last process of the namespace has ended.
	if err := os.Remove(filepath.Join(filepath.Dir(point), "image")); err != nil {
		t.Fatal(err)
	}
	bind(t, point, "/var/lib")
	for _, dir := range []string{"log", "run", "tmp", "kubelet", "programs"} {
		if err := os.Mkdir(filepath.Join("/var/lib", dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	bind(t, "/var/lib/log", "/var/log")
	// The sockets of shims are in /run/containerd.
	if err := os.MkdirAll("/run/containerd", 0o711); err != nil {
		t.Fatal(err)
	}
	bind(t, "/var/lib/run", "/run/containerd")
	for _, name := range sysctls {
		path := filepath.Join("/proc/sys", name)
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		copied := filepath.Join("/var/lib/run", strings.ReplaceAll(name, "/", "."))
		if err := os.WriteFile(copied, content, 0o644); err != nil {
			t.Fatal(err)
		}
		bind(t, copied, path)
	}
	t.Setenv("TMPDIR", "/var/lib/tmp")
	const programs = "/var/lib/programs"
	if err := os.CopyFS(programs, os.DirFS(os.Getenv(namespacesEnv))); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(os.Getenv(namespacesEnv)); err != nil {
		t.Fatal(err)
	}
	return programs
}

// bind mounts a file or directory on another in this process's mount namespace, until that
// ends.
func bind(t *testing.T, source, target string) {
	t.Helper()
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		t.Fatalf("mount %s on %s: %v", source, target, err)
	}
}

// startLoopback starts the loopback device of a new network namespace, and adds the node's
// address to it.
func startLoopback(t *testing.T) {
	t.Helper()
	setDevice(t, "lo", unix.SIOCSIFFLAGS, func(r *unix.Ifreq) error { r.SetUint16(unix.IFF_UP); return nil })
	addAddress(t, "lo:1", nodeAddress)
}

// addAddress gives the loopback device a further address, under an alias.
func addAddress(t *testing.T, alias, address string) {
	t.Helper()
	setDevice(t, alias, unix.SIOCSIFADDR, func(r *unix.Ifreq) error { return r.SetInet4Addr(net.ParseIP(address).To4()) })
}

func setDevice(t *testing.T, name string, code uint, set func(*unix.Ifreq) error) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	r, err := unix.NewIfreq(name)
	if err == nil {
		err = set(r)
	}
	if err == nil {
		err = unix.IoctlIfreq(fd, code, r)
	}
	if err != nil {
		t.Fatalf("set up %s: %v", name, err)
	}
}
