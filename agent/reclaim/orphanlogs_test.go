package reclaim

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/cri"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/kerneltest"
)

func TestListOrphans(t *testing.T) {
	root := kerneltest.Tree(t, map[string]string{
		"ns_gone_u1/main/0.log": "x", "ns_older_u2/main/0.log": "x", "ns_known_u3/main/0.log": "x", "ns_young_u4/main/0.log": "x",
		"ns_nouid_/": "", "other/": "", "a_b_c_d/": "", "ns_file_u5": "x", "ns_link_u6@": "/etc",
	})
	now := time.Now()
	for name, age := range map[string]time.Duration{"ns_gone_u1": time.Hour, "ns_older_u2": 2 * time.Hour, "ns_known_u3": time.Hour, "ns_nouid_": time.Hour, "other": time.Hour, "a_b_c_d": time.Hour} {
		if err := os.Chtimes(filepath.Join(root, name), now.Add(-age), now.Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	list, err := listOrphans(root, []cri.Sandbox{{UID: "u3"}}, time.Minute, now)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, o := range list {
		names = append(names, filepath.Base(o.dir))
	}
	if got, want := strings.Join(names, " "), "ns_older_u2 ns_gone_u1"; got != want {
		t.Errorf("listOrphans = %q; want %q", got, want)
	}
	if list, err := listOrphans(filepath.Join(root, "none"), nil, 0, now); len(list) != 0 || err != nil {
		t.Errorf("listOrphans of a missing directory = %v, %v; want none", list, err)
	}
	if _, err := listOrphans(filepath.Join(root, "ns_file_u5"), nil, 0, now); err == nil {
		t.Error("listOrphans of a file = nil; want an error")
	}
}

// Orphaned logs are removed only if no kubelet runs.
func TestOrphansUnderPressure(t *testing.T) {
	for _, absent := range []bool{false, true} {
		root := kerneltest.Tree(t, map[string]string{"var/log/pods/ns_gone_u1/main/0.log": "x"})
		// The clock of a synctest bubble starts in 2000.
		if err := os.Chtimes(filepath.Join(root, "var/log/pods/ns_gone_u1"), start, start); err != nil {
			t.Fatal(err)
		}
		n := &node{available: 50}
		run(t, n, Policy{}, func(o *Options) { o.Rootfs, o.Kubelet = root, withKubelet(evict.Kubelet{Known: true, Absent: absent}) }, func(r *Reclaimer) {
			r.Start(evict.Reclaim{Kind: evict.ReclaimContainers, Signal: signal.NodeFsAvailable, Deficit: 10})
			report := <-r.Done()
			if got := strings.Join(report.Removed, " "); (got == "logs ns_gone_u1") != absent {
				t.Errorf("no kubelet: %t; removed %q", absent, got)
			}
			synctest.Wait()
		})
		if _, err := os.Stat(filepath.Join(root, "var/log/pods/ns_gone_u1")); (err == nil) == absent {
			t.Errorf("no kubelet: %t; stat of the logs: %v", absent, err)
		}
	}
}

func TestRemoveDeadLinks(t *testing.T) {
	root := kerneltest.Tree(t, map[string]string{"target": "x", "links/dead@": "/nowhere/at/all", "links/file": "x"})
	if err := os.Symlink(filepath.Join(root, "target"), filepath.Join(root, "links/alive")); err != nil {
		t.Fatal(err)
	}
	if err := removeDeadLinks(filepath.Join(root, "links")); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(filepath.Join(root, "links"))
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 2 || entries[0].Name() != "alive" || entries[1].Name() != "file" {
		t.Errorf("entries = %v; want alive and file", entries)
	}
	if err := removeDeadLinks(filepath.Join(root, "none")); err != nil {
		t.Errorf("removeDeadLinks of a missing directory: %v", err)
	}
}

// Logs are not orphaned if a process has them open, as another runtime has those of
// its running pods, or if they link to existing files, as docker's do.
func TestOrphansOfAnotherRuntime(t *testing.T) {
	root := kerneltest.Tree(t, map[string]string{
		"var/log/pods/ns_gone_u1/main/0.log": "x", "var/log/pods/ns_open_u2/main/0.log": "x",
		"docker/3.log": "x", "var/log/pods/ns_dead-link_u4/main/0.log@": "/nowhere/at/all",
		"var/log/pods/ns_linked_u3/main/0.log@": "/docker/3.log", // as the host sees it
	})
	open, err := os.OpenFile(filepath.Join(root, "var/log/pods/ns_open_u2/main/0.log"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	for _, name := range []string{"ns_gone_u1", "ns_open_u2", "ns_linked_u3", "ns_dead-link_u4"} {
		if err := os.Chtimes(filepath.Join(root, "var/log/pods", name), start, start); err != nil {
			t.Fatal(err)
		}
	}
	n := &node{available: 50}
	run(t, n, Policy{}, func(o *Options) {
		o.Rootfs, o.Procfs, o.Kubelet = root, "/proc", withKubelet(evict.Kubelet{Known: true, Absent: true})
	}, func(r *Reclaimer) {
		r.Start(evict.Reclaim{Kind: evict.ReclaimContainers, Signal: signal.NodeFsAvailable, Deficit: 10})
		report := <-r.Done()
		slices.Sort(report.Removed)
		if !slices.Equal(report.Removed, []string{"logs ns_dead-link_u4", "logs ns_gone_u1"}) || report.Error != "" {
			t.Errorf("report %+v; want the logs without an open file or live link removed", report)
		}
	})
	// If the open files can't be listed, no logs are removed.
	if err := os.Mkdir(filepath.Join(root, "var/log/pods/ns_gone_u1"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(filepath.Join(root, "var/log/pods/ns_gone_u1"), start, start); err != nil {
		t.Fatal(err)
	}
	run(t, n, Policy{}, func(o *Options) {
		o.Rootfs, o.Procfs, o.Kubelet = root, kernel.FS(t.TempDir()), withKubelet(evict.Kubelet{Known: true, Absent: true})
	}, func(r *Reclaimer) {
		r.Start(evict.Reclaim{Kind: evict.ReclaimContainers, Signal: signal.NodeFsAvailable, Deficit: 10})
		if report := <-r.Done(); len(report.Removed) > 0 || report.Error == "" {
			t.Errorf("report %+v without processes; want nothing removed and an error", report)
		}
	})
}
