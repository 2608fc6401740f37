package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/meminfo"
	"github.com/evictd/evictd/tests/daemon"
	"github.com/evictd/evictd/tests/node"

	"github.com/evictd/evictd/tests/trace"
)

// testbed is a node with a private runtime, on which contenders and victims run.
type testbed struct {
	options
	node       *node.Node
	dir        string
	out        io.Writer
	results    *resultSet
	machine    machine
	reserve    int64         // bytes of available memory that victims must leave
	startDelay time.Duration // see crossingCase
	stampDir   string        // a directory on a tmpfs, for the victims' time stamps
	kills      *trace.Instance
	version    string // of the evictd that ran last
	podCount   atomic.Int64
	cache      int64 // bytes of active file cache on the node; see fillCache

	// bystanders are the pods besides the victims. revive, if set, replaces those that have died.
	bystanders []*victim
	revive     func(context.Context) error
	oomKills   int
	// settings are added to evictd's configuration. crossed, if set, is called after each crossing under evictd.
	settings   string
	onCrossing func(context.Context, *daemon.Daemon) error
}

// onNode returns the function of a step that needs a testbed. The testbed is removed after the step.
func onNode(measure func(context.Context, *testbed) error) func(context.Context, options, *resultSet, io.Writer) error {
	return func(ctx context.Context, o options, b *resultSet, out io.Writer) (err error) {
		programs, err := node.Prebuilt("evictd")
		if err != nil {
			return err
		}
		if programs != nil {
			o.executable = programs[0]
		}
		if _, err := os.Stat(o.executable); err != nil {
			return fmt.Errorf("find evictd: %w (run make build)", err)
		}
		if err := node.Check(""); err != nil {
			return fmt.Errorf("needs %w", err)
		}
		s := &testbed{options: o, results: b, out: out, reserve: reserve, startDelay: time.Second}
		if s.machine, err = thisMachine(&o); err != nil {
			return err
		}
		if o.vm {
			s.reserve = s.machine.Memory / 8
		}
		if err := b.add(result{Machine: &s.machine}); err != nil {
			return err
		}
		if s.dir, err = os.MkdirTemp("", "evictd-bench-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(s.dir)) }()
		home := filepath.Join(s.dir, "node")
		unmount, err := s.inMemory(home)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, unmount()) }()
		if s.node, err = node.Start(ctx, node.Options{Dir: home}); err != nil {
			return err
		}
		defer func() {
			err = errors.Join(err, s.node.Close())
			if left := s.node.Leftovers(); len(left) > 0 {
				err = errors.Join(err, fmt.Errorf("left behind: %s", strings.Join(left, "; ")))
			}
		}()
		if s.stampDir, err = s.node.Volume("stamps", 16*mebibyte); err != nil {
			return err
		}
		if s.kills, err = trace.Open("evictd-bench-kills"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.kills.Close()) }()
		if err := errors.Join(s.kills.RecordKills(), s.kills.RecordRuns()); err != nil {
			return err
		}
		return measure(ctx, s)
	}
}

// inMemory mounts a tmpfs on the runtime's directory: the runtime waits for the disk several times for each pod that it
// creates or removes. A virtual machine has too little memory for that.
func (s *testbed) inMemory(dir string) (unmount func() error, err error) {
	if s.vm {
		return func() error { return nil }, nil
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	if err := unix.Mount("evictd-bench", dir, "tmpfs", unix.MS_NOSUID, "size=1G"); err != nil {
		return nil, fmt.Errorf("mount tmpfs: %w", err)
	}
	return func() error {
		if err := unix.Unmount(dir, 0); err != nil {
			return fmt.Errorf("unmount %s: %w", dir, err)
		}
		return nil
	}, nil
}

// origin returns the origin of a measurement that begins now on this machine.
func (s *testbed) origin() origin {
	return origin{On: s.machine.Name, Taken: time.Now().UTC().Truncate(time.Second), Version: s.version, Load: loadAverage()}
}

// thisMachine describes this machine.
func thisMachine(o *options) (machine, error) {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return machine{}, fmt.Errorf("uname: %w", err)
	}
	info, err := meminfo.Read(kernel.FS("/proc"))
	if err != nil {
		return machine{}, err
	}
	cpus, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return machine{}, err
	}
	dirs, err := cgroupDirs(os.Getpid())
	if err != nil {
		return machine{}, err
	}
	m := machine{
		Name: o.name, Kernel: unix.ByteSliceToString(uts.Release[:]), CPU: modelName(string(cpus)), CPUs: runtime.NumCPU(),
		Memory: int64(info.MemTotal), Cgroup: "v2",
	}
	if _, ok := dirs["memory"]; ok {
		m.Cgroup = "v1"
	}
	if o.vm {
		parts := strings.SplitN(m.Kernel, ".", 3)
		m.Name = "VM, Linux " + strings.Join(parts[:min(2, len(parts))], ".")
	}
	return m, nil
}

// native is the name of the machine whose results are compared with the goals and shown in the chart.
const native = "native"

// modelName finds the processor's name in /proc/cpuinfo:
//
//	model name	: Intel(R) Xeon(R) Processor
func modelName(cpuinfo string) string {
	for line := range strings.Lines(cpuinfo) {
		if key, value, _ := strings.Cut(line, ":"); strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown processor"
}

// loadAverage returns the first number of /proc/loadavg, or 0 if it can't be read: it is only informative.
func loadAverage() float64 {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(text), " ")
	load, _ := strconv.ParseFloat(first, 64)
	return load
}
