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

// Role is what a filesystem is to the node.
type Role uint8

// The roles.
const (
	Node      Role = iota // the kubelet's directory, emptyDirs, logs
	Image                 // the runtime's images
	Container             // writable layers
	roles
)

func (r Role) String() string { return [roles]string{"nodefs", "imagefs", "containerfs"}[r] }

// signals of a role: bytes, then inodes.
func (r Role) signals() (bytes, inodes signal.Signal) {
	return [roles]signal.Signal{signal.NodeFsAvailable, signal.ImageFsAvailable, signal.ContainerFsAvailable}[r],
		[roles]signal.Signal{signal.NodeFsInodesFree, signal.ImageFsInodesFree, signal.ContainerFsInodesFree}[r]
}

// Runtime is asked where its filesystems are.
type Runtime interface {
	ImageFsInfo(ctx context.Context) (cri.ImageFs, error)
}

// Options are what a Watch is made of.
type Options struct {
	Procfs kernel.FS
	// Rootfs is where the host's root is mounted; empty is "/".
	Rootfs string
	// NodePath is a directory on nodefs, as the host sees it; empty is
	// [KubeletDir] where there is one, else "/".
	NodePath string
	// Runtime is nil where there is none: then there is no imagefs.
	Runtime Runtime
	Log     *slog.Logger
}

// KubeletDir is where a kubelet keeps its pods.
const KubeletDir = "/var/lib/kubelet"

const (
	// patience is how long a filesystem may take to answer.
	patience = time.Second
	// askEvery is how often the runtime is asked while nothing hints at a change,
	// and askAgain where it did not answer.
	askEvery, askAgain = 10 * time.Second, time.Second
)

// Watch watches the filesystems. Its methods are safe for concurrent use and
// answer at once, but for Run.
type Watch struct {
	o       Options
	crossed chan struct{}
	poke    [roles]chan struct{}
	syncing [roles]errand[struct{}]
	// read and locate are the kernel's, but in tests.
	read   func(path string) (disk.Space, error)
	locate func(path string) (disk.Mount, error)

	mu     sync.Mutex
	places [roles]place
	layout evict.Layout
	marks  [signal.Count][]signal.Threshold
}

// place is a filesystem in its role.
type place struct {
	path    string // a directory on it, as this process sees it; "" is not known
	pathErr error  // why that is not known, or not known to hold still
	mount   disk.Mount
	located bool // mount is known
	sought  bool // or was asked for, and not told

	space  disk.Space
	at     time.Time     // of the last reading that succeeded; zero for none
	err    error         // of the last reading
	synced time.Time     // when that was begun last
	period time.Duration // until the next one
}

var errNotAsked = errors.New("the container runtime has not told yet where it is")

// New returns a watch that has seen nothing yet.
func New(o Options) *Watch {
	if o.Rootfs == "" {
		o.Rootfs = "/"
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	w := &Watch{o: o, crossed: make(chan struct{}, 1), read: disk.ReadSpace}
	w.locate = func(path string) (disk.Mount, error) { return disk.Locate(o.Procfs, path) }
	for r := range w.places {
		w.poke[r] = make(chan struct{}, 1)
		w.syncing[r].what = "syncfs of " + Role(r).String()
		w.places[r].pathErr = errNotAsked
	}
	return w
}

// Crossed is signalled when a filesystem crosses a threshold, in either
// direction, and when the layout changes.
func (w *Watch) Crossed() <-chan struct{} { return w.crossed }

// Arm tells which thresholds to look out for.
func (w *Watch) Arm(p *evict.Policy) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.marks = [signal.Count][]signal.Threshold{}
	for _, t := range p.Thresholds {
		if t.Signal.IsDisk() {
			w.marks[t.Signal] = append(w.marks[t.Signal], t.Threshold)
		}
	}
	w.Refresh()
}

// Refresh has the filesystems read at once.
func (w *Watch) Refresh() {
	for r := range w.poke {
		tell(w.poke[r])
	}
}

// syncEvery is how often a filesystem is asked to free what was removed.
const syncEvery = 500 * time.Millisecond

// Freeing has a signal's filesystem read at once, and free what was removed if it
// is one that takes its time (btrfs).
func (w *Watch) Freeing(s signal.Signal) {
	for r := range roles {
		if bytes, inodes := r.signals(); s != bytes && s != inodes {
			continue
		}
		w.mu.Lock()
		p := &w.places[r]
		path, due := p.path, p.located && p.mount.Type == "btrfs" && time.Since(p.synced) >= syncEvery
		if due {
			p.synced = time.Now()
		}
		w.mu.Unlock()
		if due {
			go func() {
				// It is an errand of its own: while one is open, none is asked.
				if _, err := w.syncing[r].ask(patience, func() (struct{}, error) { return struct{}{}, disk.Sync(path) }); err != nil {
					w.o.Log.Debug("filesystem not synced", "path", path, "error", err)
				}
				tell(w.poke[r])
			}()
		}
	}
	w.Refresh()
}

// tell signals without waiting.
func tell(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run watches until ctx ends. A question that hangs does not keep it from
// returning.
func (w *Watch) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	changed := make(chan struct{}, 1)
	notice, err := disk.OpenNotice(w.o.Procfs)
	if err != nil {
		// They are looked for again now and then in any case.
		w.o.Log.Warn("changed mounts are not told", "error", err)
	} else {
		context.AfterFunc(ctx, func() { notice.Close() })
		running.Go(func() { w.listen(notice, changed) })
	}
	for r := range roles {
		if w.applies(r) {
			running.Go(func() { w.observe(ctx, r) })
		}
	}
	w.find(ctx, changed)
	return nil
}

// applies reports whether the node has such a filesystem.
func (w *Watch) applies(r Role) bool { return r == Node || w.o.Runtime != nil }

// listen passes changes of mounts on, many at once as one.
func (w *Watch) listen(notice *disk.Notice, changed chan<- struct{}) {
	for {
		told, err := notice.Wait(epoll.Forever)
		switch {
		case errors.Is(err, os.ErrClosed):
			return
		case err != nil:
			w.o.Log.Warn("changed mounts are not told any more", "error", err)
			return
		case told:
			tell(changed)
		}
	}
}
