package machine

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/evictd/evictd/tests/daemon"
	"github.com/evictd/evictd/tests/vm/protocol"
)

// Config is a machine to run. Only files in Dir are written.
type Config struct {
	// QEMU is the emulator's program, and QEMUArgs come before all other arguments.
	QEMU     string
	QEMUArgs []string
	// Kernel, Initrd, Root, Modules and Payload are files that package image creates.
	Kernel, Initrd, Root, Modules, Payload string
	// Append are kernel arguments in addition to those of every machine.
	Append []string
	// Dir gets console.log and events.log. It must exist.
	Dir string
	// Memory is in MiB; 0 is 4096.
	Memory int
	// Budget is the maximum duration of the plan after the boot. Limits that are zero are those of DefaultLimits.
	Budget time.Duration
	Limits Limits
}

// DefaultMemory of a machine, in MiB.
const DefaultMemory = 4096

// Run boots the machine and returns the result of each command that was begun, in order. It calls onEvent, unless nil,
// with each event. The error is an *Error, the cause of ctx, or that QEMU could not be started; the results until then
// are valid, and a command that was running has the same error.
func Run(ctx context.Context, c Config, onEvent func(protocol.Event)) (Report, error) {
	if onEvent == nil {
		onEvent = func(protocol.Event) {}
	}
	console, consoleEnd, err := os.Pipe()
	if err != nil {
		return Report{}, fmt.Errorf("start machine: %w", err)
	}
	defer console.Close()
	events, eventsEnd, err := os.Pipe()
	if err != nil {
		consoleEnd.Close()
		return Report{}, fmt.Errorf("start machine: %w", err)
	}
	defer events.Close()
	monitor, monitorEnd, err := newMonitor()
	if err != nil {
		return Report{}, errors.Join(fmt.Errorf("start machine: %w", err), consoleEnd.Close(), eventsEnd.Close())
	}
	defer monitor.close()
	output, err := os.Create(filepath.Join(c.Dir, "qemu.log"))
	if err != nil {
		return Report{}, errors.Join(fmt.Errorf("start machine: %w", err), consoleEnd.Close(), eventsEnd.Close(), monitorEnd.Close())
	}
	defer output.Close()

	cmd := exec.Command(c.QEMU, c.arguments()...)
	cmd.ExtraFiles = []*os.File{consoleEnd, eventsEnd, monitorEnd}
	cmd.Env = append(os.Environ(), "TMPDIR="+c.Dir) // for the writes of snapshot=on
	cmd.Stdout, cmd.Stderr = output, output
	qemu, err := daemon.StartProcess(cmd)
	consoleEnd.Close()
	eventsEnd.Close()
	monitorEnd.Close()
	if err != nil {
		return Report{}, fmt.Errorf("start machine: %w", err)
	}
	defer qemu.Terminate(0)

	w := newWatch(time.Now(), c.Limits.orDefault(), c.Budget)
	err = follow(ctx, c.Dir, w, qemu, console, events, func(e protocol.Event) error {
		onEvent(e)
		if e.Kind == protocol.Line && e.Text == protocol.PressPowerKey {
			return monitor.pressPowerKey()
		}
		return nil
	})
	var lost *Error
	if errors.As(err, &lost) {
		lost.Console = w.tail.lines()
		if b, err := os.ReadFile(output.Name()); err == nil && len(b) > 0 {
			lost.QEMU = string(b)
		}
	}
	w.finish(err)
	return w.report, err
}

// follow passes the console and the events to the watch until the machine is done or has failed.
func follow(ctx context.Context, dir string, w *watch, qemu *daemon.Process, console, events io.Reader, onEvent func(protocol.Event) error) error {
	consoleLines, consoleDone, err := lines(console, filepath.Join(dir, "console.log"))
	if err != nil {
		return err
	}
	eventLines, eventsDone, err := lines(events, filepath.Join(dir, "events.log"))
	if err != nil {
		return err
	}
	// The readers must not block on their channels. They finish when QEMU has exited.
	defer func(console, events <-chan string) {
		_ = qemu.Terminate(0)
		for range console {
		}
		for range events {
		}
		<-consoleDone
		<-eventsDone
	}(consoleLines, eventLines)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case line, ok := <-consoleLines:
			if !ok {
				consoleLines = nil
				break
			}
			w.console(time.Now(), line)
		case line, ok := <-eventLines:
			if !ok {
				eventLines = nil
				break
			}
			var e protocol.Event
			if e, err = protocol.Decode([]byte(line)); err == nil {
				err = errors.Join(w.event(time.Now(), e), onEvent(e))
			} else {
				err = &Error{Kind: ErrDied, Text: err.Error()}
			}
		case <-tick.C:
			err = w.check(time.Now())
		}
		switch {
		case err != nil:
			return err
		case w.done:
			return nil
		case consoleLines == nil && eventLines == nil: // QEMU has closed both, and all is read
			<-qemu.Done()
			return w.ended(qemu.Err())
		}
	}
}

// lines copies r to a file and returns its lines. done is closed when the file is complete.
func lines(r io.Reader, file string) (text <-chan string, done <-chan struct{}, err error) {
	f, err := os.Create(file)
	if err != nil {
		return nil, nil, fmt.Errorf("log the machine's output: %w", err)
	}
	out, finished := make(chan string), make(chan struct{})
	go func() {
		defer close(finished)
		defer f.Close()
		defer close(out)
		in := bufio.NewReaderSize(io.TeeReader(r, f), protocol.MaxLine)
		for {
			line, err := in.ReadSlice('\n')
			if len(line) > 0 {
				out <- trimEnd(string(line))
			}
			if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
				return
			}
		}
	}()
	return out, finished, nil
}
