package disk

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel/epoll"
	"github.com/evictd/evictd/kernel/kerneltest"
)

// mountinfo has a disk, an overlay, a bind mount, a btrfs subvolume, and names with
// a space and a newline.
const mountinfo = `22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
31 22 0:27 / /sys/fs/cgroup/memory rw,nosuid shared:9 master:2 - cgroup cgroup rw,memory
98 22 0:61 / /run/c/rootfs rw - overlay overlay rw,lowerdir=/l/1:/l/2,upperdir=/up/3/fs,workdir=/up/3/work
99 22 254:0 /srv/x /mnt/with\040space rw,relatime - ext4 /dev/vda rw
100 22 0:44 /@home /home\012x rw,noatime propagate_from:3 unbindable - btrfs /dev/sdb1 rw,subvol=/@home
`

func TestParseMounts(t *testing.T) {
	got, err := parseMounts([]byte(mountinfo))
	if err != nil {
		t.Fatal(err)
	}
	want := []Mount{
		{ID: 22, Parent: 1, Filesystem: ID{254, 0}, Root: "/", Point: "/", Options: "rw,relatime", Type: "ext4", Source: "/dev/vda", SuperOptions: "rw"},
		{ID: 31, Parent: 22, Filesystem: ID{0, 27}, Root: "/", Point: "/sys/fs/cgroup/memory", Options: "rw,nosuid", Type: "cgroup", Source: "cgroup", SuperOptions: "rw,memory"},
		{ID: 98, Parent: 22, Filesystem: ID{0, 61}, Root: "/", Point: "/run/c/rootfs", Options: "rw", Type: "overlay", Source: "overlay", SuperOptions: "rw,lowerdir=/l/1:/l/2,upperdir=/up/3/fs,workdir=/up/3/work"},
		{ID: 99, Parent: 22, Filesystem: ID{254, 0}, Root: "/srv/x", Point: "/mnt/with space", Options: "rw,relatime", Type: "ext4", Source: "/dev/vda", SuperOptions: "rw"},
		{ID: 100, Parent: 22, Filesystem: ID{0, 44}, Root: "/@home", Point: "/home\nx", Options: "rw,noatime", Type: "btrfs", Source: "/dev/sdb1", SuperOptions: "rw,subvol=/@home"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("parseMounts (-want +got):\n%s", diff)
	}
	for _, bad := range []string{
		"22 1 254:0 / / rw\n", "22 1 254:0 / / rw - ext4\n", "x 1 254:0 / / rw - ext4 a b\n", "22 x 254:0 / / rw - ext4 a b\n",
		"22 1 254 / / rw - ext4 a b\n", "22 1 -1:0 / / rw - ext4 a b\n", "22 1 254:99999999999 / / rw - ext4 a b\n", " \n",
	} {
		if got, err := parseMounts([]byte(bad)); err == nil || !strings.Contains(err.Error(), "line 1") {
			t.Errorf("parseMounts(%q) = %v, %v; want an error that names line 1", bad, got, err)
		}
	}
}

func FuzzParseMounts(f *testing.F) {
	f.Add([]byte(mountinfo))
	f.Add([]byte("1 1 0:0 \\04 \\999 rw - \\ \\1 \\40\n"))
	f.Fuzz(func(t *testing.T, content []byte) {
		mounts, err := parseMounts(content)
		if err != nil && mounts != nil {
			t.Errorf("parseMounts(%q) = %v and %v", content, mounts, err)
		}
	})
}

// A bind mount has the filesystem ID of its source, another disk has not.
func TestLocate(t *testing.T) {
	point := kerneltest.MountLoop(t, "ext4", 16*mebibyte, "")
	dir := t.TempDir()
	bound := filepath.Join(dir, "bound")
	for _, d := range []string{bound, filepath.Join(point, "deep", "er")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	kerneltest.Mount(t, filepath.Join(point, "deep"), bound, "", unix.MS_BIND, "")
	whole, err1 := Locate("/proc", filepath.Join(point, "deep"))
	bind, err2 := Locate("/proc", filepath.Join(bound, "er"))
	other, err3 := Locate("/proc", dir)
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	if whole.Point != point || whole.Type != "ext4" || bind.Point != bound || bind.Root != "/deep" {
		t.Errorf("Locate = %+v and %+v; want mounts on %s and %s", whole, bind, point, bound)
	}
	if whole.Filesystem != bind.Filesystem || whole.Filesystem == other.Filesystem {
		t.Errorf("filesystems %v, %v and %v; want only the first two equal", whole.Filesystem, bind.Filesystem, other.Filesystem)
	}
	if _, err := Locate("/proc", filepath.Join(dir, "missing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Locate of a missing path = %v; want %v", err, os.ErrNotExist)
	}
	if _, err := Locate("/nowhere", dir); err == nil {
		t.Error("Locate without mountinfo = nil; want an error")
	}
}

func TestInMemory(t *testing.T) {
	disk := kerneltest.MountLoop(t, "ext4", 16*mebibyte, "")
	memory := t.TempDir()
	kerneltest.Mount(t, "tmpfs", memory, "tmpfs", 0, "")
	below, removed := filepath.Join(memory, "below"), filepath.Join(memory, "removed")
	if err := os.Mkdir(below, 0o755); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]bool{memory: true, below: false, disk: false, removed: false} {
		if got := InMemory(dir); got != want {
			t.Errorf("InMemory(%s) = %t; want %t", dir, got, want)
		}
	}
}

// An error makes an ext4 mounted with errors=remount-ro read-only.
func TestMountReadOnlyAfterError(t *testing.T) {
	if os.Getenv("EVICTD_TEST_VM") != "" {
		t.Skip("makes the kernel log an error, which fails a run in a virtual machine")
	}
	point := kerneltest.MountLoop(t, "ext4", 16*mebibyte, "errors=remount-ro")
	m, err := Locate("/proc", point)
	if err != nil {
		t.Fatal(err)
	}
	if m.ReadOnly() {
		t.Fatalf("ReadOnly() of %+v before the error = true", m)
	}
	trigger := filepath.Join("/sys/fs/ext4", filepath.Base(m.Source), "trigger_fs_error")
	if err := os.WriteFile(trigger, []byte("by a test\n"), 0); err != nil {
		t.Skip("needs trigger_fs_error of ext4: ", err)
	}
	if err := os.WriteFile(filepath.Join(point, "f"), []byte("x"), 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("write after the error = %v; want %v", err, unix.EROFS)
	}
	m, err = Locate("/proc", point)
	if err != nil {
		t.Fatal(err)
	}
	var uname unix.Utsname
	if err := unix.Uname(&uname); err != nil {
		t.Fatal(err)
	}
	if release := unix.ByteSliceToString(uname.Release[:]); strings.HasPrefix(release, "6.12.") && !m.ReadOnly() {
		t.Skip("needs another Linux than 6.12, which does not show emergency_ro")
	}
	if !m.ReadOnly() {
		t.Errorf("ReadOnly() of %+v after the error = false", m)
	}
}

// ReadOnly reports a read-only filesystem, not a read-only mount.
func TestMountReadOnly(t *testing.T) {
	point := kerneltest.MountLoop(t, "ext4", 16*mebibyte, "")
	readOnly := func() bool {
		m, err := Locate("/proc", point)
		if err != nil {
			t.Fatal(err)
		}
		return m.ReadOnly()
	}
	if err := unix.Mount("", point, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if readOnly() {
		t.Error("ReadOnly() of a read-only mount of a writable filesystem = true; want false")
	}
	if err := unix.Mount("", point, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if !readOnly() {
		t.Error("ReadOnly() of a read-only filesystem = false")
	}
}

// Subvolumes of a btrfs have the same filesystem ID.
func TestLocateSubvolumes(t *testing.T) {
	point := kerneltest.MountLoop(t, "btrfs", 256*mebibyte, "")
	sub := filepath.Join(point, "sub")
	command(t, "btrfs", "subvolume", "create", sub)
	a, err1 := Locate("/proc", point)
	b, err2 := Locate("/proc", sub)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	if a.Filesystem != b.Filesystem {
		t.Errorf("the subvolume is on %v and its parent on %v; want the same", b.Filesystem, a.Filesystem)
	}
	device := func(path string) uint64 {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		return st.Dev
	}
	if device(point) == device(sub) {
		t.Error("stat(2) returns the same device for both, so this test proves nothing")
	}
}

func TestMountWatcher(t *testing.T) {
	n, err := WatchMounts("/proc")
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if changed, err := n.Wait(0); changed || err != nil {
		t.Fatalf("Wait before a change = %t, %v; want false", changed, err)
	}
	dir := t.TempDir()
	done := make(chan error, 1)
	go func() {
		changed, err := n.Wait(20 * time.Second)
		if err == nil && !changed {
			err = errors.New("no change")
		}
		done <- err
	}()
	kerneltest.Mount(t, "tmpfs", dir, "tmpfs", 0, "size=4096")
	if err := <-done; err != nil {
		t.Errorf("Wait during a mount: %v", err)
	}
	go func() {
		_, err := n.Wait(epoll.Forever)
		done <- err
	}()
	n.Close()
	if err := <-done; !errors.Is(err, os.ErrClosed) {
		t.Errorf("Wait during Close = %v; want os.ErrClosed", err)
	}
}
