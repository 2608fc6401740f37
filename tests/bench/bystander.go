package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/evictd/evictd/tests/node"
)

// bystanderSpec is a pod whose memory does not change while others burst. Sizes are bytes.
type bystanderSpec struct {
	name        string
	memoryLimit int64 // and request; 0 is BestEffort
	anonymous   int64
	activeFile  int64 // active file cache
}

// bystanderSpecs use less memory than the burst, so that no ranking has a reason to choose one.
var bystanderSpecs = []bystanderSpec{
	{name: "bystander-cache", anonymous: mebibyte, activeFile: 256 * mebibyte},
	{name: "bystander-guaranteed", memoryLimit: gibibyte, anonymous: 512 * mebibyte},
	{name: "bystander-small", anonymous: 16 * mebibyte},
}

// survivalCase is the case of the bursts with bystanders, as the results store it.
const survivalCase = "1 GiB at full speed beside a pod with active file cache, a Guaranteed and a small BestEffort one"

// survival is a step: bursts on a node with bystanders, under evictd and under earlyoom. All pods run as the user whose
// processes earlyoom can kill, and all their processes have the name that it prefers.
func survival(ctx context.Context, s *testbed) error {
	entries := []*entry{{contender: evictds(s)[allLanes], wanted: s.survivals}}
	e, err := newEarlyoom(ctx, s)
	switch {
	case err == nil:
		entries = append(entries, &entry{contender: e, wanted: s.survivals})
	case errors.Is(err, errNotFound):
		fmt.Fprintf(s.out, "\nearlyoom is skipped: %v\n", err)
	default:
		return err
	}
	undo, err := s.startBystanders(bystanderSpecs)
	if err != nil {
		return err
	}
	r := crossingCase{section: "survival", name: survivalCase, batch: 4, startDelay: 200 * time.Millisecond}
	r.workload = workload{drop: gibibyte, total: 3 * gibibyte}
	return errors.Join(s.runSeries(ctx, r, entries), undo())
}

// startBystanders makes the testbed run bystanders from now on, and returns a function that removes them. Those that die
// are replaced before the next batch of victims.
func (s *testbed) startBystanders(pods []bystanderSpec) (undo func() error, err error) {
	s.bystanders = make([]*victim, len(pods))
	s.revive = func(ctx context.Context) (err error) {
		for i, p := range pods {
			if old := s.bystanders[i]; old != nil {
				if old.alive() {
					continue
				}
				if err := old.remove(s.node); err != nil {
					return err
				}
			}
			if s.bystanders[i], err = s.runBystander(ctx, p); err != nil {
				return fmt.Errorf("run %s: %w", p.name, err)
			}
		}
		return nil
	}
	return func() error {
		var errs []error
		for _, b := range s.bystanders {
			if b != nil {
				errs = append(errs, b.remove(s.node))
			}
		}
		s.bystanders, s.revive = nil, nil
		return errors.Join(errs...)
	}, nil
}

// runBystander runs a bystander and returns when it has allocated its memory and its file cache is active.
func (s *testbed) runBystander(ctx context.Context, p bystanderSpec) (v *victim, err error) {
	pod, err := s.node.RunPod(ctx, node.PodSpec{Name: p.name, TerminationGracePeriod: time.Second, Containers: []node.ContainerSpec{{
		RunAsUser: victimUser, MemoryLimit: p.memoryLimit, Args: []string{"hold", "-thp=false", "-bytes", strconv.FormatInt(p.anonymous, 10)},
	}}})
	if err != nil {
		return nil, err
	}
	v = &victim{workload: workload{preallocated: p.anonymous}, pod: pod}
	defer func() {
		if err != nil {
			err = errors.Join(err, v.remove(s.node))
		}
	}()
	if err := v.watch(pod.Containers[0].PID); err != nil {
		return nil, err
	}
	if err := v.awaitPreallocated(ctx); err != nil || p.activeFile == 0 {
		return v, err
	}
	// The kernel charges a page of cache to the cgroup of the process that reads it first.
	file := filepath.Join(s.dir, p.name)
	if err := errors.Join(os.RemoveAll(file), os.WriteFile(file, nil, 0o600), os.Truncate(file, p.activeFile)); err != nil {
		return nil, err
	}
	reader, err := startHelper("read", "-file", file)
	if err != nil {
		return nil, err
	}
	defer reader.stop(ctx)
	if err := joinCgroups(reader.PID(), v.pids[0]); err != nil {
		return nil, err
	}
	reader.input.Close()
	select {
	case <-reader.Done():
		return v, errors.Join(reader.Err(), v.checkCache(p.activeFile))
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// checkCache returns an error if less active file cache is charged to the pod's cgroup.
func (v *victim) checkCache(bytes int64) error {
	dirs, err := cgroupDirs(v.pids[0])
	if err != nil {
		return err
	}
	dir, ok := dirs["memory"]
	if !ok {
		dir = dirs[""]
	}
	stat, err := os.ReadFile(filepath.Join(dir, "memory.stat"))
	if err != nil {
		return err
	}
	active, err := statusField(stat, "active_file")
	if err != nil {
		return fmt.Errorf("parse %s/memory.stat: %w", dir, err)
	}
	if active < bytes-bytes/16 {
		return fmt.Errorf("the pod has %.1f MiB of active file cache; want %.1f", mebibytes(active), mebibytes(bytes))
	}
	return nil
}

// bystandersAlive reports whether all bystanders are alive.
func (s *testbed) bystandersAlive() bool {
	for _, b := range s.bystanders {
		if !b.alive() {
			return false
		}
	}
	return true
}
