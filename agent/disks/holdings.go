package disks

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/kernel/disk"
	"github.com/evictd/evictd/kernel/process"
)

// holdings are where a pod's files are. Directories are as this process sees
// them.
type holdings struct {
	found   time.Time         // when they were looked for
	layers  map[string]string // container ID to its writable layer; "" is not found
	logs    map[string]logs   // container ID
	volumes []volume
	// unlisted says why the volumes are not known; nil where they are.
	unlisted error
}

// same reports whether the directories are the same.
func (h *holdings) same(other *holdings) bool {
	return maps.Equal(h.layers, other.layers) && maps.Equal(h.logs, other.logs) && slices.Equal(h.volumes, other.volumes) &&
		(h.unlisted == nil) == (other.unlisted == nil)
}

// logs are a container's: a directory, or in one that it shares what begins with
// a name.
type logs struct{ dir, only string }

func (l logs) key() string { return l.dir + "\x00" + l.only }

// volume is a directory of a kubelet's.
type volume struct {
	name   string
	kind   evict.VolumeType
	medium string
	dir    string
}

// find looks for the directories of all subjects. That may hang too.
func (u *Usages) find(ctx context.Context, looking *errand[map[string]*holdings]) {
	u.mu.Lock()
	subjects, before := u.subjects, u.pods
	u.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	found, err := looking.ask(patience, func() (map[string]*holdings, error) {
		found := make(map[string]*holdings, len(subjects))
		for i := range subjects {
			found[subjects[i].UID] = u.holdingsOf(&subjects[i], before[subjects[i].UID])
		}
		return found, nil
	})
	u.mu.Lock()
	defer u.mu.Unlock()
	if err != nil {
		u.o.Log.Warn("directories of pods not looked for", "error", err)
		u.changed = time.Now() // again soon
		return
	}
	if !maps.EqualFunc(found, u.pods, func(a, b *holdings) bool { return a.same(b) }) {
		u.version++
	}
	u.pods = found
	if u.lacks() {
		tell(u.lacking)
	}
	for _, p := range u.places {
		p.want, p.limited = false, false
	}
	for i := range subjects {
		limited, h := subjects[i].Limited, found[subjects[i].UID]
		for _, dir := range h.layers {
			u.wants(dir, logs{dir: dir}, limited)
		}
		for _, l := range h.logs {
			u.wants(l.key(), l, limited)
		}
		for _, v := range h.volumes {
			u.wants(v.dir, logs{dir: v.dir}, limited)
		}
	}
	for key, p := range u.places {
		if !p.want && p.open.IsZero() {
			delete(u.places, key)
		}
	}
}

func (u *Usages) wants(key string, l logs, limited bool) {
	if l.dir == "" {
		return
	}
	if u.places[key] == nil {
		u.places[key] = &target{path: l.dir, only: l.only}
	}
	u.places[key].want = true
	u.places[key].limited = u.places[key].limited || limited
}

func (u *Usages) onHost(path string) string { return filepath.Join(u.o.Rootfs, path) }

// holdingsOf finds a pod's directories. A writable layer stays where it is.
func (u *Usages) holdingsOf(s *Subject, before *holdings) *holdings {
	h := &holdings{found: time.Now(), layers: map[string]string{}, logs: map[string]logs{}}
	for _, c := range s.Containers {
		if before != nil && before.layers[c.ID] != "" {
			h.layers[c.ID] = before.layers[c.ID]
		} else {
			h.layers[c.ID] = u.layerOf(&c)
		}
		if c.LogPath != "" {
			h.logs[c.ID] = logsOf(u.onHost(c.LogPath), c.Name)
		}
	}
	h.volumes, h.unlisted = u.volumesOf(s.UID)
	return h
}

// logsOf returns where a container's logs are, the rotated ones too: a kubelet
// gives each container a directory of its name, others let several share one.
func logsOf(path, container string) logs {
	dir, base := filepath.Split(path)
	if dir = filepath.Clean(dir); filepath.Base(dir) == container {
		return logs{dir: dir}
	}
	return logs{dir: dir, only: base}
}

// layerOf returns the directory that takes what a container writes, from the
// overlay that is its root:
//
//	0:61 / / rw,relatime - overlay overlay rw,lowerdir=…,upperdir=/var/lib/containerd/…/snapshots/3/fs,workdir=…
//
// A privileged container may mount what it likes over its root. Where the
// runtime does not keep layers, the directory is not believed.
func (u *Usages) layerOf(c *SubjectContainer) string {
	if c.InitPID <= 1 || u.o.LayersDir == nil {
		return ""
	}
	below := u.o.LayersDir()
	mounts, err := disk.Mounts(u.o.Procfs, strconv.Itoa(c.InitPID))
	if err != nil || below == "" {
		return ""
	}
	// The pid may be another's by now, and may have been when it was read.
	if stat, err := process.ReadStat(u.o.Procfs, c.InitPID); err != nil || c.InitStart == 0 || stat.StartTime != c.InitStart {
		return ""
	}
	for i := len(mounts) - 1; i >= 0; i-- {
		m := &mounts[i]
		if m.Point != "/" || m.Type != "overlay" {
			continue
		}
		for option := range strings.SplitSeq(m.SuperOptions, ",") {
			dir, ok := strings.CutPrefix(option, "upperdir=")
			if ok && filepath.IsAbs(dir) && filepath.Clean(dir) == dir && strings.HasPrefix(u.onHost(dir), strings.TrimSuffix(below, "/")+"/") {
				return u.onHost(dir)
			}
		}
		return ""
	}
	return ""
}

// The directories of volumes that count as a pod's local storage, by the plugin's
// name as the kubelet escapes it (pkg/volume/util: GetPodVolumesDir).
var volumeKinds = map[string]evict.VolumeType{
	"kubernetes.io~empty-dir": evict.EmptyDir,
	"kubernetes.io~configmap": evict.ConfigMap,
	"kubernetes.io~git-repo":  evict.GitRepo,
}

// volumesOf lists the volumes that a kubelet made for a pod. A pod that no
// kubelet made has none.
func (u *Usages) volumesOf(uid string) ([]volume, error) {
	if uid == "" || uid == "." || uid == ".." || strings.ContainsAny(uid, "/\x00") {
		return nil, nil // not the name of a directory, so no kubelet's
	}
	root := filepath.Join(u.onHost(u.o.PodsDir), uid, "volumes")
	var all []volume
	for plugin, kind := range volumeKinds {
		entries, err := os.ReadDir(filepath.Join(root, plugin))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if !e.IsDir() {
				continue
			}
			v := volume{name: e.Name(), kind: kind, dir: filepath.Join(root, plugin, e.Name())}
			if kind == evict.EmptyDir && inMemory(v.dir) {
				v.medium = "Memory"
			}
			all = append(all, v)
		}
	}
	return all, nil
}

// inMemory reports whether a directory is a tmpfs or of huge pages.
func inMemory(dir string) bool {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return false
	}
	return s.Type == unix.TMPFS_MAGIC || s.Type == unix.HUGETLBFS_MAGIC
}
