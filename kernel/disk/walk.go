package disk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Usage is the disk usage of files and directories.
type Usage struct {
	Bytes  uint64 // in allocated blocks, as du(1) counts
	Inodes uint64
}

// Add adds o to u.
func (u *Usage) Add(o Usage) {
	u.Bytes += o.Bytes
	u.Inodes += o.Inodes
}

// ErrIncomplete means that a walk was incomplete: the usage returned with it is a
// lower bound.
var ErrIncomplete = errors.New("not everything was counted")

const (
	// maxOpen is how many ancestors of the current directory stay open. For a deeper
	// directory the walk returns through "..", which may lead elsewhere.
	maxOpen = 64
	// maxDepth bounds the depth of a walk; each level takes about 40 bytes.
	maxDepth = 1 << 17
	// maxLinks is how many files with several names are remembered. Each name of a
	// further one counts for its share of the bytes and of the inode.
	maxLinks = 1 << 16
	// wholeInode is the unit of Walker.shares.
	wholeInode = 1 << 32
	// maxPending is how many subdirectories are queued before the first is entered.
	maxPending = 64
)

// Walker computes the disk usage of a directory by visiting every entry. It follows
// no symbolic links and enters no other mounts. A file with several names counts
// once; of more than maxLinks such files, some count by the share of the names that the walk
// visits. A Walker is for one walk.
//
// Other processes may write to the directory during the walk, and may be hostile: a
// very deep, very wide or changing tree can't make the walk leave the directory, use
// much memory or visit more than MaxEntries.
type Walker struct {
	// MaxEntries is the maximum number of entries; 0 is no limit.
	MaxEntries uint64
	// Pause, if set, is called after every 128 entries and may sleep.
	Pause func()
	// OnDirectory, if set, is called for every directory down to Depth levels below the root
	// of the walk, root included, with its path relative to the root. At Depth, u
	// includes all descendants; above Depth, it excludes the directories that OnDirectory is
	// called for. u does not include entries that the walk did not reach.
	OnDirectory func(path string, depth int, u Usage)
	Depth       int
	// Skip lists directories, by their paths as in OnDirectory, that are not entered. Their
	// usage is missing.
	Skip []string
	// Include, if set, selects the entries of the root.
	Include func(name string) bool

	entries, bytes, inodes atomic.Uint64
	current                atomic.Pointer[string]

	links map[inode]struct{}
	// shares is the sum of the shares that names have in their inodes, in 1/wholeInode,
	// for files that links does not have.
	shares uint64
	buf    *buffer
	st     unix.Statx_t
	stack  []level
	fd     int // of the current directory, or -1
	mount  uint64
	// skipErr is the first reason why an entry was left out, stopErr the reason why
	// the walk ended early.
	skipErr, stopErr error
}

// buffer is a getdents64(2) buffer. The pool lets later walks reuse it.
type buffer [32 << 10]byte

var buffers = sync.Pool{New: func() any { return new(buffer) }}

// level is a directory that is being walked.
type level struct {
	self    inode
	fd      int      // -1 if it is not kept open
	offset  int64    // of the next read
	done    bool     // all entries are read
	pending []string // subdirectories to enter
	// For OnDirectory: the path down to Depth, the usage counted before the directory was
	// entered, and the usage passed to OnDirectory since then.
	path             string
	before, reported Usage
}

// Entries returns the number of entries visited so far. It may be called during the
// walk, to distinguish a long walk from one that hangs.
func (w *Walker) Entries() uint64 { return w.entries.Load() }

// Counted returns the usage counted so far. It may be called during the walk.
func (w *Walker) Counted() Usage { return Usage{Bytes: w.bytes.Load(), Inodes: w.inodes.Load()} }

// CurrentDirectory returns the path, as in OnDirectory, of the current directory, or of
// its ancestor at Depth; "" is the root of the walk. It may be called during a walk with
// OnDirectory.
func (w *Walker) CurrentDirectory() string {
	if current := w.current.Load(); current != nil {
		return *current
	}
	return ""
}

// pauseEvery is the number of entries between two calls of Pause, about 0.3 ms of
// CPU time.
const pauseEvery = 128

// Usage walks path and returns its usage: of a directory, itself included, or of a
// file. If the walk is incomplete, it returns the usage counted until then with
// [ErrIncomplete]. Entries that are removed during the walk are not an error.
func (w *Walker) Usage(ctx context.Context, path string) (Usage, error) {
	w.links, w.fd, w.buf = map[inode]struct{}{}, -1, buffers.Get().(*buffer)
	defer w.close()
	if err := w.stat(unix.AT_FDCWD, path, 0); err != nil {
		return Usage{}, fmt.Errorf("walk: %w", &os.PathError{Op: "statx", Path: path, Err: err})
	}
	w.mount = w.mountID()
	w.count()
	if w.st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return w.Counted(), nil
	}
	fd, err := openDir(unix.AT_FDCWD, path)
	if err != nil {
		return Usage{}, fmt.Errorf("walk: %w", &os.PathError{Op: "open", Path: path, Err: err})
	}
	w.fd = fd
	if err := w.stat(fd, "", unix.AT_EMPTY_PATH); err != nil {
		return Usage{}, fmt.Errorf("walk %s: %w", path, err)
	}
	w.stack = append(w.stack, level{self: w.inode(), fd: -1})
	for len(w.stack) > 0 && w.stopErr == nil {
		if w.stopErr = ctx.Err(); w.stopErr == nil {
			w.step()
		}
	}
	for depth := len(w.stack) - 1; depth >= 0; depth-- {
		w.report(depth)
	}
	if err := cmp.Or(w.stopErr, w.skipErr); err != nil {
		return w.Counted(), fmt.Errorf("walk %s: %w: %w", path, ErrIncomplete, err)
	}
	return w.Counted(), nil
}

// step enters a pending subdirectory, reads further entries of the current
// directory, or returns to the parent.
func (w *Walker) step() {
	l := &w.stack[len(w.stack)-1]
	switch {
	case len(l.pending) > 0:
		name := l.pending[len(l.pending)-1]
		l.pending = l.pending[:len(l.pending)-1]
		w.enter(name)
	case !l.done:
		w.read(l)
	default:
		w.leave()
	}
}

// read counts entries of the current directory until enough subdirectories are
// pending.
func (w *Walker) read(l *level) {
	room := maxPending
	if len(w.stack) > maxOpen {
		room = 1 // bounds the memory for a deep tree of wide directories
	}
	if _, err := unix.Seek(w.fd, l.offset, unix.SEEK_SET); err != nil {
		l.done = true
		// ext4 returns EINVAL for a directory that was removed.
		if stErr := w.stat(w.fd, "", unix.AT_EMPTY_PATH); stErr != nil || w.st.Nlink > 0 {
			w.skip("seek in a directory", err)
		}
		return
	}
	n, err := unix.Getdents(w.fd, w.buf[:])
	if err != nil && err != unix.EINTR {
		l.done = true // also if the directory itself was removed
		w.skip("read a directory", err)
		return
	}
	l.done = err == nil && n <= 0
	for buf := w.buf[:max(n, 0)]; len(buf) > 0 && len(l.pending) < room; {
		var name []byte
		var ok bool
		if name, l.offset, buf, ok = dirent(buf); !ok {
			w.stopErr = errors.New("read a directory: malformed entry")
			return
		}
		if string(name) == "." || string(name) == ".." {
			continue
		}
		if w.visit(l, name); w.stopErr != nil {
			return
		}
	}
}

// visit counts a file or queues a subdirectory. It allocates nothing for a file:
// otherwise garbage collection would double the cost of a large walk.
func (w *Walker) visit(l *level, name []byte) {
	if w.Include != nil && len(w.stack) == 1 && !w.Include(string(name)) {
		return
	}
	entries := w.entries.Add(1)
	if w.Pause != nil && entries%pauseEvery == 0 {
		w.Pause()
	}
	if entries > w.MaxEntries && w.MaxEntries > 0 {
		w.stopErr = fmt.Errorf("more than %d entries", w.MaxEntries)
		return
	}
	if err := w.statEntry(name); err != nil {
		w.skip("stat an entry", err)
		return
	}
	if w.mountID() != w.mount {
		return // it is a mount point
	}
	if w.st.Mode&unix.S_IFMT != unix.S_IFDIR {
		w.count()
		return
	}
	// enter counts it.
	l.pending = append(l.pending, string(name))
}

// enter opens a subdirectory of the current directory, counts it and makes it the
// current one.
func (w *Walker) enter(name string) {
	if len(w.stack) >= maxDepth {
		w.skip("open a directory", fmt.Errorf("more than %d levels deep", maxDepth))
		return
	}
	next := level{fd: -1, before: w.Counted()}
	parent := &w.stack[len(w.stack)-1]
	if w.OnDirectory != nil && len(w.stack) <= w.Depth {
		path := filepath.Join(parent.path, name)
		if slices.Contains(w.Skip, path) {
			w.skip("enter "+path, errSkipped)
			return
		}
		next.path = path
		w.current.Store(&path) // before openDir, which may hang
	}
	fd, err := openDir(w.fd, name)
	if err != nil {
		w.skip("open a directory", err)
		w.resetCurrent()
		return
	}
	if err := w.stat(fd, "", unix.AT_EMPTY_PATH); err != nil || w.mountID() != w.mount {
		unix.Close(fd)
		w.skip("stat a directory", err)
		w.resetCurrent()
		return
	}
	next.self = w.inode()
	w.count()
	if len(w.stack) <= maxOpen {
		parent.fd = w.fd
	} else {
		unix.Close(w.fd)
	}
	w.fd = fd
	w.stack = append(w.stack, next)
}

var errSkipped = errors.New("skipped")

// resetCurrent makes CurrentDirectory return the current directory again.
func (w *Walker) resetCurrent() {
	if depth := len(w.stack) - 1; w.OnDirectory != nil && depth <= w.Depth {
		path := w.stack[depth].path
		w.current.Store(&path)
	}
}

// report calls OnDirectory for the directory at a depth when the walk leaves it.
func (w *Walker) report(depth int) {
	if w.OnDirectory == nil || depth > w.Depth {
		return
	}
	l := &w.stack[depth]
	u := w.Counted()
	u.Bytes -= l.before.Bytes + l.reported.Bytes
	u.Inodes -= l.before.Inodes + l.reported.Inodes
	w.OnDirectory(l.path, depth, u)
	if depth > 0 {
		parent := &w.stack[depth-1]
		parent.reported.Add(u)
		parent.reported.Add(l.reported)
	}
}

// leave returns to the parent directory and checks that it is the same one.
func (w *Walker) leave() {
	w.report(len(w.stack) - 1)
	w.stack = w.stack[:len(w.stack)-1]
	if len(w.stack) == 0 {
		return
	}
	w.resetCurrent()
	l := &w.stack[len(w.stack)-1]
	if l.fd >= 0 {
		unix.Close(w.fd)
		w.fd, l.fd = l.fd, -1
		return
	}
	fd, err := openDir(w.fd, "..")
	if err == nil {
		if err = w.stat(fd, "", unix.AT_EMPTY_PATH); err == nil && (w.inode() != l.self || w.mountID() != w.mount) {
			err = ErrChanged
		}
		unix.Close(w.fd)
		w.fd = fd
	}
	if err != nil {
		w.stopErr = fmt.Errorf("return to a parent directory: %w", err)
	}
}

// skip records why an entry was left out. It ignores a nil error, and the errors of
// an entry that was removed or is not a directory any more.
func (w *Walker) skip(op string, err error) {
	switch err {
	case nil, unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.EINTR:
		return
	}
	if w.skipErr == nil {
		w.skipErr = fmt.Errorf("%s: %w", op, err)
	}
}

// count adds the usage of the file in w.st.
func (w *Walker) count() {
	u := Usage{Bytes: w.st.Blocks * 512, Inodes: 1}
	if w.st.Nlink > 1 && w.st.Mode&unix.S_IFMT != unix.S_IFDIR {
		self := w.inode()
		if _, known := w.links[self]; known {
			return
		}
		if len(w.links) < maxLinks {
			w.links[self] = struct{}{}
		} else {
			u = w.share(u.Bytes)
		}
	}
	w.bytes.Add(u.Bytes)
	w.inodes.Add(u.Inodes)
}

// share returns the share that one of the names of the file in w.st has in its bytes and in
// its inode. Bytes are rounded up, so that the share of a non-empty file is not 0. An inode
// counts with the name that begins it: the sum of all shares is rounded up to whole inodes.
func (w *Walker) share(bytes uint64) Usage {
	names := uint64(w.st.Nlink)
	before := wholeInodes(w.shares)
	w.shares += wholeInode / names
	return Usage{Bytes: (bytes + names - 1) / names, Inodes: wholeInodes(w.shares) - before}
}

// wholeInodes returns a sum of shares in inodes, rounded up.
func wholeInodes(shares uint64) uint64 { return (shares + wholeInode - 1) / wholeInode }

func (w *Walker) close() {
	for _, l := range w.stack {
		if l.fd >= 0 {
			unix.Close(l.fd)
		}
	}
	if w.fd >= 0 {
		unix.Close(w.fd)
	}
	if w.buf != nil {
		buffers.Put(w.buf)
	}
	w.stack, w.links, w.fd, w.buf = nil, nil, -1, nil
}
