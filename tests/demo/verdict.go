package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/tests/node"
)

// judge returns an error unless everything went as it should.
func (p *play) judge(ctx context.Context, r *evict.Record) error {
	result, did := evict.ResultKilled, "was evicted"
	if p.dryRun {
		result, did = evict.ResultDryRun, "would have been evicted"
	}
	if want := namespace + "/" + hog.name; r.Pod != want || r.Cause != signal.MemoryAvailable.String() || !r.Hard || r.Result != result || r.Error != "" {
		return fmt.Errorf("evictd's record is %+v; want %s %s by a hard threshold on %v", *r, want, result, signal.MemoryAvailable)
	}
	p.timeline.verdict("%s %s: %s", r.Pod, did, strings.TrimSpace(r.Message))
	if !p.dryRun {
		if err := p.evicted(ctx); err != nil {
			return err
		}
		p.timeline.verdict("its sandbox is stopped, and its memory is back")
	}
	// Had the kill been too little, or the decision wrong, evictd would act again before the condition clears.
	if err := p.await(ctx, "the condition MemoryPressure to clear", func() (bool, error) {
		s, err := p.daemon.Client().Status(ctx)
		if err == nil && len(s.Records) != 1 {
			err = fmt.Errorf("evictd evicted again: %+v", s.Records)
		}
		return len(s.Conditions) == 0, err
	}); err != nil {
		return err
	}
	p.timeline.verdict("the node's condition MemoryPressure came and went")
	for _, pod := range p.pods {
		if err := p.alive(ctx, pod); err != nil {
			return err
		}
		usage, err := p.node.MemoryUsage(pod.Containers[0].Cgroup)
		if err != nil {
			return err
		}
		p.timeline.verdict("%s/%s lives: process %d as before, with its %s", pod.Namespace, pod.Name, pod.Containers[0].PID, control.Bytes(usage))
	}
	return nil
}

// evicted waits until the runtime knows that the hog is gone.
func (p *play) evicted(ctx context.Context) error {
	return p.await(ctx, "the hog's sandbox to be stopped", func() (bool, error) {
		now, err := p.node.Pod(ctx, p.hog.ID)
		return err == nil && !now.Ready && !now.Containers[0].Running, err
	})
}

// alive returns an error unless the pod runs with the processes that it had.
func (p *play) alive(ctx context.Context, before node.Pod) error {
	now, err := p.node.Pod(ctx, before.ID)
	if err != nil {
		return err
	}
	was := before.Containers[0]
	if is := now.Containers[0]; !now.Ready || !is.Running || is.PID != was.PID || now.PID != before.PID {
		return fmt.Errorf("%s/%s does not run as before: %+v", before.Namespace, before.Name, now)
	}
	return nil
}
