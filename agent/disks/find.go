package disks

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/pace"
	"github.com/evictd/evictd/cri"
	"github.com/evictd/evictd/kernel/disk"
)

// find finds out where the filesystems are and which of them are one: now,
// whenever a mount changes, and now and then. Containers that come and go change
// mounts too, so it rests in between.
func (w *Watch) find(ctx context.Context, changed <-chan struct{}) {
	asking := errand[cri.ImageFs]{what: "ImageFsInfo"}
	var locating [roles]errands[disk.Mount]
	for {
		w.settleAt(Node, w.nodePath(), nil)
		w.locateRole(Node, &locating[Node]) // whatever becomes of the runtime
		wait := askEvery
		if w.o.Runtime != nil {
			// The client has a deadline of its own, the other is for one that does
			// not keep it.
			fs, err := asking.ask(cri.CallTimeout+patience, func() (cri.ImageFs, error) { return w.o.Runtime.ImageFsInfo(ctx) })
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				wait = askAgain
			}
			w.settleRuntime(fs, err)
		}
		for _, r := range []Role{Image, Container} {
			w.locateRole(r, &locating[r])
		}
		w.arrange()
		if wait == askEvery {
			wait = pace.Together(time.Now(), askEvery)
		}
		if !rest(ctx, changed, wait) {
			return
		}
	}
}

// rest waits for a change, at least for a moment and at most for a time; it
// returns false when ctx ends.
func rest(ctx context.Context, changed <-chan struct{}, wait time.Duration) bool {
	moment := min(wait, askAgain)
	timer := time.NewTimer(moment)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	}
	timer.Reset(wait - moment)
	select {
	case <-ctx.Done():
		return false
	case <-changed:
	case <-timer.C:
	}
	return true
}

// nodePath returns where nodefs is, as this process sees it.
func (w *Watch) nodePath() string {
	if w.o.NodePath != "" {
		return w.onHost(w.o.NodePath)
	}
	// The parent is listed, which does not hang where the directory is a mount
	// that does.
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

// settleRuntime takes the runtime's word on where its filesystems are. While it
// says nothing, what it said before holds.
func (w *Watch) settleRuntime(fs cri.ImageFs, err error) {
	if err != nil {
		err = fmt.Errorf("the container runtime does not tell where it is: %w", err)
		w.settleAt(Image, "", err)
		w.settleAt(Container, "", err)
		return
	}
	image := w.onHost(fs.Image[0].Mountpoint)
	container := image
	if len(fs.Container) > 0 {
		container = w.onHost(fs.Container[0].Mountpoint)
	}
	w.settleAt(Image, image, nil)
	w.settleAt(Container, container, nil)
}

// settleAt notes where a filesystem is, or why that is not known.
func (w *Watch) settleAt(r Role, path string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := &w.places[r]
	if err == nil && path != p.path {
		*p = place{path: path}
		tell(w.poke[r])
	}
	p.pathErr = err
}

// locateRole finds out which filesystem a role's path is on.
func (w *Watch) locateRole(r Role, locating *errands[disk.Mount]) {
	w.mu.Lock()
	path := w.places[r].path
	w.mu.Unlock()
	if path == "" {
		return
	}
	m, err := locating.to("locating "+path).ask(patience, func() (disk.Mount, error) { return w.locate(path) })
	w.mu.Lock()
	defer w.mu.Unlock()
	p := &w.places[r]
	if !p.sought {
		p.sought = true // what was read of it counts from now on
		tell(w.crossed)
	}
	if err != nil {
		// Whether it can be read is told by reading it; the layout stays.
		w.o.Log.Debug("filesystem not located", "filesystem", r.String(), "path", path, "error", err)
		return
	}
	if p.located && p.mount.ID == m.ID && p.mount.Filesystem == m.Filesystem {
		if m.ReadOnly() != p.mount.ReadOnly() {
			w.o.Log.Warn("filesystem changed between read-only and writable", "filesystem", r.String(), "path", path, "read_only", m.ReadOnly())
		}
		p.mount = m
		return
	}
	// Another filesystem is there now: it is read at once.
	p.mount, p.located = m, true
	tell(w.poke[r])
	w.o.Log.Info("filesystem found", "filesystem", r.String(), "path", path, "type", m.Type, "device", m.Filesystem.String(), "mounted_on", m.Point)
}

// arrange concludes how the filesystems are cut, once all are located: images
// apart from writable layers are the split layout, whatever else is one with
// what, as the kubelet has it (pkg/kubelet/stats/provider.go).
func (w *Watch) arrange() {
	w.mu.Lock()
	defer w.mu.Unlock()
	layout := evict.SingleFs
	if w.applies(Image) {
		for r := range roles {
			if !w.places[r].located {
				return
			}
		}
		node, image, container := w.places[Node].mount.Filesystem, w.places[Image].mount.Filesystem, w.places[Container].mount.Filesystem
		switch {
		case image != container:
			layout = evict.SplitFs
		case image != node:
			layout = evict.ImageFs
		}
	}
	if layout != w.layout {
		w.o.Log.Info("layout of filesystems", "layout", layout.String(), "before", w.layout.String())
		w.layout = layout
		tell(w.crossed)
	}
}

// Layout returns how the filesystems are cut: one for all until it is known.
func (w *Watch) Layout() evict.Layout {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.layout
}
