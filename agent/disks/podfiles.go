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

// podFiles are the paths of a pod's files, as this process sees them.
type podFiles struct {
	locatedAt time.Time           // when the search began
	layers    map[string]string   // by container ID; "" if not found
	logs      map[string]logFiles // by container ID
	volumes   []volume
	// volumesErr is the reason why the volumes are not known; nil if they are.
	volumesErr error
}

// same reports whether both have the same directories.
func (f *podFiles) same(other *podFiles) bool {
	return maps.Equal(f.layers, other.layers) && maps.Equal(f.logs, other.logs) && slices.Equal(f.volumes, other.volumes) &&
		(f.volumesErr == nil) == (other.volumesErr == nil)
}

// logFiles are the logs of a container: all files of a directory or, in a directory
// that containers share, the file named only and its rotations (only.*).
type logFiles struct{ dir, only string }

func (l logFiles) key() string { return l.dir + "\x00" + l.only }

// volume is the directory of a volume that a kubelet made.
type volume struct {
	name   string
	kind   evict.VolumeType
	medium string
	dir    string
	// mounted reports that a filesystem is mounted on the directory.
	mounted bool
}

// locatePods searches for the directories of all pods, each pod in a job of its
// own, so that a directory that hangs delays only its own pod. Results that arrive
// late are used.
func (u *UsageMeter) locatePods(ctx context.Context) {
	u.mu.Lock()
	pods := u.pods
	u.mu.Unlock()
	u.readMounts(ctx)
	wanted := make(map[string]bool, len(pods))
	for i := range pods {
		p := &pods[i]
		wanted[p.UID] = true
		if ctx.Err() != nil {
			return
		}
		u.mu.Lock()
		before, busy := u.podFiles[p.UID], u.lookups[p.UID] != nil || u.jobs.full(p.UID)
		if u.jobs.slow >= maxSlow {
			u.podsChanged = true // search again when fewer jobs are slow
		}
		var j *job
		if !busy {
			j = newJob(p.UID, "the directories of the pod")
			u.lookups[p.UID] = j
		}
		u.mu.Unlock()
		if busy {
			continue
		}
		// The search reports no progress and never pauses, so it is detached after
		// stallTimeout.
		u.run(ctx, j, func() uint64 { return 0 }, func(func()) {
			u.storePodFiles(j, p, u.podFilesOf(p, before))
		})
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for uid := range u.podFiles {
		if !wanted[uid] {
			delete(u.podFiles, uid)
			u.version++
		}
	}
	for uid := range u.jobs.logged {
		if !wanted[uid] && u.jobs.detachedByPod[uid] == 0 {
			delete(u.jobs.logged, uid)
		}
	}
	if u.missingLayersLocked() {
		notify(u.layersMissing)
	}
	u.chooseTargets()
}

// storePodFiles stores the paths of a pod's files, however late. It also adds them
// to the targets in the same critical section, so that Unmeasured waits for them.
func (u *UsageMeter) storePodFiles(j *job, p *Pod, f *podFiles) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.lookups, j.pod)
	if before := u.podFiles[j.pod]; before == nil || !before.same(f) {
		u.version++
	}
	u.podFiles[j.pod] = f
	u.wantPodFiles(p, f)
}

// readMounts reads the mount table. If that fails, the previous table stays. The read is
// a job like the search of a pod, with the name of the table for the pod's UID.
func (u *UsageMeter) readMounts(ctx context.Context) {
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
			mounted[mounts[i].Point] = mounts[i].Type // the last mount hides the others
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

// chooseTargets determines which directories are measured, from the files of the
// pods. mu must be locked.
func (u *UsageMeter) chooseTargets() {
	for _, t := range u.targets {
		t.want, t.limited = false, false
	}
	for i := range u.pods {
		p := &u.pods[i]
		if f := u.podFiles[p.UID]; f != nil {
			u.wantPodFiles(p, f)
		}
	}
	for key, t := range u.targets {
		if !t.want && t.job == nil {
			delete(u.targets, key)
		}
	}
}

func (u *UsageMeter) wantPodFiles(p *Pod, f *podFiles) {
	for _, dir := range f.layers {
		u.wantTarget(p, dir, logFiles{dir: dir})
	}
	for _, l := range f.logs {
		u.wantTarget(p, l.key(), l)
	}
	for _, v := range f.volumes {
		u.wantTarget(p, v.dir, logFiles{dir: v.dir})
		u.targets[v.dir].mounted = v.mounted
	}
}

func (u *UsageMeter) wantTarget(p *Pod, key string, l logFiles) {
	if l.dir == "" {
		return
	}
	if u.targets[key] == nil {
		u.targets[key] = &target{path: l.dir, only: l.only, pod: p.UID}
	}
	u.targets[key].want = true
	u.targets[key].limited = u.targets[key].limited || p.Limited
}

func (u *UsageMeter) onHost(path string) string { return filepath.Join(u.o.Rootfs, path) }

// podFilesOf searches for a pod's directories. A writable layer that was found
// before is not searched again: it does not move.
func (u *UsageMeter) podFilesOf(p *Pod, before *podFiles) *podFiles {
	f := &podFiles{locatedAt: time.Now(), layers: map[string]string{}, logs: map[string]logFiles{}}
	for _, c := range p.Containers {
		if before != nil && before.layers[c.ID] != "" {
			f.layers[c.ID] = before.layers[c.ID]
		} else {
			f.layers[c.ID] = u.layerOf(&c)
		}
		if c.LogPath != "" {
			f.logs[c.ID] = logsOf(u.onHost(c.LogPath), c.Name)
		}
	}
	f.volumes, f.volumesErr = u.volumesOf(p.UID)
	return f
}

// logsOf returns the location of a container's logs, including rotated ones. A
// kubelet makes one directory per container, named after it; other clients let
// containers share one.
func logsOf(path, container string) logFiles {
	dir, base := filepath.Split(path)
	if dir = filepath.Clean(dir); filepath.Base(dir) == container {
		return logFiles{dir: dir}
	}
	return logFiles{dir: dir, only: base}
}

// layerOf returns the upper directory of the overlay that is a container's root:
//
//	0:61 / / rw,relatime - overlay overlay rw,lowerdir=…,upperdir=/var/lib/containerd/…/snapshots/3/fs,workdir=…
//
// A privileged container can mount anything over its root, so a directory outside
// the runtime's directory of layers is ignored.
func (u *UsageMeter) layerOf(c *evict.RunningContainer) string {
	if c.InitPID <= 1 || u.o.LayersDir == nil {
		return ""
	}
	below := u.o.LayersDir()
	mounts, err := disk.Mounts(u.o.Procfs, strconv.Itoa(c.InitPID))
	if err != nil || below == "" {
		return ""
	}
	// The pid may have been reused, also before mountinfo was read.
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

// volumeKinds are the volume plugins whose directories count as a pod's local
// storage, by the plugin's name as the kubelet escapes it
// (pkg/kubelet/kubelet_getters.go: getPodVolumeDir, with k8s.io/utils/strings:
// EscapeQualifiedName).
//
// They are searched in this order: the same volumes are then the same podFiles.
var volumeKinds = [...]struct {
	plugin string
	kind   evict.VolumeType
}{
	{"kubernetes.io~configmap", evict.ConfigMap},
	{"kubernetes.io~empty-dir", evict.EmptyDir},
	{"kubernetes.io~git-repo", evict.GitRepo},
}

// volumesOf lists the volumes that a kubelet made for a pod. A pod of another
// client has none.
func (u *UsageMeter) volumesOf(uid string) ([]volume, error) {
	if uid == "" || uid == "." || uid == ".." || strings.ContainsAny(uid, "/\x00") {
		return nil, nil // no valid directory name, so the pod is not a kubelet's
	}
	pods := u.onHost(u.o.PodsDir)
	// The mount table has paths without symbolic links.
	if real, err := filepath.EvalSymlinks(pods); err == nil {
		pods = real
	}
	root := filepath.Join(pods, uid, "volumes")
	// Take the filesystem type from the mount table: disk.InMemory may block, because a
	// container with mount propagation can mount a FUSE filesystem there. Until a table
	// was read it is used nevertheless: if it blocks, only this pod is not measured.
	u.mu.Lock()
	mounted := u.mounted
	u.mu.Unlock()
	var all []volume
	for _, k := range volumeKinds {
		entries, err := os.ReadDir(filepath.Join(root, k.plugin))
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
			v := volume{name: e.Name(), kind: k.kind, dir: filepath.Join(root, k.plugin, e.Name())}
			var fstype string
			fstype, v.mounted = mounted[v.dir]
			if k.kind == evict.EmptyDir && (fstype == "tmpfs" || fstype == "hugetlbfs" || mounted == nil && disk.InMemory(v.dir)) {
				v.medium, v.mounted = "Memory", true
			}
			all = append(all, v)
		}
	}
	return all, nil
}
