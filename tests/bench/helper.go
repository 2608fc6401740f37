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

// helpers are the functions that this program runs as separate processes, by its first argument.
var helpers = map[string]func(args []string, in io.Reader, out io.Writer) error{
	"killer":   runKiller,
	"spinner":  runSpinner,
	"allocate": runAllocator,
	"poller":   runPoller,
	"read":     runReader,
}

// helper is a process of this program that runs one of helpers.
type helper struct {
	*daemon.Process
	input io.Closer // closing it is the start signal
}

// startHelper starts a helper and returns when it waits for its start signal, or runs, if it needs none.
func startHelper(name string, args ...string) (_ *helper, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, append([]string{name}, args...)...)
	cmd.SysProcAttr = &unix.SysProcAttr{}
	in, start, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer in.Close()
	readyPipe, out, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer readyPipe.Close()
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, &stderr
	p, err := daemon.StartProcess(cmd)
	out.Close()
	if err != nil {
		start.Close()
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	if n, err := readyPipe.Read(make([]byte, 1)); n == 0 {
		start.Close()
		<-p.Done()
		return nil, fmt.Errorf("start %s: %w: %w: %s", name, err, p.Err(), bytes.TrimSpace(stderr.Bytes()))
	}
	return &helper{p, start}, nil
}

// ready notifies startHelper.
func ready(out io.Writer) error {
	_, err := out.Write([]byte{'\n'})
	return err
}

// stop kills a helper, which may have been killed already.
func (a *helper) stop(ctx context.Context) {
	_ = unix.Kill(a.PID(), unix.SIGKILL) // its PID can't be reused before it is waited for
	select {
	case <-a.Done():
	case <-ctx.Done():
	}
	a.input.Close()
}

// meters are the values of the killer's flag -meter.
var meters = map[string]meter{"signal": signalAvailable, "available": memAvailable}

// runKiller polls available memory without a pause, and kills one process when memory is below a threshold. No program
// that polls can be faster.
func runKiller(args []string, _ io.Reader, out io.Writer) error {
	flags := flag.NewFlagSet("killer", flag.ContinueOnError)
	threshold := flags.Int64("threshold", 0, "")
	pid := flags.Int("pid", 0, "")
	name := flags.String("meter", "signal", "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	meter := meters[*name]
	if meter == nil {
		return fmt.Errorf("unknown meter %q", *name)
	}
	pidfd, err := unix.PidfdOpen(*pid, 0)
	if err != nil {
		return fmt.Errorf("open pidfd of process %d: %w", *pid, err)
	}
	file, err := meminfo.Open(kernel.FS("/proc"))
	if err != nil {
		return err
	}
	runtime.LockOSThread()
	_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), -20) // best effort
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

// runSpinner keeps a CPU busy.
func runSpinner(_ []string, _ io.Reader, out io.Writer) error {
	if err := ready(out); err != nil {
		return err
	}
	var n atomic.Uint64
	for {
		n.Add(1)
	}
}

// runAllocator touches memory on its start signal, and then sleeps.
func runAllocator(args []string, in io.Reader, out io.Writer) error {
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
		return fmt.Errorf("madvise huge pages: %w", err)
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

// startAllocator starts a helper that allocates some bytes.
func startAllocator(bytes int64, huge bool) (*helper, error) {
	return startHelper("allocate", "-bytes", strconv.FormatInt(bytes, 10), "-huge="+strconv.FormatBool(huge))
}

// killedBy reports whether the error of a process means that the signal killed it.
func killedBy(err error, signal syscall.Signal) bool {
	exit, ok := err.(*exec.ExitError)
	return ok && exit.Sys().(syscall.WaitStatus).Signaled() && exit.Sys().(syscall.WaitStatus).Signal() == signal
}
