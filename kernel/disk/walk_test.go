package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel/kerneltest"
)

func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v: %s", name, args, err, out)
	}
	return string(out)
}

// du returns the usage that du(1) reports, to compare the walk with.
func du(t *testing.T, path string) Usage {
	t.Helper()
	number := func(flag string) uint64 {
		field, _, _ := strings.Cut(command(t, "du", "-sx", flag, path), "\t")
		n, err := strconv.ParseUint(field, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	return Usage{Bytes: number("--block-size=1"), Inodes: number("--inodes")}
}

func mkdir(t *testing.T, elem ...string) string {
	t.Helper()
	path := filepath.Join(elem...)
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// A tree with every kind of entry has the usage that du reports.
func TestWalk(t *testing.T) {
	for _, fstype := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fstype, func(t *testing.T) {
			root := mkdir(t, kerneltest.MountLoop(t, fstype, 512*mebibyte, ""), "root")
			fill(t, filepath.Join(root, "a"), 3*mebibyte)
			fill(t, filepath.Join(mkdir(t, root, "x", "y"), "b"), 12345)
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			must(os.Link(filepath.Join(root, "a"), filepath.Join(root, "x", "again")))
			must(os.Symlink("/", filepath.Join(root, "x", "out")))
			must(os.Symlink(root, filepath.Join(root, "x", "round")))
			must(unix.Mkfifo(filepath.Join(root, "fifo"), 0o600))
			sparse, err := os.Create(filepath.Join(root, "sparse"))
			must(err)
			must(sparse.Truncate(1 << 40))
			must(sparse.Close())
			for i := range 1000 { // more than maxPending, and more than one getdents64(2) returns
				mkdir(t, root, "wide", strings.Repeat("n", 200)+strconv.Itoa(i), "x")
			}
			deep := root
			for i := range 3 * maxOpen {
				deep = mkdir(t, deep, "d"+strconv.Itoa(i))
				mkdir(t, deep, "sibling")
			}
			fill(t, filepath.Join(deep, "bottom"), mebibyte)

			want := du(t, root)
			before := descriptors(t)
			got, err := (&Walker{}).Usage(t.Context(), root)
			if err != nil || got != want {
				t.Errorf("Usage = %+v, %v; want %+v as du reports", got, err, want)
			}
			if after := descriptors(t); after != before {
				t.Errorf("%d descriptors after the walk; want %d as before", after, before)
			}
		})
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// A walk does not enter other mounts, even of the same filesystem.
func TestWalkStaysOnItsMount(t *testing.T) {
	root := kerneltest.MountLoop(t, "ext4", 64*mebibyte, "")
	want, err := (&Walker{}).Usage(t.Context(), mkdir(t, root, "here"))
	if err != nil {
		t.Fatal(err)
	}
	fill(t, filepath.Join(mkdir(t, root, "elsewhere"), "big"), 8*mebibyte)
	for _, name := range []string{"bind", "tmpfs"} {
		mkdir(t, root, "here", name)
	}
	file := filepath.Join(root, "here", "file")
	fill(t, file, 0)
	kerneltest.Mount(t, filepath.Join(root, "elsewhere"), filepath.Join(root, "here", "bind"), "", unix.MS_BIND, "")
	kerneltest.Mount(t, filepath.Join(root, "elsewhere", "big"), file, "", unix.MS_BIND, "")
	kerneltest.Mount(t, "tmpfs", filepath.Join(root, "here", "tmpfs"), "tmpfs", 0, "")
	got, err := (&Walker{}).Usage(t.Context(), filepath.Join(root, "here"))
	if err != nil || got != want {
		t.Errorf("Usage = %+v, %v; want %+v as without mounts", got, err, want)
	}
}

// A file with several names counts as one inode also if the walk can't remember it: each of
// its names counts as a share.
func TestWalkManyLinkedFiles(t *testing.T) {
	root := t.TempDir()
	for _, names := range []int{2, 3, 7, 1000} {
		first := filepath.Join(root, fmt.Sprintf("%d-0", names))
		fill(t, first, 10000)
		for i := 1; i < names; i++ {
			if err := os.Link(first, filepath.Join(root, fmt.Sprintf("%d-%d", names, i))); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := du(t, root)
	w := &Walker{}
	w.Include = func(string) bool { // as if the walk had found maxLinks other files
		for i := uint32(1); len(w.links) < maxLinks; i++ {
			w.links[inode{major: ^uint32(0), minor: i}] = struct{}{}
		}
		return true
	}
	got, err := w.Usage(t.Context(), root)
	if err != nil || got.Inodes != want.Inodes || got.Bytes < want.Bytes || got.Bytes > want.Bytes+1012 {
		t.Errorf("Usage = %+v, %v; want %+v as du reports, and less than a byte more for each name", got, err, want)
	}
}

func TestWalkIsBounded(t *testing.T) {
	root := t.TempDir()
	for i := range 100 {
		mkdir(t, root, strconv.Itoa(i), "x")
	}
	w := &Walker{MaxEntries: 50}
	if got, err := w.Usage(t.Context(), root); !errors.Is(err, ErrIncomplete) || got.Inodes == 0 || got.Inodes > 51 || !strings.Contains(err.Error(), "more than 50 entries") {
		t.Errorf("Usage of at most 50 entries = %+v, %v", got, err)
	}
	if got := w.Entries(); got != 51 {
		t.Errorf("Entries() = %d; want 51", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got, err := (&Walker{}).Usage(ctx, root); !errors.Is(err, ErrIncomplete) || !errors.Is(err, context.Canceled) || got.Inodes != 1 {
		t.Errorf("Usage after cancel = %+v, %v; want the directory itself", got, err)
	}
	got, err := (&Walker{Include: func(name string) bool { return strings.HasPrefix(name, "1") }}).Usage(t.Context(), root)
	if err != nil || got.Inodes != 1+2*11 {
		t.Errorf("Usage of 1, 10 to 19 = %+v, %v; want 23 inodes", got, err)
	}
	file := filepath.Join(root, "file")
	fill(t, file, 10000)
	if got, err := (&Walker{}).Usage(t.Context(), file); err != nil || got.Inodes != 1 || got.Bytes < 10000 {
		t.Errorf("Usage of a file = %+v, %v", got, err)
	}
	if _, err := (&Walker{}).Usage(t.Context(), filepath.Join(root, "none")); !errors.Is(err, os.ErrNotExist) || errors.Is(err, ErrIncomplete) {
		t.Errorf("Usage of a missing path = %v; want %v", err, os.ErrNotExist)
	}
	link := filepath.Join(root, "link")
	if err := os.Symlink("/", link); err != nil {
		t.Fatal(err)
	}
	if got, err := (&Walker{}).Usage(t.Context(), link); err != nil || got.Inodes != 1 {
		t.Errorf("Usage of a symbolic link to / = %+v, %v; want the link alone", got, err)
	}
}

// A walk handles a tree deeper than PATH_MAX and than maxOpen.
func TestWalkDeep(t *testing.T) {
	root := t.TempDir()
	const levels = 5000
	fd, err := openDir(unix.AT_FDCWD, root)
	if err != nil {
		t.Fatal(err)
	}
	for range levels {
		if err := unix.Mkdirat(fd, "d", 0o755); err != nil {
			t.Fatal(err)
		}
		next, err := openDir(fd, "d")
		unix.Close(fd)
		if err != nil {
			t.Fatal(err)
		}
		fd = next
	}
	unix.Close(fd)
	if got, err := (&Walker{}).Usage(t.Context(), root); err != nil || got.Inodes != levels+1 {
		t.Errorf("Usage of %d nested directories = %+v, %v", levels, got, err)
	}
}

// A process that moves directories can't make the walk leave its tree.
func TestWalkMovingTree(t *testing.T) {
	root := t.TempDir()
	a := root
	for range maxOpen + 10 {
		a = mkdir(t, a, "d")
	}
	other := mkdir(t, root, "other")
	w := &Walker{}
	// The race is simulated: the walk goes to the bottom, then the directory moves.
	w.links, w.fd = map[inode]struct{}{}, -1
	defer w.close()
	fd, err := openDir(unix.AT_FDCWD, root)
	if err != nil {
		t.Fatal(err)
	}
	w.fd = fd
	if err := w.stat(fd, "", unix.AT_EMPTY_PATH); err != nil {
		t.Fatal(err)
	}
	w.mount, w.stack = w.mountID(), []level{{self: w.inode(), fd: -1}}
	for range maxOpen + 10 {
		w.enter("d")
	}
	if len(w.stack) != maxOpen+11 {
		t.Fatalf("depth %d; want %d", len(w.stack), maxOpen+11)
	}
	if err := os.Rename(a, filepath.Join(other, "moved")); err != nil {
		t.Fatal(err)
	}
	if w.leave(); !errors.Is(w.stopErr, ErrChanged) {
		t.Errorf("leave() of a directory that was moved = %v; want ErrChanged", w.stopErr)
	}
}

// A walk of a tree whose files are created and removed ends without an error.
func TestWalkConcurrentRemoval(t *testing.T) {
	root := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ctx.Err() == nil; i++ {
			dir := filepath.Join(root, strconv.Itoa(i%50), "x")
			os.MkdirAll(dir, 0o755)
			os.WriteFile(filepath.Join(dir, "f"), nil, 0o600)
			os.RemoveAll(filepath.Join(root, strconv.Itoa((i+25)%50)))
		}
	}()
	for range 200 {
		if _, err := (&Walker{}).Usage(t.Context(), root); err != nil {
			t.Error(err)
			break
		}
	}
	cancel()
	<-done
}

// Pause is called every pauseEvery entries, and Counted returns the usage by then.
func TestWalkPauses(t *testing.T) {
	root := t.TempDir()
	for i := range 10 * pauseEvery {
		fill(t, filepath.Join(root, strconv.Itoa(i)), 0)
	}
	w := &Walker{}
	pauses, last := 0, uint64(0)
	w.Pause = func() {
		pauses++
		now := w.Counted().Inodes
		if now <= last {
			t.Errorf("pause %d: %d inodes so far; want more than %d", pauses, now, last)
		}
		last = now
	}
	got, err := w.Usage(t.Context(), root)
	if err != nil || pauses != 10 || got != w.Counted() {
		t.Errorf("Usage = %+v, %v after %d pauses, %+v so far; want 10 pauses and the same", got, err, pauses, w.Counted())
	}
}

// The usages passed to OnDirectory add up to the total, even if the walk ends early.
func TestWalkOnDirectory(t *testing.T) {
	root := t.TempDir()
	fill(t, filepath.Join(root, "top"), 10000)
	fill(t, filepath.Join(mkdir(t, root, "a"), "f"), 20000)
	fill(t, filepath.Join(mkdir(t, root, "a", "b"), "f"), 30000)
	fill(t, filepath.Join(mkdir(t, root, "a", "b", "c", "d"), "f"), 40000)
	mkdir(t, root, "e", "f", "g")
	for _, limit := range []uint64{0, 6} {
		got, sum := map[string]uint64{}, Usage{}
		w := &Walker{Depth: 2, MaxEntries: limit}
		w.OnDirectory = func(path string, depth int, u Usage) {
			if want := len(strings.FieldsFunc(path, func(r rune) bool { return r == '/' })); depth != want {
				t.Errorf("%s: depth %d; want %d", path, depth, want)
			}
			if at := w.CurrentDirectory(); at != path && limit == 0 {
				t.Errorf("CurrentDirectory() = %q in %q", at, path)
			}
			got[path] = u.Inodes
			sum.Add(u)
		}
		total, err := w.Usage(t.Context(), root)
		if (err != nil) != (limit > 0) || sum != total {
			t.Errorf("at most %d entries: Usage = %+v, %v; directories add up to %+v", limit, total, err, sum)
		}
		want := map[string]uint64{"": 2, "a": 2, "a/b": 5, "e": 1, "e/f": 2}
		if diff := cmp.Diff(want, got); diff != "" && limit == 0 {
			t.Errorf("inodes (-want +got):\n%s", diff)
		}
	}
}

func TestWalkSkips(t *testing.T) {
	root := t.TempDir()
	mkdir(t, root, "a", "b", "c")
	mkdir(t, root, "a", "d")
	mkdir(t, root, "e")
	var got []string
	w := &Walker{Depth: 2, Skip: []string{"a/b", "e"}, OnDirectory: func(path string, _ int, _ Usage) { got = append(got, path) }}
	u, err := w.Usage(t.Context(), root)
	slices.Sort(got)
	if want := []string{"", "a", "a/d"}; !errors.Is(err, ErrIncomplete) || u.Inodes != 3 || !slices.Equal(got, want) {
		t.Errorf("Usage = %+v, %v; entered %q; want %q", u, err, got, want)
	}
}

func TestDirent(t *testing.T) {
	entry := func(offset byte, length byte, name string) string {
		return strings.Repeat("\x01", 8) + string([]byte{offset, 0, 0, 0, 0, 0, 0, 0, length, 0, 8}) + name
	}
	for _, tt := range []struct {
		buf, name, rest string
		next            int64
		ok              bool
	}{
		{entry(5, 24, "a\x00xyz") + "rest", "a", "rest", 5, true},
		{entry(5, 21, "a\x00"), "a", "", 5, true},
		{entry(5, 200, "a\x00"), "", "", 0, false},
		{entry(5, 0, "a\x00"), "", "", 0, false},
		{entry(5, 21, "ab"), "", "", 0, false},
		{entry(5, 24, "\x00bcde"), "", "", 0, false},
		{"short", "", "", 0, false},
	} {
		name, next, rest, ok := dirent([]byte(tt.buf))
		if string(name) != tt.name || next != tt.next && tt.ok || string(rest) != tt.rest || ok != tt.ok {
			t.Errorf("dirent(%q) = %q, %d, %q, %t; want %q, %d, %q, %t", tt.buf, name, next, rest, ok, tt.name, tt.next, tt.rest, tt.ok)
		}
	}
}

func BenchmarkWalk(b *testing.B) {
	root := b.TempDir()
	for i := range 100 {
		dir := filepath.Join(root, strconv.Itoa(i))
		if err := os.Mkdir(dir, 0o755); err != nil {
			b.Fatal(err)
		}
		for j := range 100 {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprint("file-", j)), nil, 0o600); err != nil {
				b.Fatal(err)
			}
		}
	}
	for b.Loop() {
		if got, err := (&Walker{}).Usage(b.Context(), root); err != nil || got.Inodes != 10101 {
			b.Fatal(got, err)
		}
	}
}
