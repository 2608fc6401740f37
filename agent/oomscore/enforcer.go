package oomscore

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/evictd/evictd/agent/pollinterval"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
)

// checkInterval is how often scores are checked. The runtime sets the score of a container
// when it starts; only processes started in it later can differ.
const checkInterval = 10 * time.Second

// Options configure an Enforcer.
type Options struct {
	Hierarchy *cgroup.Hierarchy
	Procfs    kernel.FS
	// Containers returns the containers whose scores are enforced.
	Containers func() []Container
	// Changed is called with the number of processes whose score was changed.
	Changed func(processes int)
	Log     *slog.Logger
}

// Enforcer keeps the oom_score_adj of containers at the wanted value.
type Enforcer struct {
	o Options
	// reported maps the cgroup inode of a container whose scores can't be changed to
	// the error that was logged.
	reported map[uint64]string
}

// New returns an Enforcer that does not run yet.
func New(o Options) *Enforcer { return &Enforcer{o: o, reported: map[uint64]string{}} }

// Run enforces the scores every checkInterval until ctx ends. It returns nil.
func (e *Enforcer) Run(ctx context.Context) error {
	timer := time.NewTimer(checkInterval)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-timer.C:
			e.enforceAll()
			timer.Reset(pollinterval.AlignedWait(now, checkInterval))
		}
	}
}

// enforceAll enforces the scores of all containers once. It logs one error per container.
func (e *Enforcer) enforceAll() {
	reported := map[uint64]string{}
	for _, c := range e.o.Containers() {
		changed, err := Enforce(e.o.Hierarchy, e.o.Procfs, c)
		if changed > 0 {
			e.o.Changed(changed)
			e.o.Log.Info("corrected oom_score_adj", "pod", c.Pod, "container", c.Name, "oom_score_adj", c.Wanted, "processes", changed)
		}
		if err == nil || errors.Is(err, cgroup.ErrGone) {
			continue
		}
		if reported[c.ID] = err.Error(); e.reported[c.ID] == "" {
			e.o.Log.Warn("could not correct oom_score_adj; the kernel's OOM killer may choose another pod first", "pod", c.Pod, "container", c.Name, "error", err)
		}
	}
	e.reported = reported
}
