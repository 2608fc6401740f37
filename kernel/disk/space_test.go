package disk

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel/kerneltest"
)

const mebibyte = 1 << 20

func TestSpaceOf(t *testing.T) {
	for _, tt := range []struct {
		name string
		s    unix.Statfs_t
		want Space
		bad  bool
	}{
		{name: "ext4 with reserved blocks", s: unix.Statfs_t{Bsize: 4096, Frsize: 4096, Blocks: 1000, Bfree: 600, Bavail: 550, Files: 256, Ffree: 200},
			want: Space{Bytes: 4096000, Free: 2457600, Available: 2252800, Inodes: 256, InodesFree: 200, CountsInodes: true}},
		{name: "fragments smaller than blocks", s: unix.Statfs_t{Bsize: 1 << 20, Frsize: 512, Blocks: 10, Bfree: 5, Bavail: 5, Files: 1},
			want: Space{Bytes: 5120, Free: 2560, Available: 2560, Inodes: 1, CountsInodes: true}},
		{name: "no fragment size", s: unix.Statfs_t{Bsize: 4096, Blocks: 1, Bfree: 1, Bavail: 1},
			want: Space{Bytes: 4096, Free: 4096, Available: 4096}},
		{name: "btrfs without inode counts", s: unix.Statfs_t{Bsize: 4096, Frsize: 4096, Blocks: 4, Bfree: 2, Bavail: 1},
			want: Space{Bytes: 16384, Free: 8192, Available: 4096}},
		{name: "more free than the size", s: unix.Statfs_t{Bsize: 1, Frsize: 1, Blocks: 5, Bfree: 6, Bavail: 1<<64 - 1, Files: 5, Ffree: 6},
			want: Space{Bytes: 5, Free: 5, Available: 5, Inodes: 5, InodesFree: 5, CountsInodes: true}},
		{name: "no fragment or block size", s: unix.Statfs_t{Blocks: 5}, bad: true},
		{name: "negative unit", s: unix.Statfs_t{Bsize: -1, Blocks: 5}, bad: true},
		{name: "too large", s: unix.Statfs_t{Bsize: 4096, Blocks: 1 << 62}, bad: true},
		{name: "FUSE filesystem with -1 inodes", s: unix.Statfs_t{Bsize: 4096, Blocks: 1, Files: 1<<64 - 1}, bad: true},
	} {
		got, err := spaceOf(&tt.s)
		if (err != nil) != tt.bad {
			t.Errorf("%s: error %v; want an error: %t", tt.name, err, tt.bad)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

// Writing to a real filesystem reduces its available space.
func TestReadSpace(t *testing.T) {
	for _, fstype := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fstype, func(t *testing.T) {
			point := kerneltest.MountLoop(t, fstype, 512*mebibyte, "")
			before, err := ReadSpace(point)
			if err != nil {
				t.Fatal(err)
			}
			if before.Available > before.Free || before.Free > before.Bytes || before.Bytes > 512*mebibyte || before.Available < 200*mebibyte {
				t.Errorf("ReadSpace of a filesystem of 512 MiB = %+v", before)
			}
			if want := fstype != "btrfs"; before.CountsInodes != want {
				t.Errorf("counts inodes: %t; want %t", before.CountsInodes, want)
			}
			fill(t, filepath.Join(point, "a"), 64*mebibyte)
			after, err := ReadSpace(point)
			if err != nil {
				t.Fatal(err)
			}
			if lost := before.Available - after.Available; lost < 60*mebibyte || lost > 80*mebibyte {
				t.Errorf("available space fell by %d bytes after a write of 64 MiB", lost)
			}
			if fstype == "ext4" && before.InodesFree-after.InodesFree != 1 {
				t.Errorf("free inodes fell by %d after one file was created; want 1", before.InodesFree-after.InodesFree)
			}
		})
	}
	if _, err := ReadSpace("/nowhere/at/all"); !os.IsNotExist(err) || !strings.Contains(err.Error(), "statfs /nowhere/at/all") {
		t.Errorf("ReadSpace of a missing path = %v; want ErrNotExist that names it", err)
	}
}

// fill writes a file of a size and syncs it to disk.
func fill(t *testing.T, path string, size int) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	block := make([]byte, mebibyte)
	for i := range block {
		block[i] = byte(i * 7) // not zeros, which a filesystem might not store
	}
	for ; size > 0; size -= len(block) {
		if _, err := f.Write(block[:min(size, len(block))]); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		t.Fatal(err)
	}
}

// The space of a removed file is available after Sync.
func TestSync(t *testing.T) {
	for _, fstype := range []string{"ext4", "btrfs"} {
		t.Run(fstype, func(t *testing.T) {
			point := kerneltest.MountLoop(t, fstype, 512*mebibyte, "")
			fill(t, filepath.Join(point, "a"), 64*mebibyte)
			before, err := ReadSpace(point)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Remove(filepath.Join(point, "a")); err != nil {
				t.Fatal(err)
			}
			if err := Sync(point); err != nil {
				t.Fatal(err)
			}
			after, err := ReadSpace(point)
			if err != nil {
				t.Fatal(err)
			}
			if freed := int64(after.Available) - int64(before.Available); freed < 60*mebibyte {
				t.Errorf("%d MiB freed; want 64", freed/mebibyte)
			}
		})
	}
	if err := Sync("/nowhere"); !os.IsNotExist(err) {
		t.Errorf("Sync of a missing path = %v; want ErrNotExist", err)
	}
}
