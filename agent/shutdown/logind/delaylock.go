package logind

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// Who and why of the lock, as systemd-inhibit --list shows them.
const (
	Who = "evictd"
	why = "evictd stops the pods in order of priority"
	// KubeletWho is the who of a kubelet's lock.
	KubeletWho = "kubelet"
)

const (
	// connectBackoff and maxConnectBackoff bound the wait between attempts to
	// connect to logind. maxConnectBackoff is also the interval of polls, in case a
	// signal was lost.
	connectBackoff, maxConnectBackoff = time.Second, 30 * time.Second
)

// Options are the options of NewDelayLock.
type Options struct {
	// Address is that of the system bus; empty is DefaultAddress.
	Address string
	// Root is where the host's root is mounted; empty is /.
	Root string
	Log  *slog.Logger
	// FDStore stores the lock across a crash; nil for none. StoredLock is the
	// descriptor of the lock that it stored for this run, which the DelayLock then
	// owns; nil for none.
	FDStore    FDStore
	StoredLock *int
	// IsKubelet reports whether a process is a kubelet: every user may take a delay
	// lock with a kubelet's name. Nil means that no process is.
	IsKubelet func(pid int) bool
}

// FDStore stores one descriptor for the next run.
type FDStore interface {
	// Store replaces the stored descriptor. It must not block.
	Store(fd int) error
	// Remove closes the stored descriptor.
	Remove() error
}

type noFDStore struct{}

func (noFDStore) Store(int) error { return nil }
func (noFDStore) Remove() error   { return nil }

// Event is the state of a shutdown as logind reports it.
type Event struct {
	Preparing bool
	// Inhibited reports that the DelayLock has a lock. Until is then when logind no
	// longer waits for it. If the beginning was not received as a signal, for example
	// because the bus was down, logind's limit counts from the last time at which no
	// shutdown was in progress.
	Inhibited bool
	Until     time.Time
}

// Status is the status of a DelayLock.
type Status struct {
	// Connected reports that logind answers. Error is the last error, empty for
	// none.
	Connected bool
	Error     string
	// Inhibited reports that the DelayLock has a lock. Needs is the requested delay.
	Inhibited bool
	Needs     time.Duration
	// Limit is logind's limit for a delay.
	Limit time.Duration
	// Preparing is PreparingForShutdown of logind.
	Preparing bool
	// Kubelet reports that a kubelet has a lock, by the last list of locks that
	// could be read. KubeletKnown is false while a newer list is pending or
	// unreadable.
	Kubelet, KubeletKnown bool
}

// DelayLock has a delay lock while one is wanted. Its methods are safe for concurrent
// use.
type DelayLock struct {
	address string
	dropIn  dropIn
	fdStore FDStore
	kubelet func(pid int) bool
	log     *slog.Logger
	events  chan Event
	changed chan struct{}
	status  atomic.Pointer[Status]

	mu sync.Mutex
	// needs is the wanted delay, 0 for no lock. needsUnknown leaves an existing
	// lock as it is.
	needs time.Duration
	// done reports that the pods are gone: no lock is wanted until the shutdown is
	// canceled.
	done bool
	lock *Lock
	// removalPending reports that the FDStore has not closed its descriptor yet, and
	// removalTimer that a timer is set to retry that.
	removalPending, removalTimer bool

	// Used by Run's goroutine only.
	preparing        bool
	lastNotPreparing time.Time // when no shutdown was last known to be in progress
	kubeletLock      kubeletLock
	reloadPending    bool // logind has not read the changed drop-in yet
	loggedError      string
	limitLogged      string        // the last logged problem of the limit or the drop-in
	backoff          time.Duration // after the first failed connection
	pollInterval     time.Duration // of polls without a signal
	listBackoff      time.Duration
	timeout          time.Duration // of calls
	reloadTimeout    time.Duration // for logind to read its configuration
}

// NewDelayLock returns a DelayLock that wants no lock. It does nothing before Run.
func NewDelayLock(o Options) *DelayLock {
	if o.Address == "" {
		o.Address = DefaultAddress
	}
	if o.Root == "" {
		o.Root = "/"
	}
	d := &DelayLock{
		address: o.Address, dropIn: dropIn{root: o.Root}, kubelet: o.IsKubelet, log: o.Log,
		events: make(chan Event, 1), changed: make(chan struct{}, 1), needs: needsUnknown, backoff: connectBackoff, pollInterval: maxConnectBackoff, listBackoff: listBackoff, timeout: callTimeout, reloadTimeout: maxReloadWait,
		lastNotPreparing: time.Now().Add(-restartGap),
	}
	if d.fdStore = o.FDStore; d.fdStore == nil {
		d.fdStore = noFDStore{}
	}
	if o.StoredLock != nil {
		d.lock = newLock(*o.StoredLock)
		d.lock.inherited = true
	}
	d.status.Store(&Status{Error: "not connected yet"})
	return d
}

// Events returns the channel of events. An event is also sent if nothing has
// changed. A slow receiver gets only the latest.
func (d *DelayLock) Events() <-chan Event { return d.events }

// Status returns the current status.
func (d *DelayLock) Status() Status { return *d.status.Load() }

const needsUnknown = -1

// restartGap is the assumed time without a listener before a run: after a crash the
// service manager restarts evictd within it. After a hang the watchdog's timeout
// comes on top, which is unknown here.
const restartGap = 3 * time.Second

// SetDelay sets the wanted delay of a shutdown. 0 releases the lock and, unless a
// kubelet has one, removes the drop-in.
func (d *DelayLock) SetDelay(needs time.Duration) {
	d.mu.Lock()
	changed := d.needs != needs
	d.needs = needs
	if needs == 0 {
		d.releaseLock() // does not depend on logind
	}
	d.mu.Unlock()
	if changed {
		d.notify()
	}
}

// Release releases the lock, whether logind answers or not: the node may shut down.
// Another lock is taken if the shutdown is canceled.
func (d *DelayLock) Release() {
	d.mu.Lock()
	d.done = true
	d.releaseLock()
	d.mu.Unlock()
	d.notify()
}

// releaseLock releases the lock, if there is one. mu must be locked.
func (d *DelayLock) releaseLock() {
	if d.lock == nil {
		return
	}
	d.lock.Close()
	d.lock = nil
	if err := d.fdStore.Remove(); err != nil {
		d.log.Warn("could not remove the lock from the service manager; it still delays a shutdown; retrying", "error", err)
		if d.removalPending = true; !d.removalTimer {
			d.removalTimer = true
			time.AfterFunc(removalBackoff, func() { d.retryRemoval(removalBackoff) })
		}
	}
}

// removalBackoff is the first wait before another attempt to make the FDStore close
// the lock, doubling up to maxConnectBackoff. It is short, because the service
// manager is only busy for a moment during a shutdown.
const removalBackoff = 100 * time.Millisecond

// retryRemoval makes the FDStore close the lock, with retries, unless it stores
// another lock by then.
func (d *DelayLock) retryRemoval(wait time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.removalPending = d.removalPending && d.fdStore.Remove() != nil; !d.removalPending {
		d.removalTimer = false
		return
	}
	wait = min(2*wait, maxConnectBackoff)
	time.AfterFunc(wait, func() { d.retryRemoval(wait) })
}

// setLock replaces the lock, or closes it if none is wanted any more.
func (d *DelayLock) setLock(lock *Lock) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.done || d.needs <= 0 {
		lock.Close()
		return
	}
	d.releaseLock()
	d.lock, d.removalPending = lock, false
	if err := d.fdStore.Store(lock.fd); err != nil {
		d.log.Warn("could not store the shutdown lock with the service manager; it would not survive a crash", "error", err)
	}
}

func (d *DelayLock) locked() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lock != nil
}

func (d *DelayLock) notify() {
	select {
	case d.changed <- struct{}{}:
	default:
	}
}

// Run maintains the lock until ctx ends. Then it releases the lock and removes the
// drop-in. During a shutdown it keeps the drop-in, which ends with the boot, and it
// also keeps it if a kubelet relies on the limit. It returns nil.
func (d *DelayLock) Run(ctx context.Context) error {
	wait := d.backoff
	for ctx.Err() == nil {
		began := time.Now()
		err := d.session(ctx)
		if ctx.Err() != nil {
			break
		}
		d.connectionFailed(err)
		if time.Since(began) >= 2*maxConnectBackoff { // it was a stable connection
			wait = d.backoff
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		if wait = min(2*wait, maxConnectBackoff); d.preparing || d.locked() {
			// With a lock in use, the events of the shutdown must be received soon.
			wait = min(wait, connectBackoff)
		}
	}
	d.mu.Lock()
	if d.preparing && d.lock != nil {
		// The next run continues with the FDStore's lock. Without a next run, the
		// service manager closes it.
		d.lock.Close()
		d.lock = nil
	}
	d.releaseLock()
	d.mu.Unlock()
	if _, err := d.removeDropIn(); err != nil {
		d.log.Warn("could not remove the drop-in; logind's limit stays raised until the next boot", "error", err)
	}
	return nil
}

// connectionFailed records that logind can't be reached, and logs it once.
func (d *DelayLock) connectionFailed(err error) {
	s := d.Status()
	s.Connected, s.Error, s.Inhibited = false, err.Error(), d.locked()
	d.status.Store(&s)
	if s.Error != d.loggedError {
		d.loggedError = s.Error
		d.log.Warn("could not reach logind; a shutdown of the node would not be noticed; retrying", "error", err)
	}
}

// sendEvent sends the current state as an event, and replaces one that was not
// received.
func (d *DelayLock) sendEvent() {
	e := Event{Preparing: d.preparing, Inhibited: d.locked()}
	if e.Inhibited {
		e.Until = d.lastNotPreparing.Add(d.Status().Limit)
	}
	for {
		select {
		case d.events <- e:
			return
		default:
		}
		select {
		case <-d.events:
		default:
		}
	}
}
