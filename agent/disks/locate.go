package disks

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/pollinterval"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/cri"
	"github.com/evictd/evictd/kernel/disk"
)

// locateAll locates the filesystems and determines which of them are the same: at
// the start, when a mount changes, and every signal.KubeletInterval. Mounts also change when
// containers start and end, so it pauses for queryRetry between two rounds.
func (w *Watch) locateAll(ctx context.Context, changed <-chan struct{}) {
	query := singleCall[cri.ImageFs]{what: "ImageFsInfo"}
	var locating [roles]singleCalls[disk.Mount]
	for {
		w.setPath(Node, w.NodePath(), nil)
		w.locateRole(Node, &locating[Node]) // does not depend on the runtime
		wait := signal.KubeletInterval
		if w.o.Runtime != nil {
			// The client has a deadline of its own; the timeout here covers a
			// client that exceeds it.
			fs, err := query.call(cri.CallTimeout+callTimeout, func() (cri.ImageFs, error) { return w.o.Runtime.ImageFsInfo(ctx) })
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				wait = queryRetry
			}
			w.setRuntimePaths(fs, err)
		}
		for _, r := range []Role{Image, Container} {
			w.locateRole(r, &locating[r])
		}
		w.updateLayout()
		if wait == signal.KubeletInterval {
			wait = pollinterval.AlignedWait(time.Now(), signal.KubeletInterval)
		}
		if !waitForChange(ctx, changed, wait) {
			return
		}
	}
}

// waitForChange waits until changed is signalled, for at least min(wait,
// queryRetry) and at most wait. It returns false when ctx ends.
func waitForChange(ctx context.Context, changed <-chan struct{}, wait time.Duration) bool {
	minWait := min(wait, queryRetry)
	timer := time.NewTimer(minWait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	}
	timer.Reset(wait - minWait)
	select {
	case <-ctx.Done():
		return false
	case <-changed:
	case <-timer.C:
	}
	return true
}

// NodePath returns the path of nodefs, as this process sees it. It may block.
func (w *Watch) NodePath() string {
	if w.o.NodePath != "" {
		return w.onHost(w.o.NodePath)
	}
	// List the parent instead of calling stat: stat would block if the directory is
	// a mount point that hangs.
	dir := w.onHost(KubeletDir)
	entries, err := os.ReadDir(filepath.Dir(dir))
	if err == nil {
		for _, e := range entries {
			if e.Name() == filepath.Base(dir) && e.IsDir() {
				return dir
			}
		}
	}
	return w.onHost("/")
}

func (w *Watch) onHost(path string) string { return filepath.Join(w.o.Rootfs, path) }

// setRuntimePaths sets the paths of the runtime's filesystems. On an error the
// previous paths remain.
func (w *Watch) setRuntimePaths(fs cri.ImageFs, err error) {
	if err != nil {
		err = fmt.Errorf("path not known, ImageFsInfo of the container runtime failed: %w", err)
		w.setPath(Image, "", err)
		w.setPath(Container, "", err)
		return
	}
	image := w.onHost(fs.Image[0].Mountpoint)
	container := image
	if len(fs.Container) > 0 {
		container = w.onHost(fs.Container[0].Mountpoint)
	}
	w.setPath(Image, image, nil)
	w.setPath(Container, container, nil)
}

// setPath sets the path of a filesystem, or the reason why the path is not known.
func (w *Watch) setPath(r Role, path string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := &w.filesystems[r]
	if err == nil && path != f.path {
		*f = filesystem{path: path}
		notify(w.wakeRole[r])
	}
	f.pathErr = err
}

// locateRole determines which filesystem the path of a role is on.
func (w *Watch) locateRole(r Role, locating *singleCalls[disk.Mount]) {
	w.mu.Lock()
	path := w.filesystems[r].path
	w.mu.Unlock()
	if path == "" {
		return
	}
	m, err := locating.get("locating "+path).call(callTimeout, func() (disk.Mount, error) { return w.locate(path) })
	w.mu.Lock()
	defer w.mu.Unlock()
	f := &w.filesystems[r]
	if !f.locateTried {
		f.locateTried = true // from now on Read returns its readings
		notify(w.crossed)
	}
	if err != nil {
		// Whether the filesystem is readable is decided by its readings. The layout
		// stays.
		w.o.Log.Debug("filesystem not located", "filesystem", r.String(), "path", path, "error", err)
		return
	}
	if f.located && f.mount.ID == m.ID && f.mount.Filesystem == m.Filesystem {
		if m.ReadOnly() != f.mount.ReadOnly() {
			w.o.Log.Warn("filesystem changed between read-only and writable", "filesystem", r.String(), "path", path, "read_only", m.ReadOnly())
		}
		f.mount = m
		return
	}
	// The path is on another filesystem now: read it at once.
	f.mount, f.located = m, true
	notify(w.wakeRole[r])
	w.o.Log.Info("filesystem located", "filesystem", r.String(), "path", path, "type", m.Type, "device", m.Filesystem.String(), "mounted_on", m.Point)
}

// updateLayout sets the layout once all filesystems are located. If images and
// writable layers are on different filesystems, the layout is split, independent of
// nodefs, as in the kubelet (pkg/kubelet/stats/provider.go).
func (w *Watch) updateLayout() {
	w.mu.Lock()
	defer w.mu.Unlock()
	layout := evict.SingleFs
	if w.applies(Image) {
		for r := range roles {
			if !w.filesystems[r].located {
				return
			}
		}
		node, image, container := w.filesystems[Node].mount.Filesystem, w.filesystems[Image].mount.Filesystem, w.filesystems[Container].mount.Filesystem
		switch {
		case image != container:
			layout = evict.SplitFs
		case image != node:
			layout = evict.ImageFs
		}
	}
	if layout != w.layout {
		w.o.Log.Info("filesystem layout changed", "layout", layout.String(), "before", w.layout.String())
		w.layout = layout
		notify(w.crossed)
	}
}

// Layout returns the layout of the filesystems: single until it is known.
func (w *Watch) Layout() evict.Layout {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.layout
}
