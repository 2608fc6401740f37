// Package native_test runs evictd as a process against a real containerd, with pods that use real memory. The tests
// observe it from outside: which processes are alive, and what the control socket returns.
//
// Most tests cross a threshold on allocatableMemory.available. Its capacity is the memory limit of the node's own
// kubepods cgroup, so a few hundred MiB are enough, and other processes on the machine have no influence. The tests of
// memory.available leave a margin for other processes.
//
// No test sleeps until something has happened: it waits for a condition, and fails after a timeout. That something
// does not happen is checked after evictd has taken several more readings.
package native_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/evictd/evictd/tests/node"
)

const (
	mebibyte = 1 << 20
	gibibyte = 1 << 30
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "evictd-native-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	programs = sync.OnceValues(func() (executables, error) { return build(dir) })
	return m.Run()
}

// executables are the paths of the programs that the tests run.
type executables struct{ evictd, evictctl, hog string }

// programs finds or builds the executables, once for all tests, when the first test needs them.
var programs func() (executables, error)

func build(dir string) (executables, error) {
	prebuilt, err := node.Prebuilt("evictd", "evictctl", "hog")
	if err != nil {
		return executables{}, err
	}
	if prebuilt != nil {
		return executables{evictd: prebuilt[0], evictctl: prebuilt[1], hog: prebuilt[2]}, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	e := executables{
		evictd: filepath.Join(dir, "evictd"), evictctl: filepath.Join(dir, "evictctl"), hog: filepath.Join(dir, "hog"),
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-o", dir, "./cmd/evictd", "./cmd/evictctl")
	cmd.Dir = filepath.Join("..", "..")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("build evictd: %w: %s", err, out)
	}
	return e, errors.Join(err, node.BuildHog(ctx, e.hog))
}

var (
	// waitTimeout bounds each wait for a condition. It is far longer than any of them takes on an idle machine.
	waitTimeout = node.ScaleTimeout(20 * time.Second)
	// promptLimit is the tolerance for an action that evictd must take without delay.
	promptLimit = node.ScaleTimeout(5 * time.Second)
)

// eventually polls until ok returns true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	const most = 3 // other programs may need the machine, too
	for end := time.Now().Add(most * waitTimeout); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after %v: no %s", most*waitTimeout, what)
		}
	}
}
