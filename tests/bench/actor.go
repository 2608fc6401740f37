package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/meminfo"
	"github.com/evictd/evictd/tests/daemon"
)

// actors are what this program does in processes of its own, by its first argument.
var actors = map[string]func(args []string, in io.Reader, out io.Writer) error{
	"killer":   actKiller,
	"spinner":  actSpinner,
	"allocate": actAllocator,
	"poller":   actPoller,
	"read":     actReader,
}

// actor is such a process.
type actor struct {
	*daemon.Process
	cue io.Closer // closing it is the cue
}

// startActor starts one and returns when it waits for its cue, or acts, if it needs none.
func startActor(name string, args ...string) (_ *actor, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, append([]string{name}, args...)...)
	cmd.SysProcAttr = &unix.SysProcAttr{}
	in, cue, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer in.Close()
	hears, out, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer hears.Close()
	var complaint bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, &complaint
	p, err := daemon.StartProcess(cmd)
	out.Close()
	if err != nil {
		cue.Close()
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	if n, err := hears.Read(make([]byte, 1)); n == 0 {
		cue.Close()
		<-p.Done()
		return nil, fmt.Errorf("start %s: %w: %w: %s", name, err, p.Err(), bytes.TrimSpace(complaint.Bytes()))
	}
	return &actor{p, cue}, nil
}

// ready tells startActor.
func ready(out io.Writer) error {
	_, err := out.Write([]byte{'\n'})
	return err
}

// stop ends an actor, which may have been killed already.
func (a *actor) stop(ctx context.Context) {
	_ = unix.Kill(a.PID(), unix.SIGKILL) // it is awaited, so that its number is nobody else's until then
	select {
	case <-a.Done():
	case <-ctx.Done():
	}
	a.cue.Close()
}

// meters are those that an actor can be told.
var meters = map[string]meter{"signal": signalAvailable, "available": memAvailable}

// actKiller looks at available memory as fast as it can, and kills one process when it is below a threshold: nobody who
// goes by that number can be sooner.
func actKiller(args []string, _ io.Reader, out io.Writer) error {
	flags := flag.NewFlagSet("killer", flag.ContinueOnError)
	threshold := flags.Int64("threshold", 0, "")
	pid := flags.Int("pid", 0, "")
	name := flags.String("meter", "signal", "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	meter := meters[*name]
	if meter == nil {
		return fmt.Errorf("there is no meter %q", *name)
	}
	pidfd, err := unix.PidfdOpen(*pid, 0)
	if err != nil {
		return fmt.Errorf("hold process %d: %w", *pid, err)
	}
	file, err := meminfo.Open(kernel.FS("/proc"))
	if err != nil {
		return err
	}
	runtime.LockOSThread()
	_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), -20) // it is as fast as it may be
	if err := ready(out); err != nil {
		return err
	}
	for {
		var i meminfo.Info
		if err := file.Read(&i); err != nil {
			return err
		}
		if meter(&i) < *threshold {
			return unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0)
		}
	}
}

// actSpinner keeps a processor busy.
func actSpinner(_ []string, _ io.Reader, out io.Writer) error {
	if err := ready(out); err != nil {
		return err
	}
	var n atomic.Uint64
	for {
		n.Add(1)
	}
}

// actAllocator touches memory on its cue, and then keeps it.
func actAllocator(args []string, in io.Reader, out io.Writer) error {
	flags := flag.NewFlagSet("allocate", flag.ContinueOnError)
	size := flags.Int("bytes", 0, "")
	huge := flags.Bool("huge", false, "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	mem, err := unix.Mmap(-1, 0, *size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return fmt.Errorf("map %d bytes: %w", *size, err)
	}
	advice := unix.MADV_NOHUGEPAGE
	if *huge {
		advice = unix.MADV_HUGEPAGE
	}
	if err := unix.Madvise(mem, advice); err != nil {
		return fmt.Errorf("advise on huge pages: %w", err)
	}
	if err := ready(out); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, in); err != nil {
		return err
	}
	for i := 0; i < len(mem); i += os.Getpagesize() {
		mem[i] = 1
	}
	select {}
}

// allocator starts an allocator of some bytes.
func allocator(bytes int64, huge bool) (*actor, error) {
	return startActor("allocate", "-bytes", strconv.FormatInt(bytes, 10), "-huge="+strconv.FormatBool(huge))
}

// killedBy says whether a process ended by a signal.
func killedBy(err error, signal syscall.Signal) bool {
	exit, ok := err.(*exec.ExitError)
	return ok && exit.Sys().(syscall.WaitStatus).Signaled() && exit.Sys().(syscall.WaitStatus).Signal() == signal
}
