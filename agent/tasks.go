package agent

import (
	"sync"
	"time"

	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/tasks"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
)

// kubepodsLookupInterval is how often the pods' cgroup is looked up: it moves only when the
// kubelet is configured again.
const kubepodsLookupInterval = 10 * time.Second

// buildTasks makes the watch of the tasks.
func (d *daemon) buildTasks(cfg *config.Config, h *cgroup.Hierarchy) error {
	tree := h.Memory // v2 has one tree for all
	if h.Version != cgroup.V2 {
		tree = h.Pids
	}
	var mu sync.Mutex
	var path string
	var lookedUp time.Time
	watch, err := tasks.New(tasks.Options{
		Procfs: kernel.FS(d.options.Procfs), Log: d.log.Logger,
		Pods: func() (kernel.FS, string, bool) {
			mu.Lock()
			defer mu.Unlock()
			if lookedUp.IsZero() || time.Since(lookedUp) > kubepodsLookupInterval {
				lookedUp, path = time.Now(), ""
				if found, ok, err := h.Kubepods(cfg.CgroupRoot); err == nil && ok {
					path = found.Path
				}
			}
			return tree, path, tree != "" && path != ""
		},
	})
	if err != nil {
		return err
	}
	d.closers = append(d.closers, watch.Close)
	d.tasks = watch
	return nil
}
