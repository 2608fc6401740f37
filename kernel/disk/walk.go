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
	"unsafe"

	"golang.org/x/sys/unix"
)

// Usage is what files and directories take up on a filesystem.
type Usage struct {
	Bytes  uint64 // in allocated blocks, as du(1) counts
	Inodes uint64
}

// Add adds to u what another usage is.
func (u *Usage) Add(o Usage) {
	u.Bytes += o.Bytes
	u.Inodes += o.Inodes
}

// ErrAtLeast says that a usage is less than all: not everything could be looked
// at. What comes with it is there, and more may be.
var ErrAtLeast = errors.New("not everything was counted")

const (
	// keptOpen is how many directories above the present one stay open. Above
	// them the way back is "..", which may lead elsewhere.
	keptOpen = 64
	// deepest is how far down a walk goes; some 40 bytes are kept for each level.
	deepest = 1 << 17
	// linksKept is how many files with several names are remembered. Of more,
	// each name counts for its share.
	linksKept = 1 << 16
	// ahead is how many directories are noted before the first of them is walked.
	ahead = 64
)

// Walker finds what a directory takes up, by looking at everything in it. It
// follows no symbolic link and enters no other mount; what has several names
// counts once. A Walker is for one walk.
//
// Whoever writes to the directory meanwhile may be hostile: neither very deep
// nor very wide nor moving trees make a walk leave the directory, take much
// memory or go on after Most.
type Walker struct {
	// Most is the number of entries at which the walk ends; 0 is no limit.
	Most uint64
	// Pause is called after every 128 entries and may sleep; nil is none.
	Pause func()
	// Each is called for every directory down to Depth below the one that is walked,
	// itself included, with its path below that one and what it takes up: at Depth with
	// all below it, above Depth without the directories that Each is called for. What
	// the walk did not come to is missing. nil is none.
	Each  func(path string, depth int, u Usage)
	Depth int
	// Skip lists paths as Each has them that are not entered: they are missing.
	Skip []string
	// Only chooses among the entries right in the directory; nil takes all.
	Only func(name string) bool

	seen, bytes, inodes atomic.Uint64
	at                  atomic.Pointer[string]

	links map[inode]struct{}
	buf   *buffer
	st    unix.Statx_t
	stack []level
	fd    int // of the present directory, -1 for none
	mount uint64
	// missed is why something was left out, the first time; over why the walk
	// ended early.
	missed, over error
}

// buffer takes entries of a directory. Those of walks that have ended are used
// again.
type buffer [32 << 10]byte

var buffers = sync.Pool{New: func() any { return new(buffer) }}

// inode names a file.
type inode struct {
	major, minor uint32
	number       uint64
}

// level is a directory that is being walked.
type level struct {
	self    inode
	fd      int      // -1 where it is not kept open
	offset  int64    // where to go on reading
	done    bool     // all entries are read
	waiting []string // directories to enter
	// For Each: the path down to Depth, what was counted before, and what Each was
	// called with since.
	path         string
	before, told Usage
}

// Seen returns how many entries have been looked at so far. It may be called
// meanwhile, to tell a long walk from one that hangs.
func (w *Walker) Seen() uint64 { return w.seen.Load() }

// SoFar returns what has been counted so far, which is there at least. It may be
// called during the walk.
func (w *Walker) SoFar() Usage { return Usage{Bytes: w.bytes.Load(), Inodes: w.inodes.Load()} }

// At returns, as Each has it, the path of the directory in which the walk is, or of the one
// at Depth above that; "" is the one that is walked. It may be called during the walk,
// which has Each.
func (w *Walker) At() string {
	if at := w.at.Load(); at != nil {
		return *at
	}
	return ""
}

// pauseEvery is how many entries are looked at between two calls of Pause: some
// 0.3 ms of processor time.
const pauseEvery = 128

// Usage walks path: a directory, itself included, or a file. With [ErrAtLeast]
// comes what was counted until then. What vanishes meanwhile is no error.
func (w *Walker) Usage(ctx context.Context, path string) (Usage, error) {
	w.links, w.fd, w.buf = map[inode]struct{}{}, -1, buffers.Get().(*buffer)
	defer w.close()
	if err := w.stat(unix.AT_FDCWD, path, 0); err != nil {
		return Usage{}, fmt.Errorf("walk: %w", &os.PathError{Op: "statx", Path: path, Err: err})
	}
	w.mount = w.mountID()
	w.count()
	if w.st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return w.SoFar(), nil
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
	for len(w.stack) > 0 && w.over == nil {
		if w.over = ctx.Err(); w.over == nil {
			w.step()
		}
	}
	for depth := len(w.stack) - 1; depth >= 0; depth-- {
		w.tell(depth)
	}
	if err := cmp.Or(w.over, w.missed); err != nil {
		return w.SoFar(), fmt.Errorf("walk %s: %w: %w", path, ErrAtLeast, err)
	}
	return w.SoFar(), nil
}

// step reads on in the present directory, or enters one that waits, or goes back
// up.
func (w *Walker) step() {
	l := &w.stack[len(w.stack)-1]
	switch {
	case len(l.waiting) > 0:
		name := l.waiting[len(l.waiting)-1]
		l.waiting = l.waiting[:len(l.waiting)-1]
		w.enter(name)
	case !l.done:
		w.read(l)
	default:
		w.leave()
	}
}

// read counts entries of the present directory until some directories wait.
func (w *Walker) read(l *level) {
	room := ahead
	if len(w.stack) > keptOpen {
		room = 1 // or a deep tree of wide directories would fill the memory
	}
	if _, err := unix.Seek(w.fd, l.offset, unix.SEEK_SET); err != nil {
		l.done = true
		// ext4 forgets the order of a directory that was removed (EINVAL).
		if stErr := w.stat(w.fd, "", unix.AT_EMPTY_PATH); stErr != nil || w.st.Nlink > 0 {
			w.miss("seek in a directory", err)
		}
		return
	}
	n, err := unix.Getdents(w.fd, w.buf[:])
	if err != nil && err != unix.EINTR {
		l.done = true // also where the directory itself was removed
		w.miss("read a directory", err)
		return
	}
	l.done = err == nil && n <= 0
	for buf := w.buf[:max(n, 0)]; len(buf) > 0 && len(l.waiting) < room; {
		var name []byte
		var ok bool
		if name, l.offset, buf, ok = dirent(buf); !ok {
			w.over = errors.New("read a directory: malformed entry")
			return
		}
		if string(name) == "." || string(name) == ".." {
			continue
		}
		if w.look(l, name); w.over != nil {
			return
		}
	}
}

// look counts an entry. Of a file it allocates nothing, or collecting the garbage of
// a large walk would cost as much again as the walk.
func (w *Walker) look(l *level, name []byte) {
	if w.Only != nil && len(w.stack) == 1 && !w.Only(string(name)) {
		return
	}
	seen := w.seen.Add(1)
	if w.Pause != nil && seen%pauseEvery == 0 {
		w.Pause()
	}
	if seen > w.Most && w.Most > 0 {
		w.over = fmt.Errorf("more than %d entries", w.Most)
		return
	}
	if err := w.statEntry(name); err != nil {
		w.miss("look at an entry", err)
		return
	}
	if w.mountID() != w.mount {
		return // something is mounted over it
	}
	if w.st.Mode&unix.S_IFMT != unix.S_IFDIR {
		w.count()
		return
	}
	// It is counted when it is entered.
	l.waiting = append(l.waiting, string(name))
}

// enter goes down.
func (w *Walker) enter(name string) {
	if len(w.stack) >= deepest {
		w.miss("open a directory", fmt.Errorf("deeper than %d others", deepest))
		return
	}
	next := level{fd: -1, before: w.SoFar()}
	parent := &w.stack[len(w.stack)-1]
	if w.Each != nil && len(w.stack) <= w.Depth {
		path := filepath.Join(parent.path, name)
		if slices.Contains(w.Skip, path) {
			w.miss("enter "+path, errSkipped)
			return
		}
		next.path = path
		w.at.Store(&path) // opening it may hang
	}
	fd, err := openDir(w.fd, name)
	if err != nil {
		w.miss("open a directory", err)
		w.backAt()
		return
	}
	if err := w.stat(fd, "", unix.AT_EMPTY_PATH); err != nil || w.mountID() != w.mount {
		unix.Close(fd)
		w.miss("look at a directory", err)
		w.backAt()
		return
	}
	next.self = w.inode()
	w.count()
	if len(w.stack) <= keptOpen {
		parent.fd = w.fd
	} else {
		unix.Close(w.fd)
	}
	w.fd = fd
	w.stack = append(w.stack, next)
}

var errSkipped = errors.New("skipped")

// backAt has At return the present directory again.
func (w *Walker) backAt() {
	if depth := len(w.stack) - 1; w.Each != nil && depth <= w.Depth {
		path := w.stack[depth].path
		w.at.Store(&path)
	}
}

// tell calls Each for the directory at a depth, when the walk leaves it.
func (w *Walker) tell(depth int) {
	if w.Each == nil || depth > w.Depth {
		return
	}
	l := &w.stack[depth]
	u := w.SoFar()
	u.Bytes -= l.before.Bytes + l.told.Bytes
	u.Inodes -= l.before.Inodes + l.told.Inodes
	w.Each(l.path, depth, u)
	if depth > 0 {
		above := &w.stack[depth-1]
		above.told.Add(u)
		above.told.Add(l.told)
	}
}

// leave goes back up, making sure that it is where it came from.
func (w *Walker) leave() {
	w.tell(len(w.stack) - 1)
	w.stack = w.stack[:len(w.stack)-1]
	if len(w.stack) == 0 {
		return
	}
	w.backAt()
	l := &w.stack[len(w.stack)-1]
	if l.fd >= 0 {
		unix.Close(w.fd)
		w.fd, l.fd = l.fd, -1
		return
	}
	fd, err := openDir(w.fd, "..")
	if err == nil {
		if err = w.stat(fd, "", unix.AT_EMPTY_PATH); err == nil && (w.inode() != l.self || w.mountID() != w.mount) {
			err = ErrMoved
		}
		unix.Close(w.fd)
		w.fd = fd
	}
	if err != nil {
		w.over = fmt.Errorf("go back to a directory deep below: %w", err)
	}
}

// miss notes that something was left out, unless that has gone, or is no
// directory any more, or nothing is wrong at all.
func (w *Walker) miss(doing string, err error) {
	switch err {
	case nil, unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.EINTR:
		return
	}
	if w.missed == nil {
		w.missed = fmt.Errorf("%s: %w", doing, err)
	}
}

// count adds what was looked at last.
func (w *Walker) count() {
	u := Usage{Bytes: w.st.Blocks * 512, Inodes: 1}
	if w.st.Nlink > 1 && w.st.Mode&unix.S_IFMT != unix.S_IFDIR {
		self := w.inode()
		if _, known := w.links[self]; known {
			return
		}
		if len(w.links) < linksKept {
			w.links[self] = struct{}{}
		} else {
			// Rounded up, so that nothing becomes nothing.
			links := uint64(w.st.Nlink)
			u = Usage{Bytes: (u.Bytes + links - 1) / links, Inodes: 1}
		}
	}
	w.bytes.Add(u.Bytes)
	w.inodes.Add(u.Inodes)
}

// What stat asks for, and how: it does not make a network filesystem that is mounted
// there ask its server.
const (
	statMask  = unix.STATX_TYPE | unix.STATX_NLINK | unix.STATX_INO | unix.STATX_BLOCKS | unix.STATX_MNT_ID
	statFlags = unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
)

// stat looks at an entry.
func (w *Walker) stat(dir int, name string, flags int) error {
	for {
		if err := unix.Statx(dir, name, flags|statFlags, statMask, &w.st); err != unix.EINTR {
			return err
		}
	}
}

// statEntry is stat for a name of the present directory that [dirent] returned: not
// empty, and followed by a zero byte.
func (w *Walker) statEntry(name []byte) error {
	for {
		_, _, errno := unix.Syscall6(unix.SYS_STATX, uintptr(w.fd), uintptr(unsafe.Pointer(&name[0])), statFlags, statMask,
			uintptr(unsafe.Pointer(&w.st)), 0)
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
		default:
			return errno
		}
	}
}

// mountID tells one mount from another; before Linux 5.8 one device from another.
func (w *Walker) mountID() uint64 {
	if w.st.Mask&unix.STATX_MNT_ID == 0 {
		return 1<<63 | uint64(w.st.Dev_major)<<32 | uint64(w.st.Dev_minor)
	}
	return w.st.Mnt_id
}

func (w *Walker) inode() inode { return inode{w.st.Dev_major, w.st.Dev_minor, w.st.Ino} }

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
