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

// rivalCase is the case of the virtual machines.
const rivalCase = "one hog, one calm pod"

// rivals are evictd, earlyoom and systemd-oomd on the unified hierarchy, each with a hog and a pod that keeps what it has.
func rivals(ctx context.Context, s *stage) (err error) {
	if s.machine.Cgroup != "v2" {
		return errors.New("needs the unified hierarchy, for systemd-oomd")
	}
	mine := evictds(s)
	entries := []*entry{{contender: mine[allLanes], wanted: s.bursts}, {contender: mine[pollAlone], wanted: s.bursts}}
	switch e, err := newEarlyoom(ctx, s); {
	case err == nil:
		entries = append(entries, &entry{contender: e, wanted: s.bursts})
	case errors.Is(err, errAbsent):
		fmt.Fprintf(s.out, "\nearlyoom is left out: %v\n", err)
	default:
		return err
	}
	switch err := checkOomd(s.node); {
	case err == nil:
		for _, title := range []string{oomdCalm, oomdEager} {
			entries = append(entries, &entry{contender: &withOomd{stage: s, title: title}, wanted: max(1, s.bursts/2)})
		}
	case errors.Is(err, errAbsent):
		fmt.Fprintf(s.out, "\nsystemd-oomd is left out: %v\n", err)
	default:
		return err
	}
	undo, err := s.beside([]calmPod{{name: "calm", holds: s.machine.Memory / 32}})
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
	// Beyond the threshold there is as much again, and then the limit of the pods together: systemd-oomd goes by the
	// pressure that only a limit makes.
	r := round{section: "vm", name: rivalCase, batch: 1, rest: node.Slow(100 * time.Millisecond)}
	r.shape = shape{drop: free / 5, takes: free * 3 / 5}
	return s.press(ctx, r, entries)
}

// withOomd is systemd-oomd, which watches the slice of all pods.
type withOomd struct {
	stage *stage
	title string
	begun bool
}

// oomdConfig is where systemd looks for drop-ins that do not outlive the boot.
const oomdConfig = "/run/systemd/oomd.conf.d/evictd-bench.conf"

// checkOomd tells whether systemd-oomd can be had.
func checkOomd(n *node.Node) error {
	if n.Driver() != node.Systemd {
		return fmt.Errorf("%w: it watches units, and the pods of the cgroupfs driver are none", errAbsent)
	}
	if out, err := exec.Command("systemctl", "cat", "systemd-oomd.service").CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", errAbsent, strings.TrimSpace(string(out)))
	}
	return nil
}

func (o *withOomd) name() string { return o.title }

// meter is evictd's: it has none of its own that a threshold could be set for.
func (*withOomd) meter() meter { return signalAvailable }

// begin has it watch. By default the limit is a pressure of 60 % over 30 s; at its most eager it is 1 % over 1 s, the
// least that oomd.conf(5) allows.
func (o *withOomd) begin(ctx context.Context, _ int64, _ int) error {
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
	o.begun = true
	slice := filepath.Base(o.stage.node.Kubepods())
	for _, args := range [][]string{
		{"set-property", "--runtime", slice, "ManagedOOMMemoryPressure=kill", "ManagedOOMMemoryPressureLimit=" + limit},
		{"restart", "systemd-oomd.service"},
	} {
		if err := systemctl(ctx, args...); err != nil {
			return err
		}
	}
	// It is told of the slices over the bus after its start.
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

func (*withOomd) aim(context.Context, *victim) error { return nil }

func (*withOomd) done(context.Context, int) (account, error) { return account{}, nil }

func (o *withOomd) end() error {
	if !o.begun {
		return nil
	}
	o.begun = false
	ctx, cancel := context.WithTimeout(context.Background(), node.Slow(10*time.Second))
	defer cancel()
	slice := filepath.Base(o.stage.node.Kubepods())
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
