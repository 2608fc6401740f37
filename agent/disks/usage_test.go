package disks

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/disk"
	"github.com/evictd/evictd/kernel/kerneltest"
)

// stat is /proc/<pid>/stat of a process that started at tick 4711.
const stat = "77 (hog) S 1 77 77 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 1 1 18446744073709551615 1 1 1 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"

// overlay returns the mountinfo of a container whose root is an overlay.
func overlay(upper string) string {
	return "98 22 0:61 / / rw,relatime - overlay overlay rw,lowerdir=/l/1:/l/2,upperdir=" + upper + ",workdir=/w\n99 98 0:62 / /proc rw - proc proc rw\n"
}

// pod makes the files of a pod with one container and returns the Pod: 1 MiB in
// its layer, 2 in its logs, 3 in an emptyDir.
func pod(t *testing.T, root string) Pod {
	t.Helper()
	uid := "8f2a"
	write := func(mib int, elem ...string) {
		path := filepath.Join(append([]string{root}, elem...)...)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, make([]byte, mib*mebibyte), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(1, "layers/3/fs/data")
	write(1, "logs/main/0.log")
	write(1, "logs/main/0.log.20260102-030405")
	write(3, "pods", uid, "volumes/kubernetes.io~empty-dir/cache/f")
	write(0, "pods", uid, "volumes/kubernetes.io~configmap/conf/k")
	write(9, "pods", uid, "volumes/kubernetes.io~secret/s/k")
	kerneltest.Write(t, root, map[string]string{"proc/self/mountinfo": "", "proc/77/stat": stat, "proc/77/mountinfo": overlay(filepath.Join(root, "layers/3/fs"))})
	return Pod{UID: uid, Containers: []evict.RunningContainer{{ID: "c1", Name: "main", InitPID: 77, InitStart: 4711, LogPath: filepath.Join(root, "logs/main/0.log")}}}
}

func options(root string) UsageMeterOptions {
	return UsageMeterOptions{
		Procfs: kernel.FS(filepath.Join(root, "proc")), PodsDir: filepath.Join(root, "pods"), LayersDir: func() string { return filepath.Join(root, "layers") },
	}
}

func measuring(t *testing.T, o UsageMeterOptions, change func(*UsageMeter)) *UsageMeter {
	t.Helper()
	u := NewUsageMeter(o)
	if change != nil {
		change(u)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- u.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return u
}

func roughly(bytes uint64, mib int) bool {
	return bytes >= uint64(mib)*mebibyte && bytes < uint64(mib)*mebibyte+64<<10
}

func TestUsageMeter(t *testing.T) {
	root := t.TempDir()
	s := pod(t, root)
	o := options(root)
	u := measuring(t, o, nil)
	if h := u.Usage(&s); h.Known || h.Incomplete != "not measured yet" {
		t.Errorf("Of before a measurement = %+v; want not measured yet", h)
	}
	before := time.Now()
	u.SetPods([]Pod{s}, false)
	eventually(t, "measurement of all", func() bool { return u.Unmeasured(before) == "" })
	h := u.Usage(&s)
	if !h.Known || h.Incomplete != "" || h.Oldest.Before(before) || cmp.Diff([]string{"walk"}, h.Methods) != "" {
		t.Errorf("Usage() = %+v; want all known, by a walk after SetPods", h)
	}
	if got := h.Layers["c1"]; !roughly(got.Bytes, 1) || got.Inodes != 2 {
		t.Errorf("writable layer = %+v; want 1 MiB in 2 inodes", got.Usage)
	}
	if got := h.Logs["c1"]; !roughly(got.Bytes, 2) || got.Inodes != 3 {
		t.Errorf("logs = %+v; want 2 MiB in 3 inodes", got.Usage)
	}
	var names []string
	for _, v := range h.Volumes {
		names = append(names, string(v.Type)+" "+v.Name)
		if v.Name == "cache" && (!roughly(uint64(v.Used), 3) || v.Inodes != 2 || v.Medium != "") {
			t.Errorf("emptyDir = %+v; want 3 MiB in 2 inodes", v)
		}
	}
	if len(names) != 2 || !strings.Contains(strings.Join(names, ","), "emptyDir cache") || !strings.Contains(strings.Join(names, ","), "configMap conf") {
		t.Errorf("volumes %q; want the emptyDir and the configMap", names)
	}

	// While a disk is low, measurements are repeated at once and often.
	if err := os.WriteFile(filepath.Join(root, "layers/3/fs/more"), make([]byte, 4*mebibyte), 0o600); err != nil {
		t.Fatal(err)
	}
	u.SetPods([]Pod{s}, true)
	eventually(t, "measurement of the new file", func() bool { return roughly(u.Usage(&s).Layers["c1"].Bytes, 5) })

	// The targets of a removed pod are dropped.
	u.SetPods(nil, false)
	eventually(t, "removal of the targets", func() bool { u.mu.Lock(); defer u.mu.Unlock(); return len(u.targets) == 0 })
}

// A container's root is used only if its layer is in the runtime's directory, and
// only while the pid is the same process.
func TestLayerOf(t *testing.T) {
	for _, tt := range []struct {
		name, mountinfo string
		start           uint64
		want            string
	}{
		{"an overlay", overlay("/layers/3/fs"), 4711, "/layers/3/fs"},
		{"outside the layers", overlay("/etc"), 4711, ""},
		{"a directory with the same prefix", overlay("/layersx/3/fs"), 4711, ""},
		{"a path with ..", overlay("/layers/../etc"), 4711, ""},
		{"the directory itself", overlay("/layers"), 4711, ""},
		{"relative", overlay("layers/3/fs"), 4711, ""},
		{"another process", overlay("/layers/3/fs"), 4712, ""},
		{"start not known", overlay("/layers/3/fs"), 0, ""},
		{"read-only overlay", "98 22 0:61 / / rw - overlay overlay rw,lowerdir=/layers/1\n", 4711, ""},
		{"no overlay", "98 22 0:61 / / rw - btrfs /dev/sdb rw,subvol=/layers/3\n", 4711, ""},
		{"malformed", "98\n", 4711, ""},
		{"an overlay not on the root", "98 22 0:61 / /mnt rw - overlay overlay rw,upperdir=/layers/3/fs\n", 4711, ""},
		{"two overlays on the root", overlay("/layers/3/fs") + overlay("/layers/4/fs"), 4711, "/layers/4/fs"},
	} {
		root := kerneltest.Tree(t, map[string]string{"77/stat": stat, "77/mountinfo": tt.mountinfo})
		u := NewUsageMeter(UsageMeterOptions{Procfs: kernel.FS(root), LayersDir: func() string { return "/layers" }})
		if got := u.layerOf(&evict.RunningContainer{InitPID: 77, InitStart: tt.start}); got != tt.want {
			t.Errorf("%s: layerOf = %q; want %q", tt.name, got, tt.want)
		}
	}
	u := NewUsageMeter(UsageMeterOptions{Rootfs: "/host", LayersDir: func() string { return "/host/layers" }, Procfs: kernel.FS(kerneltest.Tree(t, map[string]string{"77/stat": stat, "77/mountinfo": overlay("/layers/3/fs")}))})
	if got, want := u.layerOf(&evict.RunningContainer{InitPID: 77, InitStart: 4711}), "/host/layers/3/fs"; got != want {
		t.Errorf("in a container: layerOf = %q; want %q", got, want)
	}
}

func TestLogsOf(t *testing.T) {
	for _, tt := range []struct {
		path, container string
		want            logFiles
	}{
		{"/var/log/pods/ns_p_u/main/0.log", "main", logFiles{dir: "/var/log/pods/ns_p_u/main"}},
		{"/logs/ns_p_u/main.log", "main", logFiles{dir: "/logs/ns_p_u", only: "main.log"}},
		{"/main/x", "main", logFiles{dir: "/main"}},
	} {
		if got := logsOf(tt.path, tt.container); got != tt.want {
			t.Errorf("logsOf(%q, %q) = %+v; want %+v", tt.path, tt.container, got, tt.want)
		}
	}
}

// Containers that share a directory of logs are each measured with their own files.
func TestSharedLogs(t *testing.T) {
	root := t.TempDir()
	s := pod(t, root)
	for name, mib := range map[string]int{"a.log": 1, "a.log.1": 1, "a.logs": 8, "b.log": 3} {
		if err := os.WriteFile(filepath.Join(root, name), make([]byte, mib*mebibyte), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.Containers[0].LogPath = filepath.Join(root, "a.log")
	s.Containers = append(s.Containers, evict.RunningContainer{ID: "c2", Name: "b", LogPath: filepath.Join(root, "b.log")})
	o := options(root)
	u := measuring(t, o, nil)
	u.SetPods([]Pod{s}, false)
	eventually(t, "measurement of all", func() bool { return u.Unmeasured(time.Time{}.Add(1)) == "" })
	h := u.Usage(&s)
	if a, b := h.Logs["c1"], h.Logs["c2"]; !roughly(a.Bytes, 2) || !roughly(b.Bytes, 3) {
		t.Errorf("logs of %d and %d bytes; want 2 and 3 MiB", a.Bytes, b.Bytes)
	}
	if !h.Known || !strings.Contains(h.Incomplete, "writable layer of b") {
		t.Errorf("known %t, incomplete %q; want Known, and the layer of b missing", h.Known, h.Incomplete)
	}
}

// The runtime's size is used for a layer whose directory is not found.
func TestLayerSizeFromRuntime(t *testing.T) {
	at := time.Now()
	u := measuring(t, UsageMeterOptions{Procfs: "/nowhere", RuntimeLayers: func(context.Context) (map[string]Measurement, error) {
		return map[string]Measurement{"c1": {Usage: disk.Usage{Bytes: 7, Inodes: 2}, At: at, Method: "runtime"}}, nil
	}}, nil)
	s := Pod{UID: "u", Containers: []evict.RunningContainer{{ID: "c1", Name: "main", InitPID: 77}}}
	u.SetPods([]Pod{s}, false)
	eventually(t, "size from the runtime", func() bool { return u.Usage(&s).Known })
	if h := u.Usage(&s); h.Layers["c1"].Bytes != 7 || h.Oldest != at || h.Methods[0] != "runtime" || !strings.Contains(h.Incomplete, "logs") {
		t.Errorf("Usage() = %+v", h)
	}
}

// A project quota of two directories is the usage of neither.
func TestSharedProject(t *testing.T) {
	u := NewUsageMeter(UsageMeterOptions{})
	u.targets = map[string]*target{"a": {path: "a", want: true}, "b": {path: "b", want: true}, "c": {path: "c", want: true}}
	for name, project := range map[string]uint32{"a": 7, "b": 7, "c": 8} {
		u.storeMeasured(u.targets[name], Measurement{Usage: disk.Usage{Bytes: 100}, Method: "project quota", project: project}, nil, time.Now())
	}
	for name, want := range map[string]bool{"a": true, "b": true, "c": false} {
		if p := u.targets[name]; p.mustWalk != want || p.got.At.IsZero() != want {
			t.Errorf("%s: mustWalk %t, measured %v; want %t", name, p.mustWalk, p.got, want)
		}
	}
}

// A partial count is a lower bound; an error is not zero.
func TestIncompleteMeasurements(t *testing.T) {
	u := NewUsageMeter(UsageMeterOptions{})
	h := PodUsage{}
	p := &target{path: "x"}
	u.storeMeasured(p, Measurement{}, &fs.PathError{Op: "open", Path: "x", Err: errors.New("boom")}, time.Now())
	if got := h.addTarget(p, "logs"); !got.At.IsZero() || !strings.Contains(h.Incomplete, "logs: open x: boom") {
		t.Errorf("addTarget after an error = %+v, %q", got, h.Incomplete)
	}
	h = PodUsage{}
	u.storeMeasured(p, Measurement{Usage: disk.Usage{Bytes: 3}, Method: "walk"}, disk.ErrIncomplete, time.Now())
	if got := h.addTarget(p, "logs"); got.Bytes != 3 || !strings.Contains(h.Incomplete, "not everything was counted") {
		t.Errorf("addTarget of a partial count = %+v, %q", got, h.Incomplete)
	}
	h = PodUsage{}
	u.storeMeasured(p, Measurement{}, errors.New("boom"), time.Now())
	if got := h.addTarget(p, "logs"); got.Bytes != 3 || h.Incomplete == "" {
		t.Errorf("addTarget after a later error = %+v, %q; want the previous result", got, h.Incomplete)
	}
}

func TestVolumesOf(t *testing.T) {
	root := kerneltest.Tree(t, map[string]string{
		"pods/u/volumes/kubernetes.io~empty-dir/shm/":   "",
		"pods/u/volumes/kubernetes.io~empty-dir/file":   "",
		"pods/u/volumes/kubernetes.io~empty-dir/link@":  "/etc",
		"pods/u/volumes/kubernetes.io~nfs/share/":       "",
		"pods/volumes/kubernetes.io~empty-dir/nobodys/": "",
	})
	// The directory of pods is a symbolic link, as if moved to another disk.
	link := filepath.Join(t.TempDir(), "pods")
	if err := os.Symlink(filepath.Join(root, "pods"), link); err != nil {
		t.Fatal(err)
	}
	u := NewUsageMeter(UsageMeterOptions{Procfs: "/proc", PodsDir: link})
	kerneltest.Mount(t, "tmpfs", filepath.Join(root, "pods/u/volumes/kubernetes.io~empty-dir/shm"), "tmpfs", 0, "")
	u.readMounts(t.Context())
	u.stopWorker()
	got, err := u.volumesOf("u")
	if err != nil {
		t.Fatal(err)
	}
	want := volume{name: "shm", kind: evict.EmptyDir, medium: "Memory", dir: filepath.Join(root, "pods/u/volumes/kubernetes.io~empty-dir/shm"), mounted: true}
	if len(got) != 1 || got[0] != want {
		t.Errorf("volumesOf = %+v; want %+v", got, want)
	}
	for _, uid := range []string{"", ".", "..", "../u", "none", "a\x00"} {
		if got, err := u.volumesOf(uid); len(got) != 0 || err != nil {
			t.Errorf("volumesOf(%q) = %v, %v; want nothing", uid, got, err)
		}
	}
}

// The volumes are in the same order in each search, or each search would count as a change
// of the known usage.
func TestVolumesOfOrder(t *testing.T) {
	root := kerneltest.Tree(t, map[string]string{
		"pods/u/volumes/kubernetes.io~empty-dir/a/": "",
		"pods/u/volumes/kubernetes.io~configmap/b/": "",
		"pods/u/volumes/kubernetes.io~git-repo/c/":  "",
		"proc/self/mountinfo":                       "",
	})
	u := NewUsageMeter(options(root))
	u.readMounts(t.Context())
	u.stopWorker()
	for range 50 {
		got, err := u.volumesOf("u")
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, v := range got {
			names = append(names, v.name)
		}
		if want := []string{"b", "a", "c"}; !slices.Equal(names, want) {
			t.Fatalf("volumesOf = %q; want %q", names, want)
		}
	}
}

// Without a mount table an emptyDir counts as disk usage if no tmpfs is mounted on it.
func TestVolumesWithoutMountTable(t *testing.T) {
	root := kerneltest.Tree(t, map[string]string{
		"pods/u/volumes/kubernetes.io~empty-dir/cache/f": strings.Repeat("x", mebibyte),
		"pods/u/volumes/kubernetes.io~empty-dir/shm/":    "",
		"proc/self/mountinfo":                            "malformed\n",
	})
	kerneltest.Mount(t, "tmpfs", filepath.Join(root, "pods/u/volumes/kubernetes.io~empty-dir/shm"), "tmpfs", 0, "")
	u := measuring(t, options(root), nil)
	since := time.Now()
	s := Pod{UID: "u"}
	u.SetPods([]Pod{s}, true)
	eventually(t, "measurement of all", func() bool { return u.Unmeasured(since) == "" })
	got := u.Usage(&s)
	if len(got.Volumes) != 2 || got.Volumes[0].Medium != "" || !roughly(uint64(got.Volumes[0].Used), 1) || got.Volumes[1].Medium != "Memory" || got.Incomplete != "" {
		t.Errorf("Usage() without a mount table = %+v; want 1 MiB of disk, then a volume in memory, and complete", got)
	}
}
