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

// calmPod is a pod that keeps what it has while others burst; bytes.
type calmPod struct {
	name        string
	memoryLimit int64 // which is its request, too; 0 is BestEffort
	holds       int64
	caches      int64 // of file cache, all of it active
}

// calmPods use less than the burst that they are beside, so that no ranking has a reason to choose one.
var calmPods = []calmPod{
	{name: "calm-cache", holds: mebibyte, caches: 256 * mebibyte},
	{name: "calm-guaranteed", memoryLimit: gibibyte, holds: 512 * mebibyte},
	{name: "calm-small", holds: 16 * mebibyte},
}

// calmCase is the case of the bursts beside calm pods.
const calmCase = "1 GiB at full speed beside a pod with active file cache, a Guaranteed and a small BestEffort one"

// survival are bursts beside calm pods, under evictd and under earlyoom. All pods are of the user whose processes
// earlyoom may kill, and all processes have the name that it prefers.
func survival(ctx context.Context, s *stage) error {
	entries := []*entry{{contender: evictds(s)[allLanes], wanted: s.survivals}}
	e, err := newEarlyoom(ctx, s)
	switch {
	case err == nil:
		entries = append(entries, &entry{contender: e, wanted: s.survivals})
	case errors.Is(err, errAbsent):
		fmt.Fprintf(s.out, "\nearlyoom is left out: %v\n", err)
	default:
		return err
	}
	undo, err := s.beside(calmPods)
	if err != nil {
		return err
	}
	r := round{section: "survival", name: calmCase, batch: 4, rest: 200 * time.Millisecond}
	r.shape = shape{drop: gibibyte, takes: 3 * gibibyte}
	return errors.Join(s.press(ctx, r, entries), undo())
}

// beside has calm pods beside all bursts from now on. Those that die are replaced before the next victims.
func (s *stage) beside(pods []calmPod) (undo func() error, err error) {
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
			if s.bystanders[i], err = s.calm(ctx, p); err != nil {
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

// calm runs a calm pod, and returns when it has what it keeps.
func (s *stage) calm(ctx context.Context, p calmPod) (v *victim, err error) {
	pod, err := s.node.RunPod(ctx, node.PodSpec{Name: p.name, TerminationGracePeriod: time.Second, Containers: []node.ContainerSpec{{
		RunAsUser: hogUser, MemoryLimit: p.memoryLimit, Args: []string{"hold", "-thp=false", "-bytes", strconv.FormatInt(p.holds, 10)},
	}}})
	if err != nil {
		return nil, err
	}
	v = &victim{shape: shape{held: p.holds}, pod: pod}
	defer func() {
		if err != nil {
			err = errors.Join(err, v.remove(s.node))
		}
	}()
	if err := v.watch(pod.Containers[0].PID); err != nil {
		return nil, err
	}
	if err := v.awaitHeld(ctx); err != nil || p.caches == 0 {
		return v, err
	}
	// The cache is charged to the cgroup of whoever reads a page first.
	file := filepath.Join(s.dir, p.name)
	if err := errors.Join(os.RemoveAll(file), os.WriteFile(file, nil, 0o600), os.Truncate(file, p.caches)); err != nil {
		return nil, err
	}
	reader, err := startActor("read", "-file", file)
	if err != nil {
		return nil, err
	}
	defer reader.stop(ctx)
	if err := joinCgroups(reader.PID(), v.pids[0]); err != nil {
		return nil, err
	}
	reader.cue.Close()
	select {
	case <-reader.Done():
		return v, errors.Join(reader.Err(), v.cached(p.caches))
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// cached checks that so much active file cache is charged to the pod's cgroup.
func (v *victim) cached(bytes int64) error {
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
		return fmt.Errorf("%.1f MiB of file cache are active in the pod; want %.1f", mebibytes(active), mebibytes(bytes))
	}
	return nil
}

// spared reports whether every calm pod lives.
func (s *stage) spared() bool {
	for _, b := range s.bystanders {
		if !b.alive() {
			return false
		}
	}
	return true
}
