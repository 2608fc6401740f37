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

// podLogs and logLinks are the directories of a kubelet's pod logs and of links to
// them (pkg/kubelet/kuberuntime).
const (
	podLogs  = "/var/log/pods"
	logLinks = "/var/log/containers"
)

// orphanLogs is a directory of logs whose pod the runtime does not list.
type orphanLogs struct {
	dir   string
	since time.Time // when an entry was last added or removed
}

// listOrphans lists the directories in root that are named after a pod, as
// <namespace>_<name>_<uid>, that is not among sandboxes, oldest first.
func listOrphans(root string, sandboxes []cri.Sandbox, minAge time.Duration, now time.Time) ([]orphanLogs, error) {
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
	var list []orphanLogs
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
		list = append(list, orphanLogs{filepath.Join(root, e.Name()), info.ModTime()})
	}
	slices.SortFunc(list, func(a, b orphanLogs) int { return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.dir, b.dir)) })
	return list, nil
}

// withoutUsed removes from the list directories that another runtime of this host
// may use: those in which a process has a file open, as a runtime has the logs of
// running containers, and those with a link to an existing file, as cri-dockerd
// makes them to docker's logs. It fails if the open files of a process can't be
// listed.
func withoutUsed(all []orphanLogs, rootfs string, procfs kernel.FS) ([]orphanLogs, error) {
	open, err := openDirs(procfs, filepath.Base(podLogs))
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(o orphanLogs) bool { return open[filepath.Base(o.dir)] || hasLiveLink(rootfs, o.dir) }), nil
}

// openDirs returns the names of the directories directly below a directory named
// below in which any process has a file open. It compares names only: stat of an
// open file may hang.
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
				continue // closed in between, or the process has ended
			}
			parts := strings.Split(target, "/")
			if i := slices.Index(parts, below); i >= 0 && i+1 < len(parts) {
				open[parts[i+1]] = true
			}
		}
	}
	return open, nil
}

// hasLiveLink reports whether a directory has a symbolic link to an existing file,
// at most two levels down, where the logs are.
func hasLiveLink(rootfs, dir string) bool {
	for _, pattern := range []string{"*", "*/*"} {
		paths, _ := filepath.Glob(filepath.Join(dir, pattern)) // the pattern is valid
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

// orphanRemovals returns the removals of orphaned logs, oldest first. It is used
// only where no kubelet runs: a kubelet keeps logs of pods that it is about to
// restart.
func (r *Reclaimer) orphanRemovals(ctx context.Context, report *evict.ReclaimReport, sandboxes []cri.Sandbox) (list []removal) {
	answer := make(chan []orphanLogs, 1)
	err := r.calls.do(ctx, "list logs of pods", func(context.Context) error {
		all, err := listOrphans(filepath.Join(r.o.Rootfs, podLogs), sandboxes, minDeadAge, time.Now())
		if err == nil && len(all) > 0 {
			all, err = withoutUsed(all, r.o.Rootfs, r.o.Procfs)
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

// removeDeadLinks removes dangling symbolic links in a directory.
func removeDeadLinks(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list log links: %w", err)
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if _, err := os.Stat(path); e.Type() == fs.ModeSymlink && errors.Is(err, fs.ErrNotExist) {
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("remove log link: %w", err)
			}
		}
	}
	return nil
}
