package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/tests/node"
)

// vmCase is the case of the virtual machines, as the results store it.
const vmCase = "one hog, one calm pod"

// vmContenders is the step vm: evictd, earlyoom and systemd-oomd on the unified hierarchy, with one victim and one pod
// whose memory does not grow.
func vmContenders(ctx context.Context, s *testbed) (err error) {
	if s.machine.Cgroup != "v2" {
		return errors.New("needs the unified hierarchy, for systemd-oomd")
	}
	mine := evictds(s)
	entries := []*entry{{contender: mine[allLanes], wanted: s.bursts}, {contender: mine[pollAlone], wanted: s.bursts}}
	switch e, err := newEarlyoom(ctx, s); {
	case err == nil:
		entries = append(entries, &entry{contender: e, wanted: s.bursts})
	case errors.Is(err, errNotFound):
		fmt.Fprintf(s.out, "\nearlyoom is skipped: %v\n", err)
	default:
		return err
	}
	switch err := checkOomd(s.node); {
	case err == nil:
		for _, title := range []string{oomdDefault, oomdEager} {
			entries = append(entries, &entry{contender: &oomdContender{testbed: s, title: title}, wanted: max(1, s.bursts/2)})
		}
	case errors.Is(err, errNotFound):
		fmt.Fprintf(s.out, "\nsystemd-oomd is skipped: %v\n", err)
	default:
		return err
	}
	undo, err := s.startBystanders([]bystanderSpec{{name: "bystander", anonymous: s.machine.Memory / 32}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, undo()) }()
	if err := s.revive(ctx); err != nil {
		return err
	}
	free, err := available(memAvailable)
	if err != nil {
		return err
	}
	// Below the threshold the victim can take as much again before it reaches the limit of all pods: systemd-oomd needs the
	// pressure that only a limit causes.
	r := crossingCase{section: "vm", name: vmCase, batch: 1, startDelay: node.ScaleTimeout(100 * time.Millisecond)}
	r.workload = workload{drop: free / 5, total: free * 3 / 5}
	return s.runSeries(ctx, r, entries)
}

// oomdContender is systemd-oomd, configured to watch the slice of all pods.
type oomdContender struct {
	testbed    *testbed
	title      string
	configured bool
}

// oomdConfig is a drop-in in /run, which does not survive a reboot.
const oomdConfig = "/run/systemd/oomd.conf.d/evictd-bench.conf"

// checkOomd returns errNotFound if systemd-oomd is not installed or can't watch the pods' cgroups.
func checkOomd(n *node.Node) error {
	if n.Driver() != node.Systemd {
		return fmt.Errorf("%w: it watches systemd units, and the cgroupfs driver creates none for pods", errNotFound)
	}
	if out, err := exec.Command("systemctl", "cat", "systemd-oomd.service").CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", errNotFound, strings.TrimSpace(string(out)))
	}
	return nil
}

func (o *oomdContender) name() string { return o.title }

// meter returns that of evictd: systemd-oomd has no threshold on available memory.
func (*oomdContender) meter() meter { return signalAvailable }

// begin configures and restarts systemd-oomd, and returns when it watches the slice. The default limit is a pressure of
// 60 % over 30 s. oomdEager has 1 % over 1 s, the least that oomd.conf(5) allows.
func (o *oomdContender) begin(ctx context.Context, _ int64, _ int) error {
	config, limit := "[OOM]\n", "0%" // 0 is the limit of oomd.conf, which is its default
	if o.title == oomdEager {
		config, limit = "[OOM]\nDefaultMemoryPressureDurationSec=1s\n", "1%"
	}
	if err := os.MkdirAll(filepath.Dir(oomdConfig), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(oomdConfig, []byte(config), 0o644); err != nil {
		return err
	}
	o.configured = true
	slice := filepath.Base(o.testbed.node.Kubepods())
	for _, args := range [][]string{
		{"set-property", "--runtime", slice, "ManagedOOMMemoryPressure=kill", "ManagedOOMMemoryPressureLimit=" + limit},
		{"restart", "systemd-oomd.service"},
	} {
		if err := systemctl(ctx, args...); err != nil {
			return err
		}
	}
	// systemd sends it the slices over D-Bus after its start.
	for {
		out, err := exec.CommandContext(ctx, "oomctl").CombinedOutput()
		if err == nil && strings.Contains(string(out), slice) {
			return nil
		}
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			return fmt.Errorf("wait until systemd-oomd watches %s: %w: %s", slice, err, out)
		}
	}
}

func (*oomdContender) target(context.Context, *victim) error { return nil }

func (*oomdContender) done(context.Context, int) (recordTimes, error) { return recordTimes{}, nil }

func (o *oomdContender) end() error {
	if !o.configured {
		return nil
	}
	o.configured = false
	ctx, cancel := context.WithTimeout(context.Background(), node.ScaleTimeout(10*time.Second))
	defer cancel()
	slice := filepath.Base(o.testbed.node.Kubepods())
	return errors.Join(
		systemctl(ctx, "stop", "systemd-oomd.service", "systemd-oomd.socket"),
		systemctl(ctx, "set-property", "--runtime", slice, "ManagedOOMMemoryPressure=auto"),
		os.Remove(oomdConfig))
}

func systemctl(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "systemctl", args...)
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("systemctl %s: %w: %s", args[0], err, strings.TrimSpace(string(out)))
	}
	return nil
}
