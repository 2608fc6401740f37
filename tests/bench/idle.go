package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/tests/daemon"
	"github.com/evictd/evictd/tests/node"
)

// idleConfig has the kubelet's default threshold, far from what is available.
const idleConfig = `apiVersion: evictd.io/v1alpha1
kind: AgentConfiguration
runtimeEndpoint: %s
cgroupRoot: %s
evictionHard:
  memory.available: 100Mi
`

// idle measures evictd beside pods that do nothing.
func idle(ctx context.Context, s *stage) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute+s.idle)
	defer cancel()
	fmt.Fprintf(s.out, "\nIdle, beside %d pods of one container:\n", s.pods)
	if err := s.crowd(ctx); err != nil {
		return err
	}
	d, err := daemon.Start(daemon.Options{
		Executable: s.executable, Dir: s.dir, Config: fmt.Sprintf(idleConfig, s.node.Endpoint(), s.node.CgroupRoot()),
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Stop()) }()
	ready, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	began := time.Now()
	if _, err := d.Await(ready, func(st *control.Status) bool {
		return st.Pods.Count == s.pods && st.Signals[signal.MemoryAvailable].Status == control.Observed
	}); err != nil {
		return err
	}
	fmt.Fprintf(s.out, "  %-36s %v\n", "from its start to knowing all pods", time.Since(began).Round(time.Millisecond))

	before, err := consumed(d.PID())
	if err != nil {
		return err
	}
	began = time.Now()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-d.Done():
		return fmt.Errorf("evictd ended (%v): %s", d.Err(), d.LogTail())
	case <-time.After(s.idle):
	}
	after, err := consumed(d.PID())
	if err != nil {
		return err
	}
	took := time.Since(began)
	fmt.Fprintf(s.out, "  %-36s %.2f %% of one core, over %v\n", "CPU", 100*(after.cpu-before.cpu).Seconds()/took.Seconds(), took.Round(time.Second))
	fmt.Fprintf(s.out, "  %-36s %.1f MiB, of which %.1f anonymous\n", "resident memory", mebibytes(after.resident), mebibytes(after.anonymous))
	fmt.Fprintf(s.out, "  %-36s %d\n", "threads", after.threads)
	fmt.Fprintf(s.out, "  %-36s %d\n", "file descriptors", after.files)
	return nil
}

// crowd runs the pods, a few at a time.
func (s *stage) crowd(ctx context.Context) error {
	const atATime = 4
	next := make(chan int)
	errs := make(chan error, atATime)
	var wait sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for range atATime {
		wait.Go(func() {
			for i := range next {
				_, err := s.node.RunPod(ctx, node.PodSpec{Name: fmt.Sprintf("idle-%03d", i), Containers: []node.ContainerSpec{{}}})
				if err != nil {
					errs <- err
					cancel()
					return
				}
			}
		})
	}
	for i := range s.pods {
		select {
		case next <- i:
		case <-ctx.Done():
		}
	}
	close(next)
	wait.Wait()
	select {
	case err := <-errs:
		return err
	default:
		return ctx.Err()
	}
}

// consumption is what a process has used so far.
type consumption struct {
	cpu                 time.Duration
	resident, anonymous int64 // bytes
	threads, files      int
}

func consumed(pid int) (consumption, error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return consumption{}, err
	}
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return consumption{}, err
	}
	files, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		return consumption{}, err
	}
	c := consumption{files: len(files)}
	if c.cpu, err = parseCPU(stat); err != nil {
		return consumption{}, fmt.Errorf("parse %s/stat: %w", dir, err)
	}
	for key, into := range map[string]*int64{"VmRSS:": &c.resident, "RssAnon:": &c.anonymous} {
		kilobytes, err := statusField(status, key)
		if err != nil {
			return consumption{}, fmt.Errorf("parse %s/status: %w", dir, err)
		}
		*into = kilobytes << 10
	}
	threads, err := statusField(status, "Threads:")
	c.threads = int(threads)
	return c, err
}

// clockTick is the unit of times in /proc/PID/stat: USER_HZ, which is 100 on every architecture that Go runs on.
const clockTick = time.Second / 100

// parseCPU returns utime + stime of /proc/PID/stat, its fields 14 and 15. The name before them is in parentheses and
// may contain anything.
func parseCPU(stat []byte) (time.Duration, error) {
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 13 {
		return 0, fmt.Errorf("%d fields after the name; want 13 and more", len(fields))
	}
	var ticks int64
	for _, f := range fields[11:13] {
		n, err := strconv.ParseInt(string(f), 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * clockTick, nil
}

// statusField returns the number after a key of /proc/PID/status.
func statusField(status []byte, key string) (int64, error) {
	for line := range strings.Lines(string(status)) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == key {
			return strconv.ParseInt(f[1], 10, 64)
		}
	}
	return 0, errors.New("no line " + key)
}

func mebibytes(n int64) float64 { return float64(n) / mebibyte }
