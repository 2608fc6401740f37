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
	// mounted tells that a filesystem is mounted on the directory.
	mounted bool
}

// find looks for the directories of all subjects: each pod's in a job of its own, so
// that what hangs for one pod hides no other pod. What is found late counts from then on.
func (u *Usages) find(ctx context.Context) {
	u.mu.Lock()
	subjects := u.subjects
	u.mu.Unlock()
	u.findMounts(ctx)
	wanted := make(map[string]bool, len(subjects))
	for i := range subjects {
		s := &subjects[i]
		wanted[s.UID] = true
		if ctx.Err() != nil {
			return
		}
		u.mu.Lock()
		before, busy := u.pods[s.UID], u.lookups[s.UID] != nil || u.jobs.full(s.UID)
		if u.jobs.slow >= maxSlow {
			u.fresh = true // again as soon as less is slow
		}
		var j *job
		if !busy {
			j = newJob(s.UID, "the directories of the pod")
			u.lookups[s.UID] = j
		}
		u.mu.Unlock()
		if busy {
			continue
		}
		u.run(ctx, j, func() uint64 { return 0 }, func(func()) {
			u.takeHoldings(j, s, u.holdingsOf(s, before))
		})
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for uid := range u.pods {
		if !wanted[uid] {
			delete(u.pods, uid)
			u.version++
		}
	}
	for uid := range u.jobs.logged {
		if !wanted[uid] && u.jobs.open[uid] == 0 {
			delete(u.jobs.logged, uid)
		}
	}
	if u.lacks() {
		tell(u.lacking)
	}
	u.choosePlaces()
}

// takeHoldings notes where a pod's files are, however late. They are wanted in the same
// moment, so that Unmeasured waits for them.
func (u *Usages) takeHoldings(j *job, s *Subject, h *holdings) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.lookups, j.pod)
	if before := u.pods[j.pod]; before == nil || !before.same(h) {
		u.version++
	}
	u.pods[j.pod] = h
	u.wantHoldings(s, h)
}

// findMounts finds out what is mounted where. Without, the table before counts.
func (u *Usages) findMounts(ctx context.Context) {
	const table = "the mount table"
	u.mu.Lock()
	j := newJob(table, table)
	busy := u.lookups[table] != nil || u.jobs.full(table)
	if !busy {
		u.lookups[table] = j
	}
	u.mu.Unlock()
	if busy {
		return
	}
	u.run(ctx, j, func() uint64 { return 0 }, func(func()) {
		mounts, err := disk.Mounts(u.o.Procfs, "self")
		mounted := make(map[string]string, len(mounts))
		for i := range mounts {
			mounted[mounts[i].Point] = mounts[i].Type // the last one covers the others
		}
		u.mu.Lock()
		defer u.mu.Unlock()
		delete(u.lookups, table)
		if err != nil {
			u.o.Log.Debug("mount table not read", "error", err)
			return
		}
		u.mounted = mounted
	})
}

// choosePlaces settles which directories are measured, by the holdings of the
// subjects. The caller holds mu.
func (u *Usages) choosePlaces() {
	for _, p := range u.places {
		p.want, p.limited = false, false
	}
	for i := range u.subjects {
		s := &u.subjects[i]
		if h := u.pods[s.UID]; h != nil {
			u.wantHoldings(s, h)
		}
	}
	for key, p := range u.places {
		if !p.want && p.job == nil {
			delete(u.places, key)
		}
	}
}

func (u *Usages) wantHoldings(s *Subject, h *holdings) {
	for _, dir := range h.layers {
		u.wants(s, dir, logs{dir: dir})
	}
	for _, l := range h.logs {
		u.wants(s, l.key(), l)
	}
	for _, v := range h.volumes {
		u.wants(s, v.dir, logs{dir: v.dir})
		u.places[v.dir].mounted = v.mounted
	}
}

func (u *Usages) wants(s *Subject, key string, l logs) {
	if l.dir == "" {
		return
	}
	if u.places[key] == nil {
		u.places[key] = &target{path: l.dir, only: l.only, pod: s.UID}
	}
	u.places[key].want = true
	u.places[key].limited = u.places[key].limited || s.Limited
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
func (u *Usages) layerOf(c *evict.ContainerHandle) string {
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
	pods := u.onHost(u.o.PodsDir)
	// The mount table names directories without symbolic links.
	if real, err := filepath.EvalSymlinks(pods); err == nil {
		pods = real
	}
	root := filepath.Join(pods, uid, "volumes")
	// The table tells the type of a filesystem without asking the filesystem, which
	// may be one that hangs: a container with mount propagation can mount a FUSE there.
	u.mu.Lock()
	mounted := u.mounted
	u.mu.Unlock()
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
			var fstype string
			fstype, v.mounted = mounted[v.dir]
			if kind == evict.EmptyDir && (fstype == "tmpfs" || fstype == "hugetlbfs") {
				v.medium = "Memory"
			}
			all = append(all, v)
		}
	}
	return all, nil
}
