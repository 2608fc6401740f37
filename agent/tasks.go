package agent

import (
	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/tasks"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
)

// buildTasks makes the watch of the tasks.
func (d *daemon) buildTasks(cfg *config.Config, h *cgroup.Hierarchy) (err error) {
	d.tasks, err = tasks.New(tasks.Options{Procfs: kernel.FS(d.options.Procfs), Pods: tasks.PodsCgroup(h, cfg.CgroupRoot), Log: d.log.Logger})
	if err != nil {
		return err
	}
	d.closers = append(d.closers, d.tasks.Close)
	return nil
}
