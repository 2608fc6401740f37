package logind

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// Who and what the lock is for, as systemd-inhibit --list shows it.
const (
	Who = "evictd"
	why = "evictd stops the pods in order"
	// KubeletWho is what a kubelet calls itself.
	KubeletWho = "kubelet"
)

const (
	// firstRetry and slowestRetry are the waits between attempts to reach
	// logind; the latter is also how often everything is looked at anew.
	firstRetry, slowestRetry = time.Second, 30 * time.Second
	// steady is how long a connection must last for the next attempt after it
	// to be as soon as a first one.
	steady = time.Minute
)

// Options are what a Guard is made of.
type Options struct {
	// Address is the system bus's; empty is DefaultAddress.
	Address string
	// Root is where the host's files are; empty is /.
	Root string
	Log  *slog.Logger
	// Keeper keeps the lock over a crash; nil is nobody. Kept is the descriptor
	// of the lock that it kept, which is the Guard's from then on; nil is none.
	Keeper Keeper
	Kept   *int
	// IsKubelet reports whether a process is a kubelet. Every user may take a
	// delay lock with the name of one. Nil says that none is.
	IsKubelet func(pid int) bool
}

// Keeper keeps one descriptor for the next run.
type Keeper interface {
	// Keep replaces what is kept. It must not wait.
	Keep(fd int) error
	// Forget closes it.
	Forget() error
}

type noKeeper struct{}

func (noKeeper) Keep(int) error { return nil }
func (noKeeper) Forget() error  { return nil }

// Event tells whether the node is about to go down, as logind says it.
type Event struct {
	Preparing bool
	// Locked tells that a lock is held, and Until when that holds the shutdown
	// up. One that was not heard of at once, as the bus was away, counts from
	// when the node was last known not to go down.
	Locked bool
	Until  time.Time
}

// Status is how a Guard fares.
type Status struct {
	// Connected tells that logind answers; Error is what went wrong last, empty
	// where nothing did.
	Connected bool
	Error     string
	// Locked tells that a lock is held. Needs is what was asked for.
	Locked bool
	Needs  time.Duration
	// Limit is for how long logind lets a shutdown be held up.
	Limit time.Duration
	// Preparing is as of Event.
	Preparing bool
	// Kubelet tells that a kubelet holds a lock of its own, by the last list of
	// locks that could be read. KubeletKnown is false while another is waited for
	// and where that can't be read.
	Kubelet, KubeletKnown bool
}

// Guard keeps a lock for as long as one is wanted. Its methods are safe for
// concurrent use.
type Guard struct {
	address string
	dropIn  dropIn
	keeper  Keeper
	kubelet func(pid int) bool
	log     *slog.Logger
	events  chan Event
	poke    chan struct{}
	status  atomic.Pointer[Status]

	mu sync.Mutex
	// needs is for how long a shutdown is to be held up, 0 for not at all; unasked
	// is not known yet, so that what there is stays as it is.
	needs time.Duration
	// done tells that the pods are gone, so that the lock is not wanted until
	// the shutdown is called off.
	done bool
	lock *Lock
	// forget tells that the Keeper is still to close what it keeps, forgetting that
	// a timer runs for that.
	forget, forgetting bool

	// Of Run's goroutine.
	preparing   bool
	calm        time.Time // when the node was last known not to go down
	kubeletLock kubeletLock
	unread      bool // logind is still to read what was written or removed
	told        string
	limitLogged string        // what is wrong with the limit or the drop-in, as it was logged
	retry       time.Duration // the first
	again       time.Duration // how often everything is looked at without a signal
	listBackoff time.Duration
	timeout     time.Duration // of calls
	patience    time.Duration // with logind's reading of its configuration
}

// NewGuard returns a Guard that wants no lock yet. It touches nothing before it
// runs.
func NewGuard(o Options) *Guard {
	if o.Address == "" {
		o.Address = DefaultAddress
	}
	if o.Root == "" {
		o.Root = "/"
	}
	g := &Guard{
		address: o.Address, dropIn: dropIn{root: o.Root}, kubelet: o.IsKubelet, log: o.Log,
		events: make(chan Event, 1), poke: make(chan struct{}, 1), needs: unasked, retry: firstRetry, again: slowestRetry, listBackoff: listBackoff, timeout: callTimeout, patience: longestReload,
		calm: time.Now().Add(-awayBetweenRuns),
	}
	if g.keeper = o.Keeper; g.keeper == nil {
		g.keeper = noKeeper{}
	}
	if o.Kept != nil {
		g.lock = newLock(*o.Kept)
		g.lock.inherited = true
	}
	g.status.Store(&Status{Error: "not asked yet"})
	return g
}

// Events brings what logind says, also where nothing has changed. Who is slow
// gets the newest only.
func (g *Guard) Events() <-chan Event { return g.events }

// Status returns how the Guard fares.
func (g *Guard) Status() Status { return *g.status.Load() }

const unasked = -1

// awayBetweenRuns is for how long nobody is taken to have listened when a run
// begins: after a crash the service manager starts evictd again within that. After
// a hang it takes until the watchdog has noticed, which can't be told.
const awayBetweenRuns = 3 * time.Second

// Want says for how long a shutdown is to be held up from now on; 0 is not at
// all, which gives up the lock and, unless a kubelet has one, removes the drop-in.
func (g *Guard) Want(needs time.Duration) {
	g.mu.Lock()
	changed := g.needs != needs
	g.needs = needs
	if needs == 0 {
		g.drop() // whether logind answers or not
	}
	g.mu.Unlock()
	if changed {
		g.wake()
	}
}

// Done gives the lock up, whether logind answers or not: the node may go down.
// Another is taken when the shutdown is called off.
func (g *Guard) Done() {
	g.mu.Lock()
	g.done = true
	g.drop()
	g.mu.Unlock()
	g.wake()
}

// drop gives the lock up, if there is one. The caller holds mu.
func (g *Guard) drop() {
	if g.lock == nil {
		return
	}
	g.lock.Close()
	g.lock = nil
	if err := g.keeper.Forget(); err != nil {
		g.log.Warn("the service manager still holds a shutdown up, telling it again", "error", err)
		if g.forget = true; !g.forgetting {
			g.forgetting = true
			time.AfterFunc(forgetAgain, func() { g.forgetLater(forgetAgain) })
		}
	}
}

// forgetAgain is how long after an attempt to have the Keeper close the lock the
// next one is made, since in a shutdown the service manager is busy; then twice
// that, and so on until slowestRetry.
const forgetAgain = 100 * time.Millisecond

// forgetLater has the Keeper close the lock, as soon as it can be told, unless
// it keeps another one by then.
func (g *Guard) forgetLater(wait time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.forget = g.forget && g.keeper.Forget() != nil; !g.forget {
		g.forgetting = false
		return
	}
	wait = min(2*wait, slowestRetry)
	time.AfterFunc(wait, func() { g.forgetLater(wait) })
}

// take replaces the lock, unless it has come to be unwanted meanwhile.
func (g *Guard) take(lock *Lock) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.done || g.needs <= 0 {
		lock.Close()
		return
	}
	g.drop()
	g.lock, g.forget = lock, false
	if err := g.keeper.Keep(lock.fd); err != nil {
		g.log.Warn("the lock on shutdowns would not survive a crash", "error", err)
	}
}

func (g *Guard) locked() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.lock != nil
}

func (g *Guard) wake() {
	select {
	case g.poke <- struct{}{}:
	default:
	}
}

// Run holds the lock until ctx ends, and then leaves nothing behind but the
// drop-in, while the node goes down, which it goes with, and while a kubelet
// counts on the limit. It returns nil.
func (g *Guard) Run(ctx context.Context) error {
	wait := g.retry
	for ctx.Err() == nil {
		began := time.Now()
		err := g.session(ctx)
		if ctx.Err() != nil {
			break
		}
		g.fail(err)
		if time.Since(began) >= steady {
			wait = g.retry
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		if wait = min(2*wait, slowestRetry); g.preparing || g.locked() {
			// Who holds a shutdown up must hear of it, and of its end.
			wait = min(wait, firstRetry)
		}
	}
	g.mu.Lock()
	if g.preparing && g.lock != nil {
		// The next run goes on with what the Keeper has; where there is no next
		// one, the service manager closes it.
		g.lock.Close()
		g.lock = nil
	}
	g.drop()
	g.mu.Unlock()
	if _, err := g.removeDropIn(); err != nil {
		g.log.Warn("logind's limit stays raised until the node is started again", "error", err)
	}
	return nil
}

// fail notes that logind can't be reached, and tells it once.
func (g *Guard) fail(err error) {
	s := g.Status()
	s.Connected, s.Error, s.Locked = false, err.Error(), g.locked()
	g.status.Store(&s)
	if s.Error != g.told {
		g.told = s.Error
		g.log.Warn("logind can't be reached, a shutdown of the node is not heard of; trying again", "error", err)
	}
}

// tell passes on what logind says. Of several that nobody has fetched yet, the
// newest counts.
func (g *Guard) tell() {
	e := Event{Preparing: g.preparing, Locked: g.locked()}
	if e.Locked {
		e.Until = g.calm.Add(g.Status().Limit)
	}
	for {
		select {
		case g.events <- e:
			return
		default:
		}
		select {
		case <-g.events:
		default:
		}
	}
}
