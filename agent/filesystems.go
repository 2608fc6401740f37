package agent

import (
	"context"
	"path/filepath"
	"time"

	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/disks"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/loop"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/cri"
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
		meter.RuntimeLayers = layersOf(d.runtime)
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

// layersOf returns a function that asks the runtime for the usage of writable layers.
func layersOf(runtime *cri.Client) func(context.Context) (map[string]disks.Measurement, error) {
	return func(ctx context.Context) (map[string]disks.Measurement, error) {
		layers, err := runtime.WritableLayers(ctx)
		if len(layers) == 0 && err != nil {
			return nil, err
		}
		all := make(map[string]disks.Measurement, len(layers))
		for id, l := range layers {
			if l.UsedBytes == nil || l.Measured.IsZero() {
				continue
			}
			m := disks.Measurement{At: l.Measured, Method: "runtime"}
			m.Bytes = *l.UsedBytes
			if l.InodesUsed != nil {
				m.Inodes = *l.InodesUsed
			} else {
				m.Incomplete = "the runtime does not report inodes"
			}
			all[id] = m
		}
		return all, nil
	}
}
