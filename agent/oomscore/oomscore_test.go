package oomscore

import (
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/kerneltest"
	"github.com/evictd/evictd/kernel/process"
)

// container makes a cgroup with a number of processes.
func container(t *testing.T, processes int) (*cgroup.Hierarchy, Container, []int) {
	t.Helper()
	h, err := cgroup.Find("/sys/fs/cgroup")
	if err != nil {
		t.Skip("needs cgroups: ", err)
	}
	c := Container{Pod: "default/p", Name: "c", Cgroup: kerneltest.Cgroup(t, h.Memory)}
	dir := h.Memory.Path(c.Cgroup)
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		t.Fatal(err)
	}
	c.ID = st.Ino
	var pids []int
	for range processes {
		cmd := exec.Command("sleep", "1000")
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		pids = append(pids, cmd.Process.Pid)
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0); err != nil {
			t.Fatal(err)
		}
	}
	return h, c, pids
}

// set sets the oom_score_adj of a process.
func set(t *testing.T, pid, score int) {
	t.Helper()
	s, err := process.OpenOOMScoreAdj("/proc", pid)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Set(score); err != nil {
		t.Fatal(err)
	}
}

func TestInspectAndEnforce(t *testing.T) {
	h, c, pids := container(t, maxOpen+3)
	c.Wanted = 991
	for _, pid := range pids {
		set(t, pid, 991)
	}
	set(t, pids[0], 992)
	set(t, pids[1], 999)
	scores, err := Inspect(h, "/proc", c)
	if err != nil {
		t.Fatal(err)
	}
	if scores.Processes != len(pids) || scores.Min != 991 || scores.Max != 999 || scores.Mismatched != 2 {
		t.Errorf("Inspect() = %+v; want %d processes from 991 to 999, 2 of them wrong", scores, len(pids))
	}
	if v2 := h.Version == cgroup.V2; (scores.Group != nil) != v2 {
		t.Errorf("Inspect().Group = %v on cgroup %v; want it on v2 only", scores.Group, h.Version)
	}
	c.Wanted = 1000
	if changed, err := Enforce(h, "/proc", c); changed != len(pids) || err != nil {
		t.Errorf("Enforce() = %d, %v; want %d", changed, err, len(pids))
	}
	if scores, err = Inspect(h, "/proc", c); err != nil || scores.Min != 1000 || scores.Mismatched != 0 {
		t.Errorf("Inspect() after Enforce() = %+v, %v; want 1000 for all", scores, err)
	}
	if changed, err := Enforce(h, "/proc", c); changed != 0 || err != nil {
		t.Errorf("second Enforce() = %d, %v; want 0", changed, err)
	}
}

// A container that is gone, or whose path names a different cgroup, is not changed.
func TestGone(t *testing.T) {
	h, c, pids := container(t, 1)
	set(t, pids[0], 7)
	c.Wanted = 8
	c.ID++
	if _, err := Inspect(h, "/proc", c); !errors.Is(err, cgroup.ErrGone) {
		t.Errorf("Inspect() of another cgroup = %v; want ErrGone", err)
	}
	if changed, err := Enforce(h, "/proc", c); changed != 0 || !errors.Is(err, cgroup.ErrGone) {
		t.Errorf("Enforce() of another cgroup = %d, %v; want ErrGone", changed, err)
	}
	c.Cgroup += "-gone"
	if _, err := Inspect(h, "/proc", c); !errors.Is(err, cgroup.ErrGone) {
		t.Errorf("Inspect() of a missing cgroup = %v; want ErrGone", err)
	}
}

// A score that can't be lowered is logged once; scores that can be raised are raised.
func TestEnforcer(t *testing.T) {
	h, c, pids := container(t, 2)
	// A process can lower its score to the value that a privileged process gave it. Without
	// that privilege on this machine, that is the score that it started with.
	c.Wanted = -1000
	set(t, pids[0], 500)
	var logged strings.Builder
	changed := 0
	e := New(Options{
		Hierarchy: h, Procfs: "/proc", Containers: func() []Container { return []Container{c} }, Changed: func(n int) { changed += n },
		Log: slog.New(slog.NewTextHandler(&logged, nil)),
	})
	e.enforceAll()
	e.enforceAll()
	_, err := Enforce(h, "/proc", c)
	refusals := strings.Count(logged.String(), "could not correct")
	if may := err == nil; may && (changed != 2 || refusals != 0) || !may && (changed != 0 || refusals != 1) {
		t.Errorf("changed %d, refused %d times with %v: want 2 and 0 with the privilege, 0 and 1 without:\n%s", changed, refusals, err, logged.String())
	}
	changed, c.Wanted = 0, 1000
	e.enforceAll()
	if changed != 2 {
		t.Errorf("%d raised; want 2:\n%s", changed, logged.String())
	}
}
