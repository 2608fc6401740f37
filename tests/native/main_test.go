// Package native_test runs evictd as its users do: as a process, against a real containerd, with pods that take
// real memory. What it does is seen from outside, by what lives and by what its control socket tells.
//
// The pressure is mostly on allocatableMemory.available, whose capacity is the memory limit of the node's own
// kubepods cgroup: a few hundred MiB are enough then, and whatever else the machine does has no part in it. The
// tests that need memory.available leave room for that part.
//
// Nothing here sleeps to let something happen: a test waits for a condition, and fails when it does not come. That
// something does not happen is concluded from evictd having looked again several times since.
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

// executables are what the tests run.
type executables struct{ evictd, evictctl, hog string }

// programs finds or builds them, once for all tests and not before one needs them.
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

// patience is how long what is waited for may take: far longer than it should, as the machine may be busy.
var patience = node.Slow(20 * time.Second)

// eventually waits for a condition.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after %v: no %s", patience, what)
		}
	}
}
