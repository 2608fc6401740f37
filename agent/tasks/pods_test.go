package tasks

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/kerneltest"
)

// The pods' cgroup is looked up in the hierarchy of the pids controller, and again after a
// while.
func TestPodsCgroup(t *testing.T) {
	memory, pids := kerneltest.Tree(t, nil), kerneltest.Tree(t, nil)
	h := &cgroup.Hierarchy{Version: cgroup.V1, Memory: kernel.FS(memory), Pids: kernel.FS(pids)}
	synctest.Test(t, func(t *testing.T) {
		find := PodsCgroup(h, "/")
		if _, _, ok := find(); ok {
			t.Error("found a cgroup before there is one")
		}
		kerneltest.Write(t, memory, map[string]string{"kubepods/cgroup.procs": "1\n"})
		time.Sleep(lookupInterval)
		if _, _, ok := find(); ok {
			t.Error("looked up again too soon")
		}
		time.Sleep(time.Nanosecond)
		if tree, path, ok := find(); !ok || tree != h.Pids || path != "/kubepods" {
			t.Errorf("found %s in %s, %t; want /kubepods in %s", path, tree, ok, pids)
		}
	})
}
