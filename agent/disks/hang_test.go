package disks

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/kerneltest"
)

// emptyDir makes an emptyDir of a pod with one file and returns its path.
func emptyDir(t *testing.T, root, uid, name string, mib int) string {
	t.Helper()
	dir := filepath.Join(root, "pods", uid, "volumes/kubernetes.io~empty-dir", name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "f"), make([]byte, mib*mebibyte), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func used(u *UsageMeter, uid, volume string) (bytes int64) {
	for _, v := range u.Usage(&Pod{UID: uid}).Volumes {
		if v.Name == volume {
			bytes = v.Used
		}
	}
	return bytes
}

// FUSE filesystems that hang are mounted on more emptyDirs of one pod than may hang
// for one pod. Other pods are measured, both existing ones and one that starts
// later. Results that come late are used.
func TestHungFUSE(t *testing.T) {
	root := t.TempDir()
	hung := Pod{UID: "hung"}
	emptyDir(t, root, hung.UID, "a", 3)
	var releases []func()
	for i := range 2 * maxDetachedPerPod {
		releases = append(releases, kerneltest.MountHanging(t, emptyDir(t, root, hung.UID, "h"+strconv.Itoa(i), 1)))
	}
	emptyDir(t, root, "known", "v", 1)
	u := measuring(t, UsageMeterOptions{Procfs: kernel.FS("/proc"), PodsDir: filepath.Join(root, "pods")}, nil)
	u.SetPods([]Pod{hung, {UID: "known"}}, true)
	eventually(t, "measurement of the other pod", func() bool { return roughly(uint64(used(u, "known", "v")), 1) })
	eventually(t, "measurement of the hung pod's other directory", func() bool { return roughly(uint64(used(u, hung.UID, "a")), 3) })
	eventually(t, "report of the hang", func() bool { return strings.Contains(u.Usage(&hung).Incomplete, "hangs") })
	if h := u.Usage(&hung); !h.Known {
		t.Errorf("Usage() = %+v; want Known with the part that was measured", h)
	}

	emptyDir(t, root, "later", "v", 2)
	since := time.Now()
	u.SetPods([]Pod{hung, {UID: "known"}, {UID: "later"}}, true)
	eventually(t, "measurement of the pod that started later", func() bool { return roughly(uint64(used(u, "later", "v")), 2) })
	eventually(t, "end of the wait for the hung directories", func() bool { return u.Unmeasured(since) == "" })

	for i, release := range releases {
		release()
		kerneltest.Unmount(t, filepath.Join(root, "pods", hung.UID, "volumes/kubernetes.io~empty-dir", "h"+strconv.Itoa(i)))
	}
	eventually(t, "measurement of the directories that no longer hang", func() bool {
		return roughly(uint64(used(u, hung.UID, "h0")), 1) && roughly(uint64(used(u, hung.UID, "h"+strconv.Itoa(len(releases)-1))), 1)
	})
}

// storePodFiles makes Unmeasured wait for the new directories at once.
func TestUnmeasuredIncludesNewDirectories(t *testing.T) {
	root := t.TempDir()
	dir := emptyDir(t, root, "u", "v", 1)
	u := NewUsageMeter(UsageMeterOptions{Procfs: "/proc", PodsDir: filepath.Join(root, "pods")})
	u.readMounts(t.Context())
	u.stopWorker()
	s := Pod{UID: "u"}
	u.SetPods([]Pod{s}, true)
	since := time.Now()
	u.storePodFiles(newJob(s.UID, ""), &s, u.podFilesOf(&s, nil))
	if got := u.Unmeasured(since); got != dir {
		t.Errorf("Unmeasured = %q; want %q", got, dir)
	}
}

// While a read of the mount table hangs, volumes are measured without it.
func TestSlowMountTable(t *testing.T) {
	root := t.TempDir()
	emptyDir(t, root, "u", "v", 1)
	table := filepath.Join(root, "proc/self/mountinfo")
	if err := os.MkdirAll(filepath.Dir(table), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(table, 0o600); err != nil { // a reader waits for a writer
		t.Fatal(err)
	}
	t.Cleanup(func() { // ends the read of the table
		if fd, err := unix.Open(table, unix.O_WRONLY|unix.O_NONBLOCK, 0); err == nil {
			unix.Close(fd)
		}
	})
	u := measuring(t, options(root), nil)
	s := Pod{UID: "u"}
	u.SetPods([]Pod{s}, false)
	eventually(t, "measurement of the volume", func() bool { return roughly(uint64(used(u, s.UID, "v")), 1) })
}

// Without a mount table, a FUSE filesystem that hangs keeps only its own pod from being measured.
func TestHungFUSEWithoutMountTable(t *testing.T) {
	root := t.TempDir()
	hung := Pod{UID: "hung"}
	release := kerneltest.MountHanging(t, emptyDir(t, root, hung.UID, "h", 1))
	emptyDir(t, root, "other", "v", 2)
	u := measuring(t, options(root), nil) // there is no mountinfo
	u.SetPods([]Pod{hung, {UID: "other"}}, true)
	eventually(t, "measurement of the other pod", func() bool { return roughly(uint64(used(u, "other", "v")), 2) })
	eventually(t, "report of the hang", func() bool { return u.Usage(&hung).Incomplete == "the search for its directories hangs" })
	if got := u.Usage(&hung); got.Known {
		t.Errorf("Usage() of the pod that hangs = %+v; want it unknown", got)
	}
	release()
	kerneltest.Unmount(t, filepath.Join(root, "pods", hung.UID, "volumes/kubernetes.io~empty-dir/h"))
	eventually(t, "measurement of the pod that no longer hangs", func() bool { return roughly(uint64(used(u, hung.UID, "h")), 1) })
}
