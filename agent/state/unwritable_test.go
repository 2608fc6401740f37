package state

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel/kerneltest"
)

// OpenOrDegrade with a state directory that is read-only (before or after the first
// run of evictd), or that has no inodes or space left: the Store saves nothing,
// reports the reason and excludes a second agent. It saves again once the directory
// is writable.
func TestOpenUnwritable(t *testing.T) {
	clock := Clock{BootID: "b", Now: saveTime}
	for _, tt := range []struct {
		name             string
		breakDir, repair func(t *testing.T, mnt, dir string)
		want             error
	}{
		{"read-only, new", readOnly, writable, unix.EROFS},
		{"read-only, used", func(t *testing.T, mnt, dir string) { use(t, dir); readOnly(t, mnt, dir) }, writable, unix.EROFS},
		{"read-only, without a lock", func(t *testing.T, mnt, dir string) {
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			readOnly(t, mnt, dir)
		}, writable, unix.EROFS},
		{"no inodes, new", noInodes, freeInodes, unix.ENOSPC},
		{"no inodes, used", func(t *testing.T, mnt, dir string) { use(t, dir); noInodes(t, mnt, dir) }, freeInodes, unix.ENOSPC},
		{"full, used", func(t *testing.T, mnt, dir string) { use(t, dir); full(t, mnt, dir) }, freeInodes, unix.ENOSPC},
	} {
		t.Run(tt.name, func(t *testing.T) {
			mnt, run := kerneltest.MountLoop(t, "ext4", 4<<20, "", "-b", "4096"), t.TempDir()
			dir := filepath.Join(mnt, "evictd")
			tt.breakDir(t, mnt, dir)
			store, err := OpenOrDegrade(dir, run)
			if err != nil {
				t.Fatalf("OpenOrDegrade() = %v; want a Store that saves nothing", err)
			}
			defer store.Close()
			if err := store.Err(); !errors.Is(err, tt.want) {
				t.Errorf("Err() = %v; want %v", err, tt.want)
			}
			if _, err := OpenOrDegrade(dir, run); !errors.Is(err, ErrLocked) {
				t.Errorf("second OpenOrDegrade() = %v; want ErrLocked", err)
			}
			if _, _, err := store.Load(clock); err != nil {
				t.Errorf("Load() = %v; want no error", err)
			}
			if err := store.Save(example(saveTime), clock); !errors.Is(err, tt.want) {
				t.Errorf("Save() = %v; want %v", err, tt.want)
			}
			tt.repair(t, mnt, dir)
			if err := store.Save(example(saveTime), clock); err != nil || store.Err() != nil {
				t.Errorf("Save() once it is writable = %v, Err() = %v; want no errors", err, store.Err())
			}
		})
	}
}

// use opens and saves a state, as a run of evictd does.
func use(t *testing.T, dir string) {
	t.Helper()
	store, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if err := store.Save(example(saveTime), Clock{BootID: "b", Now: saveTime}); err != nil {
		t.Fatal(err)
	}
}

func readOnly(t *testing.T, mnt, _ string) { remount(t, mnt, unix.MS_RDONLY) }
func writable(t *testing.T, mnt, _ string) { remount(t, mnt, 0) }

func remount(t *testing.T, mnt string, flags uintptr) {
	t.Helper()
	if err := unix.Mount("", mnt, "", unix.MS_REMOUNT|flags, ""); err != nil {
		t.Fatal(err)
	}
}

// noInodes makes empty files until none can be made.
func noInodes(t *testing.T, mnt, _ string) {
	t.Helper()
	if err := os.Mkdir(filepath.Join(mnt, "fill"), 0o700); err != nil {
		t.Fatal(err)
	}
	for i := range 100_000 {
		err := os.WriteFile(filepath.Join(mnt, "fill", fmt.Sprint(i)), nil, 0o600)
		if errors.Is(err, unix.ENOSPC) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("inodes are left")
}

// full writes until no block is left, also for a single block once all are
// allocated.
func full(t *testing.T, mnt, _ string) {
	t.Helper()
	if err := os.Mkdir(filepath.Join(mnt, "fill"), 0o700); err != nil {
		t.Fatal(err)
	}
	failed := 0
	for i := 0; failed < 3; i++ {
		size := 4096
		if failed == 0 {
			size = 1 << 20
		}
		err := os.WriteFile(filepath.Join(mnt, "fill", fmt.Sprint(i)), make([]byte, size), 0o600)
		syncfs(t, mnt) // ext4 reserves more than it needs for delayed allocation
		switch {
		case errors.Is(err, unix.ENOSPC):
			failed++
		case err != nil:
			t.Fatal(err)
		}
	}
}

func freeInodes(t *testing.T, mnt, _ string) {
	t.Helper()
	if err := os.RemoveAll(filepath.Join(mnt, "fill")); err != nil {
		t.Fatal(err)
	}
	syncfs(t, mnt)
}

// A state on a filesystem that is mounted after the start was not loaded. Save
// moves it aside instead of overwriting it.
func TestSaveMovesMissedStateAside(t *testing.T) {
	base, run := t.TempDir(), t.TempDir()
	dir := filepath.Join(base, "state")
	first, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	clock := Clock{BootID: "b1", Uptime: time.Hour, Now: saveTime}
	facts := func(text string) func(io.Writer) error {
		return func(w io.Writer) error { _, err := io.WriteString(w, text); return err }
	}
	if err := errors.Join(first.Save(example(saveTime), clock), first.SaveFacts(facts("old facts")), first.Close()); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", base, "tmpfs", unix.MS_RDONLY, ""); err != nil {
		t.Skip("needs to mount a filesystem: ", err)
	}
	mounted := true
	unmount := func() {
		if mounted {
			mounted = false
			if err := unix.Unmount(base, 0); err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(unmount)
	store, err := OpenOrDegrade(dir, run)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if saved, _, err := store.Load(clock); err != nil || len(saved.Records) != 0 {
		t.Fatalf("Load() = %d records, %v; want none", len(saved.Records), err)
	}
	if content, err := store.LoadFacts(); err != nil || content != nil {
		t.Fatalf("LoadFacts() = %q, %v; want none", content, err)
	}
	unmount()
	if err := errors.Join(store.Save(Saved{}, clock), store.SaveFacts(facts("none"))); err != nil {
		t.Fatalf("saved after the directory appeared: %v", err)
	}
	if kept, err := os.ReadFile(filepath.Join(dir, factsName+missedSuffix)); err != nil || string(kept) != "old facts" {
		t.Errorf("the facts that appeared late: %q, %v; want them moved aside", kept, err)
	}
	kept, err := os.ReadFile(filepath.Join(dir, fileName+missedSuffix))
	if err != nil || !strings.Contains(string(kept), "default/old") {
		t.Errorf("the state that appeared late: %.60q, %v; want it moved aside", kept, err)
	}
}

// Save does not replace a corrupt file that can't be moved aside, until it can be.
func TestSaveKeepsCorruptFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, fileName)
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	// rename(2) does not replace a directory that is not empty.
	if err := os.MkdirAll(filepath.Join(path+corruptSuffix, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	store, err := OpenOrDegrade(dir, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	clock := Clock{BootID: "b", Now: time.Now()}
	var broken *CorruptError
	if _, _, err := store.Load(clock); !errors.As(err, &broken) || broken.MovedTo != "" || store.Err() == nil {
		t.Errorf("Load() = %v, Err() = %v; want a CorruptError with an empty MovedTo", err, store.Err())
	}
	if err := store.Save(Saved{}, clock); err == nil {
		t.Error("Save() = nil; want an error while the file can't be moved")
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "{" {
		t.Errorf("%s = %q, %v; want it unchanged", path, b, err)
	}
	if err := os.RemoveAll(path + corruptSuffix); err != nil {
		t.Fatal(err)
	}
	if err := store.Save(Saved{}, clock); err != nil || store.Err() != nil {
		t.Errorf("Save() = %v, Err() = %v; want no errors once the file can be moved", err, store.Err())
	}
}

func syncfs(t *testing.T, mnt string) {
	t.Helper()
	f, err := os.Open(mnt)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		t.Fatal(err)
	}
}
