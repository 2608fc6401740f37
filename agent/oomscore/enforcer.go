package oomscore

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/evictd/evictd/agent/pace"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
)

// every is how often scores are looked at: a container that has just started has
// its score from the runtime, and only what is started in it later may differ.
const every = 10 * time.Second

// Options are what an Enforcer is made of.
type Options struct {
	Hierarchy *cgroup.Hierarchy
	Procfs    kernel.FS
	// Containers lists those whose scores are enforced now.
	Containers func() []Container
	// Changed hears of processes that were given another score.
	Changed func(processes int)
	Log     *slog.Logger
}

// Enforcer keeps the scores of containers at what they should be.
type Enforcer struct {
	o Options
	// told holds, by inode, what was last said of a container whose scores can't
	// be changed.
	told map[uint64]string
}

// New returns an Enforcer, which does nothing before it runs.
func New(o Options) *Enforcer { return &Enforcer{o: o, told: map[uint64]string{}} }

// Run enforces now and then until ctx ends. It returns nil.
func (e *Enforcer) Run(ctx context.Context) error {
	timer := time.NewTimer(every)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-timer.C:
			e.round()
			timer.Reset(pace.Together(now, every))
		}
	}
}

// round looks at every container once. What can't be changed is told once.
func (e *Enforcer) round() {
	told := map[uint64]string{}
	for _, c := range e.o.Containers() {
		changed, err := Enforce(e.o.Hierarchy, e.o.Procfs, c)
		if changed > 0 {
			e.o.Changed(changed)
			e.o.Log.Info("oom_score_adj corrected", "pod", c.Pod, "container", c.Name, "oom_score_adj", c.Wanted, "processes", changed)
		}
		if err == nil || errors.Is(err, cgroup.ErrGone) {
			continue
		}
		if told[c.ID] = err.Error(); e.told[c.ID] == "" {
			e.o.Log.Warn("oom_score_adj can't be corrected, the kernel's OOM killer may take another pod first", "pod", c.Pod, "container", c.Name, "error", err)
		}
	}
	e.told = told
}
