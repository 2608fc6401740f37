package agent

import (
	"path/filepath"
	"time"

	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/disks"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/loop"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/kernel"
)

// buildDisks makes the watch of the filesystems and the meter of disk usage.
func (d *daemon) buildDisks(cfg *config.Config) {
	o := disks.Options{
		Procfs: kernel.FS(d.options.Procfs), Rootfs: d.options.Rootfs, NodePath: cfg.NodefsPath, Log: d.log.Logger,
	}
	if d.runtime != nil {
		o.Runtime = d.runtime
	}
	d.disks = disks.New(o)
	d.metrics.Filesystems(func() []evict.FilesystemStatus { return d.disks.Statuses(time.Now()) })
	meter := disks.UsageMeterOptions{
		Procfs: o.Procfs, Rootfs: o.Rootfs, LayersDir: d.disks.LayersDir, OnSurvey: d.addSurvey, Log: d.log.Logger,
	}
	if cfg.NodefsPath != "" {
		meter.PodsDir = filepath.Join(cfg.NodefsPath, "pods")
	}
	if d.runtime != nil {
		meter.RuntimeLayers = disks.RuntimeLayers(d.runtime.WritableLayers)
	}
	d.usageMeter = disks.NewUsageMeter(meter)
	d.diskUsage = loop.NewDiskUsage(d.usageMeter)
}

// addSurvey adds the largest directories of a filesystem to the records of futile evictions
// that were decided before the survey.
func (d *daemon) addSurvey(point string, byBytes, byInodes []evict.DirectoryUsage) {
	d.records.EachFutile(func(rec *evict.Record) {
		s, known := signal.Parse(rec.Cause)
		switch {
		case !known || !s.IsDisk() || rec.SystemDirectories != nil || d.disks.MountPoint(s) != point:
		case s.IsInodes():
			rec.SystemDirectories = byInodes
		default:
			rec.SystemDirectories = byBytes
		}
	})
	d.stateWriter.Request()
}

// setDiskThresholds sets the thresholds of disks and tasks, which depend on the layout of
// the filesystems.
func (d *daemon) setDiskThresholds(p *evict.Policy) {
	d.disks.SetPolicy(p)
	d.tasks.SetPolicy(p)
	d.metrics.Policy(p)
}
