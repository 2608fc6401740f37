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
	"time"

	"github.com/evictd/evictd/cri"
)

// Where kubelets have their pods' logs, and links to them
// (pkg/kubelet/kuberuntime).
const (
	podLogs = "/var/log/pods"
	links   = "/var/log/containers"
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

// orphanRemovals returns the removals of the logs of pods that are gone, the oldest
// first. It is for where no kubelet runs, which
// keeps logs of pods that it has yet to start again.
func (r *Reclaimer) orphanRemovals(ctx context.Context, report *Report, sandboxes []cri.Sandbox) (list []removal) {
	answer := make(chan []orphan, 1)
	err := r.calls.do(ctx, "list logs of pods", func(context.Context) error {
		all, err := orphans(filepath.Join(r.o.Rootfs, podLogs), sandboxes, minimumAge, time.Now())
		answer <- all
		return err
	})
	if err != nil {
		report.Error = err.Error()
		return nil
	}
	for _, o := range <-answer {
		list = append(list, removal{key: "remove logs " + o.dir, name: "logs " + filepath.Base(o.dir), do: func(context.Context) error {
			if err := os.RemoveAll(o.dir); err != nil {
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
