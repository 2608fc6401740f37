package clusterlabs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/fence/device"
)

// TestDeadline: the agent and its children are killed, also if they ignore SIGTERM, and if they are stopped.
func TestDeadline(t *testing.T) {
	for name, script := range map[string]string{
		"hangs":           "",
		"ignores SIGTERM": `trap "" TERM HUP INT`,
		"is stopped":      `(sleep 0.1; kill -STOP $$) &`,
	} {
		d, dir := newDevice(t, script+"\necho $$ >$dir/agent; sleep 1000 & echo $! >$dir/child\nwait; sleep 1000", nil)
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- d.Off(ctx) }()
		agent, child := pid(t, dir, "agent"), pid(t, dir, "child")
		cancel(errors.New("leadership lost"))
		begun := time.Now()
		err := <-ended
		if err == nil || errors.Is(err, device.ErrRefused) || !strings.Contains(err.Error(), "killed: leadership lost") {
			t.Errorf("%s: Off = %v; want an unknown outcome", name, err)
		}
		// The Lease of leader election expires 5s after its last renewal failed.
		if took := time.Since(begun); took > 3*time.Second {
			t.Errorf("%s: Off returned %s after its context had ended", name, took)
		}
		wantGone(t, agent)
		wantGone(t, child)
	}
	d, _ := newDevice(t, `echo "Status: OFF"; sleep 1000`, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if power, err := d.Status(ctx); power != fence.PowerUnknown || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Status past the deadline = %s, %v; want unknown", power, err)
	}
}

// TestChildSurvives: a child that the agent leaves behind is killed, and does not delay the result.
func TestChildSurvives(t *testing.T) {
	d, dir := newDevice(t, `trap "" TERM; sleep 1000 & echo $! >$dir/child; echo "Status: OFF"; exit 2`, nil)
	begun := time.Now()
	if power, err := d.Status(t.Context()); power != fence.PowerOff || err != nil {
		t.Errorf("Status = %s, %v; want off", power, err)
	}
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("Status took %s", took)
	}
	wantGone(t, pid(t, dir, "child"))
}

// TestChildLeavesGroup: a child in a session of its own keeps the output open. That delays the result only a little.
func TestChildLeavesGroup(t *testing.T) {
	if _, err := exec.LookPath("setsid"); err != nil {
		t.Fatal(err)
	}
	d, dir := newDevice(t, `setsid sh -c 'echo $$ >'$dir'/child; exec sleep 1000' & until [ -s $dir/child ]; do sleep 0.01; done; exit 0`, nil)
	begun := time.Now()
	if err := d.Off(t.Context()); err != nil {
		t.Errorf("Off = %v", err)
	}
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("Off took %s", took)
	}
	child := pid(t, dir, "child")
	if err := unix.Kill(child, unix.SIGKILL); err != nil {
		t.Errorf("the child has ended: %v; the test has tested nothing", err)
	}
}

// TestOutput: 100 MB of output are read, so that the agent can end, and are not kept.
func TestOutput(t *testing.T) {
	d, _ := newDevice(t, `head -c 100000000 /dev/zero; head -c 100000000 /dev/zero >&2; echo "the end" >&2; exit 1`, nil)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := d.Off(t.Context())
	runtime.ReadMemStats(&after)
	if err == nil || !strings.HasSuffix(err.Error(), "the end") || len(err.Error()) > 2*maxOutput {
		t.Errorf("Off = %d bytes; want the end of stderr", len(fmt.Sprint(err)))
	}
	if grew := after.TotalAlloc - before.TotalAlloc; grew > 4<<20 {
		t.Errorf("%d bytes were allocated", grew)
	}
}

// TestInputNotRead: an agent that closes stdin, or never reads it, is judged by its exit status.
func TestInputNotRead(t *testing.T) {
	parameters := map[string]string{} // more than fits into a pipe
	for i := range 100 {
		parameters[fmt.Sprintf("p%d", i)] = strings.Repeat("x", maxInputLength)
	}
	for name, script := range map[string]string{"closed": "exec 0<&-; sleep 0.1", "not read": "sleep 0.1"} {
		for code, want := range map[int]bool{0: true, 1: false} {
			d, _ := newDevice(t, fmt.Sprintf("%s; exit %d", script, code), parameters)
			if err := d.Off(t.Context()); (err == nil) != want {
				t.Errorf("%s, exit status %d: Off = %v", name, code, err)
			}
		}
	}
}

const maxInputLength = 4096

// TestProc: while an agent and its child run, no argument and no variable of any process has the password.
func TestProc(t *testing.T) {
	const password = "hunter2-in-proc"
	d, dir := newDevice(t, `cat >$dir/in; sleep 1000 & echo $! >$dir/child; echo $$ >$dir/agent; wait`, map[string]string{"passwd": password}, "passwd")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Off(ctx) }()
	agent, child := pid(t, dir, "agent"), pid(t, dir, "child")
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []int{os.Getpid(), agent, child} {
		files = append(files, fmt.Sprintf("/proc/%d/environ", id))
		if read(t, fmt.Sprintf("/proc/%d/cmdline", id)) == "" {
			t.Errorf("process %d has ended", id)
		}
	}
	for _, file := range files {
		if b, _ := os.ReadFile(file); strings.Contains(string(b), password) {
			t.Errorf("%s has the password", file)
		}
	}
	if !strings.Contains(read(t, dir, "in"), password) {
		t.Error("the agent was not given the password")
	}
	cancel()
	if err := <-ended; err == nil || strings.Contains(err.Error(), password) {
		t.Errorf("Off = %v; want an error without the password", err)
	}
}
