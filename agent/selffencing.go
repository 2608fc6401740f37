package agent

import (
	"context"
	"path/filepath"
	"time"

	"github.com/evictd/evictd/agent/kube"
	"github.com/evictd/evictd/agent/kube/evictions"
	"github.com/evictd/evictd/agent/selffence"
	"github.com/evictd/evictd/agent/selffence/driver"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/process"
	"github.com/evictd/evictd/kernel/watchdog"
)

// plannedMargin is for how long after the deadline of a shutdown the node's absence is planned: for the end of the
// operating system and the next boot.
const plannedMargin = 10 * time.Minute

// buildSelfFencing makes self-fencing and the marks of the Node object. Without a configured watchdog it withdraws what
// an earlier run has advertised.
func (d *daemon) buildSelfFencing() {
	o := d.options
	d.marks = kube.NewMarks(func(number uint64) { d.selfFencing.Accepted(number) }, d.log.Logger)
	d.marks.Peers = func(c selffence.Count) { d.selfFencing.CountPeers(c) }
	d.selfFencing = driver.New(driver.Options{
		Path: d.config.SelfFencing.Device, Timeout: d.config.SelfFencing.Timeout, FeedGap: d.config.SelfFencing.FeedGap, Peers: d.config.SelfFencing.Peers,
		DryRun: d.config.DryRun, BootID: d.bootID, StateFile: filepath.Join(filepath.Dir(o.FenceFile), "selffence"),
		Uptime: process.Uptime, Procfs: kernel.FS(o.Procfs), Sysfs: kernel.FS(o.Sysfs), OnFeedThread: d.self.SetRealTime,
		Open:  func(path string) (driver.Device, error) { return watchdog.Open(path) },
		Marks: d.marks, Log: d.log.Logger,
	})
}

// stopSelfFencing withdraws the advert and disarms the watchdog.
func (d *daemon) stopSelfFencing() {
	ctx, cancel := context.WithTimeout(context.Background(), evictions.StopTimeout)
	defer cancel()
	d.selfFencing.Stop(ctx)
}

// planShutdown marks the Node while the node shuts down.
func (d *daemon) planShutdown(now time.Time) {
	s, until := d.shutdown.State(), time.Time{}
	if v := d.lastView.Load(); s.Active() && (v == nil || !v.Mode.DryRun) {
		until = s.Deadline().Add(plannedMargin)
		if latest := now.Add(selffence.MaxPlannedShutdown); until.After(latest) {
			until = latest
		}
	}
	d.selfFencing.PlanShutdown(until)
}
