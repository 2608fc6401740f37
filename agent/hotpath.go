package agent

import (
	"context"
	"strings"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/hot"
	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/agent/memory"
	"github.com/evictd/evictd/agent/self"
)

// buildHot makes the hot path and its watchdog.
func (d *daemon) buildHot(from memory.Options) error {
	var err error
	if d.reaper, err = act.NewReaper(); err != nil {
		return err
	}
	d.reaper.OnStart = d.self.SetRealTime
	d.closers = append(d.closers, d.reaper.Close)
	d.arbiter = hot.NewArbiter()
	options := func() (hot.Options, error) {
		read, err := memory.OpenAsyncReader(from)
		if err != nil {
			return hot.Options{}, err
		}
		d.closers = append(d.closers, read.Close)
		d.asyncReaders = append(d.asyncReaders, read)
		kill, look := d.fastKillers()
		return hot.Options{Arbiter: d.arbiter, Reader: read, Killer: kill, DryRunKiller: look}, nil
	}
	forThread, err := options()
	if err != nil {
		return err
	}
	d.samplerReader.Files = d.asyncReaders[0]
	forThread.Reader = d.samplerReader
	forThread.OnStart = func() {
		d.self.SetRealTime()
		d.self.WarmUp(forThread)
	}
	d.lockMemory = func(ctx context.Context) {
		d.self.LockMemory(ctx, d.lanesStarting, func() bool { return d.urgency() == self.Idle }, func(ctx context.Context) bool {
			return d.hot.Do(ctx, func() { d.self.WarmUp(forThread) })
		})
	}
	if d.hot, err = hot.New(forThread); err != nil {
		return err
	}
	d.closers = append(d.closers, d.hot.Close)
	forWatchdog, err := options()
	if err != nil {
		return err
	}
	if d.watchdog, err = hot.NewWatchdog(d.hot, forWatchdog, d.liveness.Last, d.liveness.SettleTimeout); err != nil {
		return err
	}
	d.closers = append(d.closers, d.watchdog.Close)
	return nil
}

// fastKillers makes a killer for one thread, and one for dry run.
func (d *daemon) fastKillers() (kill, look fastKiller) {
	kill, look = fastKiller{act.NewFastKiller(d.reaper)}, fastKiller{act.NewNoopKiller()}
	d.closers = append(d.closers, kill.Close, look.Close)
	return kill, look
}

// startHot starts the hot path, the watchdog and the poll lane.
func (d *daemon) startHot(ctx context.Context, g *group) {
	for _, a := range d.asyncReaders {
		g.run("memory of the pods", func() error { return a.Run(ctx) })
	}
	g.run("collector", func() error { self.CollectGarbage(ctx, d.lanesStarting, d.urgency); return nil })
	g.run("reaper", func() error { d.reaper.Run(ctx); return nil })
	if d.killer.PriorityThread != nil {
		go d.killer.PriorityThread.Run(ctx) // the end of evictd does not wait for it: it may hang in a kill
	}
	g.run("hot path", func() error { return d.hot.Run(ctx) })
	g.run("watchdog", func() error { return d.watchdog.Run(ctx) })
	alarms := make(chan lanes.Alarm, 1)
	g.run("poll lane", func() error { return d.poll.Run(ctx, alarms) })
	g.run("alarms", func() error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case r := <-alarms:
				if err := d.hot.Raise(r); err != nil && ctx.Err() == nil {
					return err
				}
			}
		}
	})
}

// hotPathCounts returns the number of alarms by result, and of confirming readings by
// source.
func (d *daemon) hotPathCounts() (alarms, readings map[string]uint64) {
	alarms = make(map[string]uint64, hot.Results)
	for r := range hot.Results {
		alarms[strings.ReplaceAll(r.String(), " ", "_")] = d.hot.Count(r) + d.watchdog.Count(r)
	}
	sampler, files := d.samplerReader.Counts()
	return alarms, map[string]uint64{"sampler": sampler, "files": files}
}

// fastKiller is an act.Striker as a hot.Striker.
type fastKiller struct{ *act.FastKiller }

// Kill implements hot.Striker.
func (s fastKiller) Kill(p hot.Handle, g *evict.Guard) act.KillResult {
	return s.FastKiller.Kill(p.(*act.KillHandle), g)
}
