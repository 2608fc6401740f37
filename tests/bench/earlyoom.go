package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/tests/daemon"
)

// withEarlyoom is earlyoom, as Debian's unit runs it (unprivileged, nice -20), but for the capability to kill: it and the
// hog run as one user that nobody else is, so that the kernel lets it kill nothing but the hog.
type withEarlyoom struct {
	stage      *stage
	executable string
	version    string
	scale      float64 // what its percentages are of, over MemTotal
	process    *daemon.Process
}

// hogUser is the user of the hog and of earlyoom, which must be nobody's.
const hogUser = 61234

// newEarlyoom finds earlyoom and how it counts: before 1.8 its percentages, to which it turns a size, are of MemTotal,
// then of what user space may get.
func newEarlyoom(ctx context.Context, s *stage) (*withEarlyoom, error) {
	e := &withEarlyoom{stage: s, scale: 1}
	var err error
	if e.executable, err = exec.LookPath(s.earlyoom); err != nil {
		return nil, fmt.Errorf("%w: %w", errAbsent, err)
	}
	if err := unusedUser(hogUser); err != nil {
		return nil, err
	}
	said, err := e.run(ctx, "--dryrun", "-M", "1024")
	if err != nil {
		return nil, err
	}
	if err := e.end(); err != nil {
		return nil, err
	}
	return e, e.calibrate(said)
}

var (
	earlyoomVersion = regexp.MustCompile(`(?m)^earlyoom v(\S+)`)
	earlyoomTotal   = regexp.MustCompile(`(?m)^mem total: +(\d+) MiB`)
	earlyoomReport  = regexp.MustCompile(`(?m)^mem avail: +\d+ of +(\d+) MiB`)
)

// calibrate parses what earlyoom says at its start:
//
//	earlyoom v1.7
//	mem total: 24105 MiB, swap total:    0 MiB
//	mem avail: 23483 of 24105 MiB (97.42%), swap free:    0 of    0 MiB ( 0.00%)
func (e *withEarlyoom) calibrate(said []byte) error {
	version, total, report := earlyoomVersion.FindSubmatch(said), earlyoomTotal.FindSubmatch(said), earlyoomReport.FindSubmatch(said)
	if version == nil || total == nil || report == nil {
		return fmt.Errorf("earlyoom said something unexpected: %q", said)
	}
	e.version = string(version[1])
	of, _ := strconv.ParseFloat(string(report[1]), 64) // digits, by the expression
	all, _ := strconv.ParseFloat(string(total[1]), 64)
	if of <= 0 || all <= 0 {
		return fmt.Errorf("earlyoom knows of no memory: %q", said)
	}
	e.scale = of / all
	return nil
}

func (*withEarlyoom) name() string { return earlyoom }

func (*withEarlyoom) meter() meter { return memAvailable }

// begin gives it one limit for SIGTERM and SIGKILL, which makes it SIGKILL. The hog is preferred and all others are
// avoided by name, besides being out of reach.
func (e *withEarlyoom) begin(ctx context.Context, threshold int64, _ int) error {
	kib := strconv.FormatInt(int64(float64(threshold)/e.scale)>>10, 10)
	_, err := e.run(ctx, "-M", kib+","+kib, "--prefer", "^hog$", "--avoid", "^([^h]|h[^o]|ho[^g]|hog.)")
	return err
}

// run starts earlyoom and returns what it has said when it watches.
func (e *withEarlyoom) run(ctx context.Context, args ...string) ([]byte, error) {
	name := filepath.Join(e.stage.dir, "earlyoom.log")
	log, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(e.executable, append([]string{"-r", "3600"}, args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &unix.SysProcAttr{Credential: &syscall.Credential{Uid: hogUser, Gid: hogUser}}
	if e.process, err = daemon.StartProcess(cmd); err != nil {
		return nil, fmt.Errorf("start earlyoom: %w", err)
	}
	if err := unix.Setpriority(unix.PRIO_PROCESS, e.process.PID(), -20); err != nil {
		return nil, fmt.Errorf("give earlyoom the priority that its unit gives it: %w", err)
	}
	for {
		said, err := os.ReadFile(name)
		if err != nil || earlyoomReport.Match(said) {
			return said, err
		}
		select {
		case <-e.process.Done():
			return nil, fmt.Errorf("earlyoom ended (%v): %s", e.process.Err(), bytes.TrimSpace(said))
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (*withEarlyoom) aim(context.Context, *victim) error { return nil }

func (*withEarlyoom) done(context.Context, int) (account, error) { return account{}, nil }

func (e *withEarlyoom) end() error {
	if e.process == nil {
		return nil
	}
	err := terminate(e.process)
	e.process = nil
	return err
}

// unusedUser returns an error if a process has the user id.
func unusedUser(uid uint32) error {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		status, err := os.ReadFile(filepath.Join(dir, "status"))
		if err != nil {
			continue // gone meanwhile
		}
		for line := range strings.Lines(string(status)) {
			ids, ok := strings.CutPrefix(line, "Uid:")
			if ok && strings.Contains(ids, "\t"+strconv.FormatUint(uint64(uid), 10)) {
				return fmt.Errorf("process %s runs as user %d, whom earlyoom could kill", filepath.Base(dir), uid)
			}
		}
	}
	return nil
}
