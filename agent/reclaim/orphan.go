package reclaim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/cri"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/disk"
)

// Where kubelets have their pods' logs, and links to them
// (pkg/kubelet/kuberuntime).
const (
	podLogs  = "/var/log/pods"
	logLinks = "/var/log/containers"
)

// orphan is a directory of logs whose pod the runtime does not know.
type orphan struct {
	dir   string
	since time.Time // when a container's log was added or removed last
}

// orphans lists the directories in root that are named after pods, as
// <namespace>_<name>_<uid>, and after none that there is, the oldest first.
func orphans(root string, sandboxes []cri.Sandbox, minAge time.Duration, now time.Time) ([]orphan, error) {
	entries, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list logs of pods: %w", err)
	}
	known := map[string]bool{}
	for i := range sandboxes {
		known[sandboxes[i].UID] = true
	}
	var list []orphan
	for _, e := range entries {
		// Neither a namespace nor a name has an underscore.
		parts := strings.Split(e.Name(), "_")
		if !e.IsDir() || len(parts) != 3 || parts[2] == "" || known[parts[2]] {
			continue
		}
		info, err := e.Info()
		if err != nil || now.Sub(info.ModTime()) < minAge {
			continue
		}
		list = append(list, orphan{filepath.Join(root, e.Name()), info.ModTime()})
	}
	slices.SortFunc(list, func(a, b orphan) int { return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.dir, b.dir)) })
	return list, nil
}

// unused leaves out the directories that another runtime of this host may use: those
// with a file that a process has open, as the runtime has the logs of what runs, and
// those with a link to a file that is there, as cri-dockerd makes them to docker's
// logs. An error says that it can't be told what processes have open.
func unused(all []orphan, rootfs string, procfs kernel.FS) ([]orphan, error) {
	open, err := openDirs(procfs, filepath.Base(podLogs))
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(o orphan) bool { return open[filepath.Base(o.dir)] || links(rootfs, o.dir) }), nil
}

// openDirs returns the names of the directories right below one of a name in which
// any process has a file open. It goes by names: looking at an open file may hang.
func openDirs(procfs kernel.FS, below string) (map[string]bool, error) {
	processes, err := filepath.Glob(procfs.Path("[0-9]*"))
	if err == nil && len(processes) == 0 {
		err = errors.New("no processes")
	}
	if err != nil {
		return nil, fmt.Errorf("look for open logs in %s: %w", procfs, err)
	}
	open := map[string]bool{}
	for _, process := range processes {
		dir := filepath.Join(process, "fd")
		fds, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ESRCH) {
			return nil, fmt.Errorf("look for open logs: %w", err)
		}
		for _, fd := range fds {
			target, err := os.Readlink(filepath.Join(dir, fd.Name()))
			if err != nil {
				continue // closed since, or the process has ended
			}
			parts := strings.Split(target, "/")
			if i := slices.Index(parts, below); i >= 0 && i+1 < len(parts) {
				open[parts[i+1]] = true
			}
		}
	}
	return open, nil
}

// links reports whether a directory has a symbolic link, at most two levels down as
// the logs are, to something that is there.
func links(rootfs, dir string) bool {
	for _, pattern := range []string{"*", "*/*"} {
		paths, _ := filepath.Glob(filepath.Join(dir, pattern)) // the pattern is well-formed
		for _, path := range paths {
			if info, err := os.Lstat(path); err != nil || info.Mode().Type() != fs.ModeSymlink {
				continue
			}
			if target, err := os.Readlink(path); err == nil && filepath.IsAbs(target) {
				path = filepath.Join(rootfs, target) // as the host sees it
			}
			if _, err := os.Stat(path); err == nil {
				return true
			}
		}
	}
	return false
}

// orphanRemovals returns the removals of the logs of pods that are gone, the oldest
// first. It is for where no kubelet runs, which
// keeps logs of pods that it has yet to start again.
func (r *Reclaimer) orphanRemovals(ctx context.Context, report *evict.ReclaimReport, sandboxes []cri.Sandbox) (list []removal) {
	answer := make(chan []orphan, 1)
	err := r.calls.do(ctx, "list logs of pods", func(context.Context) error {
		all, err := orphans(filepath.Join(r.o.Rootfs, podLogs), sandboxes, minimumAge, time.Now())
		if err == nil && len(all) > 0 {
			all, err = unused(all, r.o.Rootfs, r.o.Procfs)
		}
		answer <- all
		return err
	})
	if err != nil {
		report.Error = err.Error()
		return nil
	}
	for _, o := range <-answer {
		list = append(list, removal{key: "remove logs " + o.dir, name: "logs " + filepath.Base(o.dir), do: func(context.Context) error {
			if err := disk.RemoveTree(o.dir); err != nil {
				return fmt.Errorf("remove logs: %w", err)
			}
			return nil
		}})
	}
	return list
}

// removeDeadLinks removes the symbolic links in a directory whose target is not
// there.
func removeDeadLinks(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list links to logs: %w", err)
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if _, err := os.Stat(path); e.Type() == fs.ModeSymlink && errors.Is(err, fs.ErrNotExist) {
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("remove a link to logs: %w", err)
			}
		}
	}
	return nil
}
