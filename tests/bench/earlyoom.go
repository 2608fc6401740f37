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

// earlyoomContender is earlyoom as Debian's unit runs it (unprivileged, nice -20), but without CAP_KILL. It runs as the
// same user as the victims, which no other process has, so that the kernel does not let it kill anything else.
type earlyoomContender struct {
	testbed    *testbed
	executable string
	version    string
	scale      float64 // the total that earlyoom's percentages refer to, divided by MemTotal
	process    *daemon.Process
}

// hogUser is the user of the victims and of earlyoom. No other process may run as it.
const victimUser = 61234

// newEarlyoom returns errNotFound if earlyoom is not installed. earlyoom converts a size to percentages, which refer to
// MemTotal before version 1.8, and to the memory of user space since. A dry run shows which.
func newEarlyoom(ctx context.Context, s *testbed) (*earlyoomContender, error) {
	e := &earlyoomContender{testbed: s, scale: 1}
	var err error
	if e.executable, err = exec.LookPath(s.earlyoom); err != nil {
		return nil, fmt.Errorf("%w: %w", errNotFound, err)
	}
	if err := unusedUser(victimUser); err != nil {
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

// calibrate sets version and scale from the output of earlyoom at its start:
//
//	earlyoom v1.7
//	mem total: 24105 MiB, swap total:    0 MiB
//	mem avail: 23483 of 24105 MiB (97.42%), swap free:    0 of    0 MiB ( 0.00%)
func (e *earlyoomContender) calibrate(said []byte) error {
	version, total, report := earlyoomVersion.FindSubmatch(said), earlyoomTotal.FindSubmatch(said), earlyoomReport.FindSubmatch(said)
	if version == nil || total == nil || report == nil {
		return fmt.Errorf("parse output of earlyoom: %q", said)
	}
	e.version = string(version[1])
	of, _ := strconv.ParseFloat(string(report[1]), 64) // digits, by the regular expression
	all, _ := strconv.ParseFloat(string(total[1]), 64)
	if of <= 0 || all <= 0 {
		return fmt.Errorf("earlyoom reports no memory: %q", said)
	}
	e.scale = of / all
	return nil
}

func (*earlyoomContender) name() string { return earlyoom }

func (*earlyoomContender) meter() meter { return memAvailable }

// begin starts earlyoom with the same limit for SIGTERM and SIGKILL, so that it sends SIGKILL. It prefers the victims'
// process name and avoids all others.
func (e *earlyoomContender) begin(ctx context.Context, threshold int64, _ int) error {
	kib := strconv.FormatInt(int64(float64(threshold)/e.scale)>>10, 10)
	_, err := e.run(ctx, "-M", kib+","+kib, "--prefer", "^hog$", "--avoid", "^([^h]|h[^o]|ho[^g]|hog.)")
	return err
}

// run starts earlyoom and returns its output when it watches memory.
func (e *earlyoomContender) run(ctx context.Context, args ...string) ([]byte, error) {
	name := filepath.Join(e.testbed.dir, "earlyoom.log")
	log, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(e.executable, append([]string{"-r", "3600"}, args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &unix.SysProcAttr{Credential: &syscall.Credential{Uid: victimUser, Gid: victimUser}}
	if e.process, err = daemon.StartService(cmd); err != nil {
		return nil, fmt.Errorf("start earlyoom: %w", err)
	}
	if err := unix.Setpriority(unix.PRIO_PROCESS, e.process.PID(), -20); err != nil {
		return nil, fmt.Errorf("set nice value of earlyoom: %w", err)
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

func (*earlyoomContender) target(context.Context, *victim) error { return nil }

func (*earlyoomContender) done(context.Context, int) (recordTimes, error) { return recordTimes{}, nil }

func (e *earlyoomContender) end() error {
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
			continue // exited in between
		}
		for line := range strings.Lines(string(status)) {
			ids, ok := strings.CutPrefix(line, "Uid:")
			if ok && strings.Contains(ids, "\t"+strconv.FormatUint(uint64(uid), 10)) {
				return fmt.Errorf("process %s runs as user %d; earlyoom could kill it", filepath.Base(dir), uid)
			}
		}
	}
	return nil
}
