package cgroup

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel/kerneltest"
)

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Errorf("%s: not within 10 s", what)
			return
		}
	}
}

// start starts a process that runs until the test ends, and moves it into cgroups.
func start(t *testing.T, dirs ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("cat")
	kerneltest.Start(t, cmd, dirs...)
	return cmd
}

// waitExit fails the test if the process of cmd does not exit within 10 s.
func waitExit(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Errorf("process %d runs after 10 s; want it dead", cmd.Process.Pid)
	}
}

const allocated = 32 << 20

// TestAllocate is the body of a process that other tests start. It allocates memory.
func TestAllocate(t *testing.T) {
	if os.Getenv("EVICTD_TEST_ALLOCATE") == "" {
		return // not started by another test
	}
	in := bufio.NewReader(os.Stdin)
	if _, err := in.ReadString('\n'); err != nil { // wait to be moved into the cgroup
		return
	}
	b, err := unix.Mmap(-1, 0, allocated, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(b); i += 4096 {
		b[i] = 1
	}
	fmt.Println("allocated")
	_, _ = in.ReadString('\n')
}

// startAllocator starts a process in the cgroup dir, waits until it has allocated its
// memory, and returns its pid.
func startAllocator(t *testing.T, dir string) int {
	t.Helper()
	allocator := exec.Command(os.Args[0], "-test.run=^TestAllocate$")
	allocator.Env = append(os.Environ(), "EVICTD_TEST_ALLOCATE=1")
	in, out := kerneltest.Start(t, allocator, dir)
	if _, err := io.WriteString(in, "\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := out.ReadString('\n'); err != nil || line != "allocated\n" {
		t.Fatalf("the process printed %q, %v; want allocated", line, err)
	}
	return allocator.Process.Pid
}
