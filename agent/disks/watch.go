package disks

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/cri"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/disk"
	"github.com/evictd/evictd/kernel/epoll"
)

// Role is the role of a filesystem on the node.
type Role uint8

// The roles.
const (
	Node      Role = iota // the kubelet's directory, emptyDirs, logs
	Image                 // the runtime's images
	Container             // writable layers
	roles
)

func (r Role) String() string { return [roles]string{"nodefs", "imagefs", "containerfs"}[r] }

// signals returns the signals of a role.
func (r Role) signals() (bytes, inodes signal.Signal) {
	return [roles]signal.Signal{signal.NodeFsAvailable, signal.ImageFsAvailable, signal.ContainerFsAvailable}[r],
		[roles]signal.Signal{signal.NodeFsInodesFree, signal.ImageFsInodesFree, signal.ContainerFsInodesFree}[r]
}

// Runtime reports the paths of the runtime's filesystems.
type Runtime interface {
	ImageFsInfo(ctx context.Context) (cri.ImageFs, error)
}

// Options are the options of New.
type Options struct {
	Procfs kernel.FS
	// Rootfs is where the host's root is mounted; empty is "/".
	Rootfs string
	// NodePath is a directory on nodefs, as the host sees it; empty is [KubeletDir]
	// if it exists, else "/".
	NodePath string
	// Runtime is nil if there is none: then there is no imagefs.
	Runtime Runtime
	Log     *slog.Logger
}

// KubeletDir is the kubelet's root directory.
const KubeletDir = "/var/lib/kubelet"

const (
	// callTimeout is after how long a call on a filesystem counts as hanging.
	// statfs of a local filesystem reads counters in memory, so 1 s is far more
	// than it needs under load.
	callTimeout = time.Second
	// queryRetry is the interval after an error, and the shortest interval, at which the
	// filesystems are located and the runtime is asked for the sizes of writable layers.
	// Otherwise it is signal.KubeletInterval.
	queryRetry = time.Second
)

// Watch watches the filesystems. Its methods are safe for concurrent use and,
// except Run and NodePath, do not block.
type Watch struct {
	o        Options
	crossed  chan struct{}
	wakeRole [roles]chan struct{}
	syncing  [roles]singleCall[struct{}]
	// read and locate are replaced in tests.
	read   func(path string) (disk.Space, error)
	locate func(path string) (disk.Mount, error)

	mu          sync.Mutex
	filesystems [roles]filesystem
	layout      evict.Layout
	thresholds  [signal.Count][]signal.Threshold
}

// filesystem is the state of a filesystem in its role.
type filesystem struct {
	path        string // a directory on it, as this process sees it; "" if not known
	pathErr     error  // why path is not known or may be outdated
	mount       disk.Mount
	located     bool // mount is set
	locateTried bool // the first attempt to locate it has ended

	space  disk.Space
	at     time.Time     // of the last successful reading; zero for none
	err    error         // of the last reading
	synced time.Time     // when the last syncfs began
	period time.Duration // until the next reading
}

var errNotQueried = errors.New("path not known: the container runtime was not queried yet")

// New returns a watch without readings.
func New(o Options) *Watch {
	if o.Rootfs == "" {
		o.Rootfs = "/"
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	w := &Watch{o: o, crossed: make(chan struct{}, 1), read: disk.ReadSpace}
	w.locate = func(path string) (disk.Mount, error) { return disk.Locate(o.Procfs, path) }
	for r := range w.filesystems {
		w.wakeRole[r] = make(chan struct{}, 1)
		w.syncing[r].what = "syncfs of " + Role(r).String()
		w.filesystems[r].pathErr = errNotQueried
	}
	return w
}

// Crossed is signalled when a filesystem crosses a threshold, in either direction,
// and when the layout changes.
func (w *Watch) Crossed() <-chan struct{} { return w.crossed }

// SetPolicy sets the thresholds, and requests a reading of the filesystems.
func (w *Watch) SetPolicy(p *evict.Policy) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.thresholds = [signal.Count][]signal.Threshold{}
	for _, t := range p.Thresholds {
		if t.Signal.IsDisk() {
			w.thresholds[t.Signal] = append(w.thresholds[t.Signal], t.Threshold)
		}
	}
	w.Refresh()
}

// Refresh requests a reading of all filesystems. It does not wait for it.
func (w *Watch) Refresh() {
	for r := range w.wakeRole {
		notify(w.wakeRole[r])
	}
}

// syncInterval is the shortest interval between two syncs of a filesystem: each
// commits a transaction.
const syncInterval = 500 * time.Millisecond

// SyncFreed commits pending deletions on the filesystem of a signal, and requests a new
// reading of all filesystems. It does not wait for either. Only btrfs needs the
// commit: it frees removed files with its next transaction. Another reading of it
// follows when the commit has ended.
func (w *Watch) SyncFreed(s signal.Signal) {
	for r := range roles {
		if bytes, inodes := r.signals(); s != bytes && s != inodes {
			continue
		}
		w.mu.Lock()
		f := &w.filesystems[r]
		path, due := f.path, f.located && f.mount.Type == "btrfs" && time.Since(f.synced) >= syncInterval
		if due {
			f.synced = time.Now()
		}
		w.mu.Unlock()
		if due {
			go func() {
				// While a sync is in flight, call starts no other.
				if _, err := w.syncing[r].call(callTimeout, func() (struct{}, error) { return struct{}{}, disk.Sync(path) }); err != nil {
					w.o.Log.Debug("could not sync filesystem", "path", path, "error", err)
				}
				notify(w.wakeRole[r])
			}()
		}
	}
	w.Refresh()
}

// notify signals c without waiting.
func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run watches until ctx ends. It returns even if a call hangs.
func (w *Watch) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	changed := make(chan struct{}, 1)
	notice, err := disk.WatchMounts(w.o.Procfs)
	if err != nil {
		// The filesystems are also located at intervals.
		w.o.Log.Warn("could not watch for changed mounts; filesystems are located at intervals only", "error", err)
	} else {
		context.AfterFunc(ctx, func() { notice.Close() })
		running.Go(func() { w.listen(notice, changed) })
	}
	for r := range roles {
		if w.applies(r) {
			running.Go(func() { w.observe(ctx, r) })
		}
	}
	w.locateAll(ctx, changed)
	return nil
}

// applies reports whether the node has a filesystem in that role.
func (w *Watch) applies(r Role) bool { return r == Node || w.o.Runtime != nil }

// listen forwards changes of mounts; several become one.
func (w *Watch) listen(notice *disk.MountWatcher, changed chan<- struct{}) {
	for {
		notified, err := notice.Wait(epoll.Forever)
		switch {
		case errors.Is(err, os.ErrClosed):
			return
		case err != nil:
			w.o.Log.Warn("watch for changed mounts ended; filesystems are located at intervals only", "error", err)
			return
		case notified:
			notify(changed)
		}
	}
}
