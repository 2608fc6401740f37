package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/tests/hog/stamp"
)

const mebibyte = 1 << 20

// progressInterval is the number of MiB between two lines of progress.
const progressInterval = 256

// grow implements `hog grow` and `hog hold`, which is a growth without rate and delay.
func grow(args []string, stderr io.Writer) error {
	fs, parse := flags("grow", stderr)
	size := fs.Int64("bytes", 0, "bytes to touch")
	rate := fs.Int64("rate", 0, "bytes per second; 0 is as fast as possible")
	delay := fs.Duration("delay", 0, "wait before the first touch; SIGUSR1 ends the wait")
	thp := fs.Bool("thp", true, "let the kernel use huge pages")
	threads := fs.Int("threads", 1, "threads that touch a part each, as fast as possible")
	stampFile := fs.String("stamp", "", "file that receives the time of each MiB")
	if err := parse(args); err != nil {
		return err
	}
	if *size <= 0 || *rate < 0 || *delay < 0 {
		return usageError{errors.New("-bytes must be positive, -rate and -delay not negative")}
	}
	if *threads < 1 || *threads > 1 && (*rate > 0 || *stampFile != "") {
		return usageError{errors.New("-threads must be positive, and 1 with -rate or -stamp")}
	}

	mem, err := anonymous(*size, *thp)
	if err != nil {
		return err
	}
	var stamps *stamp.Writer
	if *stampFile != "" {
		if stamps, err = stamp.Create(*stampFile, chunks(*size)); err != nil {
			return err
		}
	}
	wait(*delay)
	say("growing to %d bytes", *size)
	if *threads == 1 {
		touch(mem, *rate, stamps)
	} else {
		touchInParallel(mem, *threads)
	}
	say("holding %d bytes", *size)
	return nil
}

// anonymous maps size bytes of private memory without touching them. The mapping is never unmapped.
func anonymous(size int64, thp bool) ([]byte, error) {
	mem, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", size, err)
	}
	if !thp {
		// EINVAL means that the kernel has no transparent huge pages.
		if err := unix.Madvise(mem, unix.MADV_NOHUGEPAGE); err != nil && !errors.Is(err, unix.EINVAL) {
			return nil, fmt.Errorf("madvise nohugepage: %w", err)
		}
	}
	return mem, nil
}

// wait returns after d or on SIGUSR1. A test that starts the growth with the signal sets a long delay.
func wait(d time.Duration) {
	if d == 0 {
		return
	}
	start := make(chan os.Signal, 1)
	signal.Notify(start, unix.SIGUSR1)
	defer signal.Stop(start)
	say("waiting %v", d)
	select {
	case <-start:
	case <-time.After(d):
	}
}

// touch writes one byte of every page, MiB by MiB, and adds the time of each to stamps.
func touch(mem []byte, rate int64, stamps *stamp.Writer) {
	page := os.Getpagesize()
	limiter := newRateLimiter(rate)
	stamps.Add()
	for done := 0; done < len(mem); {
		end := min(done+mebibyte, len(mem))
		for i := done; i < end; i += page {
			mem[i] = 1
		}
		limiter.after(end - done)
		done = end
		stamps.Add()
		if done/mebibyte%progressInterval == 0 {
			say("touched %d bytes", done)
		}
	}
}

// touchInParallel touches the memory with several threads, each a part of it, as the garbage collector of a JVM does
// with its heap (-XX:+AlwaysPreTouch).
func touchInParallel(mem []byte, threads int) {
	var done sync.WaitGroup
	part := (len(mem) + threads - 1) / threads
	for part := range slices.Chunk(mem, part) {
		done.Go(func() {
			runtime.LockOSThread()
			touch(part, 0, nil)
		})
	}
	done.Wait()
}

// chunks returns size in MiB, rounded up.
func chunks(size int64) int { return int((size + mebibyte - 1) / mebibyte) }

// A rateLimiter delays a stream of bytes to a rate. It sleeps until absolute times, so that a sleep that took too long
// is compensated.
type rateLimiter struct {
	rate  int64
	start time.Time
	bytes int64
}

func newRateLimiter(rate int64) *rateLimiter { return &rateLimiter{rate: rate, start: time.Now()} }

func (p *rateLimiter) after(n int) {
	if p.rate == 0 {
		return
	}
	p.bytes += int64(n)
	due := float64(p.bytes) / float64(p.rate) * float64(time.Second)
	time.Sleep(time.Until(p.start.Add(time.Duration(due))))
}
