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
		reader, err := memory.OpenAsyncReader(from, d.self.SetRealTime)
		if err != nil {
			return hot.Options{}, err
		}
		d.closers = append(d.closers, reader.Close)
		d.asyncReaders = append(d.asyncReaders, reader)
		killer, dryRunKiller := d.fastKillers()
		return hot.Options{Arbiter: d.arbiter, Reader: reader, Killer: killer, DryRunKiller: dryRunKiller}, nil
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
func (d *daemon) fastKillers() (killer, dryRunKiller fastKiller) {
	killer, dryRunKiller = fastKiller{act.NewFastKiller(d.reaper)}, fastKiller{act.NewNoopKiller()}
	d.closers = append(d.closers, killer.Close, dryRunKiller.Close)
	return killer, dryRunKiller
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
			case alarm := <-alarms:
				if err := d.hot.Raise(alarm); err != nil && ctx.Err() == nil {
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

// fastKiller is an act.FastKiller as a hot.Killer.
type fastKiller struct{ *act.FastKiller }

// Kill implements hot.Killer.
func (k fastKiller) Kill(h hot.Handle, g *evict.Guard) act.KillResult {
	return k.FastKiller.Kill(h.(*act.KillHandle), g)
}
