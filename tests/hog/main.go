// Command hog is the program in the pods of the tests. It allocates memory, files or processes in the ways that matter
// to an eviction, and it is also the pause process. It is statically linked, so that an image needs no other file.
//
//	hog pause                                       wait for a signal
//	hog hold  -bytes N                              touch N bytes of anonymous memory, then sleep
//	hog grow  -bytes N [-rate B] [-threads T] [-delay D] [-stamp FILE]
//	                                                the same, at B bytes per second or by T threads, after D or SIGUSR1
//	hog forks -n N [-bytes B] [-relay D]            keep N children with B bytes each
//	hog bomb  [-bytes B] [-delay D] [-forks]        fork such processes without end; only in a container
//	hog tmpfs -dir DIR -bytes N [-rate B] [-delay D]
//	                                                write N bytes to a file on a tmpfs
//	hog file  -path FILE -bytes N -passes K         write a file and re-read it until its cache is active
//	hog database -path FILE -bytes N -buffer M [-rate B] [-delay D]
//	                                                read a file twice from the disk, and touch a shared buffer of M bytes
//	hog mapped -path FILE -bytes N [-delay D]       write to every page of a mapped file, and read it until its cache is active
//	hog logs  -bytes N [-rate B]                    write N bytes of lines to standard output
//	hog files -dir DIR -n N                         create N empty files
//	hog burn [-threads T]                           compute on T threads without end
//	hog journal -path FILE -bytes N [-rate B]       write records to a file of N bytes without end, and sync each
//
// Every command sleeps when it is done, until SIGTERM (exit code 143), which -ignore-term ignores. Memory is allocated
// with mmap, so that the Go heap does not distort its size. Progress is written to standard output without blocking: a
// hog must go on when the container runtime does not read its output.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

func main() { os.Exit(run(os.Args[1:], os.Stderr)) }

// commands are the values of the first argument. Each parses its own flags and returns when it has allocated everything.
var commands = map[string]func(args []string, stderr io.Writer) error{
	"pause":    pause,
	"hold":     grow,
	"grow":     grow,
	"forks":    forks,
	"bomb":     bomb,
	"tmpfs":    tmpfs,
	"file":     file,
	"database": database,
	"mapped":   mapped,
	"logs":     logs,
	"files":    files,
	"burn":     burn,
	"journal":  journal,
}

// exitTerm is the exit code that a shell returns for a process killed by SIGTERM.
const exitTerm = 128 + int(unix.SIGTERM)

func run(args []string, stderr io.Writer) int {
	if len(args) == 0 || commands[args[0]] == nil {
		fmt.Fprintln(stderr, "usage: hog pause|hold|grow|forks|bomb|tmpfs|file|database|mapped|logs|files|burn|journal [flags]")
		return 2
	}
	// Needed in process 1 of a PID namespace, for which the kernel drops signals without a handler.
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, unix.SIGTERM, unix.SIGINT)
	done := make(chan error, 1)
	go func() { done <- commands[args[0]](args[1:], stderr) }()
	for {
		select {
		case <-terminated:
			return exitTerm
		case err := <-done:
			switch {
			case errors.Is(err, flag.ErrHelp), errors.Is(err, errReplaced):
				return 0
			case errors.As(err, new(usageError)):
				fmt.Fprintf(stderr, "hog %s: %v\n", args[0], err)
				return 2
			case err != nil:
				fmt.Fprintf(stderr, "hog %s: %v\n", args[0], err)
				return 1
			}
			done = nil // keep everything until the signal
		}
	}
}

// usageError is an error in the arguments.
type usageError struct{ error }

// flags returns a flag set with the flags of every command, and its parse function.
func flags(name string, stderr io.Writer) (fs *flag.FlagSet, parse func(args []string) error) {
	fs = flag.NewFlagSet(name, flag.ContinueOnError)
	fs.SetOutput(stderr)
	ignoreTerm := fs.Bool("ignore-term", false, "ignore SIGTERM")
	return fs, func(args []string) error {
		if err := fs.Parse(args); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				return err
			}
			return usageError{err}
		}
		if fs.NArg() > 0 {
			return usageError{fmt.Errorf("unexpected argument %q", fs.Arg(0))}
		}
		if *ignoreTerm {
			signal.Ignore(unix.SIGTERM)
		}
		return nil
	}
}

func pause(args []string, stderr io.Writer) error {
	_, parse := flags("pause", stderr)
	return parse(args)
}

// say prints one line of progress. Standard output is a FIFO that the container runtime reads: if it is full, the line
// is dropped.
func say(format string, args ...any) {
	_ = unix.SetNonblock(syscall.Stdout, true)
	_, _ = unix.Write(syscall.Stdout, fmt.Appendf(nil, format+"\n", args...))
}
