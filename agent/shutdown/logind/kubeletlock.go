package logind

import (
	"context"
	"slices"
	"sync"
	"time"
)

// kubeletLock is whether a kubelet has an inhibitor, as logind's list said last.
type kubeletLock struct {
	held  bool
	known bool  // nothing has happened since the list was asked for; else held is of before
	err   error // of the last list: held is then that of the one before
	at    time.Time
	seen  bool // a list could be read since this process has begun
}

// listFailed begins what is said of a list that could not be read.
const listFailed = "could not list logind's inhibitors, so whether a kubelet has one is not known"

// lister looks in logind's list of inhibitors for a kubelet's, in a goroutine of
// its own: how long the list is, and so how long a call takes, is up to every local
// user, and neither evictd's own lock nor the news of a shutdown may wait for it.
//
// A list of more than 32 MiB costs logind its connection to the bus (dbus-daemon
// 1.14, max_message_size; seen with 40 inhibitors of 1 MiB), hence listBackoff.
type lister struct {
	results chan kubeletLock // of one call at a time

	conn      *Conn
	ofKubelet func(Inhibitor) bool
	ctx       context.Context
	cancel    context.CancelFunc
	calls     sync.WaitGroup
	busy      bool // a call is under way, or its result was not fetched
	again     bool // something has happened since that call
}

func newLister(ctx context.Context, c *Conn, ofKubelet func(Inhibitor) bool) *lister {
	l := &lister{results: make(chan kubeletLock, 1), conn: c, ofKubelet: ofKubelet}
	l.ctx, l.cancel = context.WithCancel(ctx)
	return l
}

// listBackoff is how long after a failure the list is not asked for: the call itself
// may be what ends logind, which systemd starts no more than five times in 10 s.
const listBackoff = 10 * time.Minute

// list has l look in the list, unless the last one failed within listBackoff.
func (g *Guard) list(l *lister) {
	if g.kubeletLock.err != nil && time.Since(g.kubeletLock.at) < g.listBackoff {
		return
	}
	g.kubeletLock.known = false
	if l.again = l.busy; !l.busy {
		l.start()
	}
}

func (l *lister) start() {
	l.busy = true
	l.calls.Go(func() {
		list, err := l.conn.Inhibitors(l.ctx)
		l.results <- kubeletLock{
			held: slices.ContainsFunc(list, l.ofKubelet), known: err == nil, err: err, at: time.Now(), seen: err == nil,
		}
	})
}

// close ends a call that is under way.
func (l *lister) close() {
	l.cancel()
	l.calls.Wait()
}

// updateKubeletLock takes over the result of l's call. After a failure the answer
// stays what it was: a user who makes the list unreadable can neither have a
// shutdown left to a kubelet that is not there nor hide one that was seen.
func (g *Guard) updateKubeletLock(k kubeletLock, l *lister) {
	l.busy = false
	if k.err != nil {
		k.held, k.seen = g.kubeletLock.held, g.kubeletLock.seen
		if g.kubeletLock.err == nil {
			g.log.Warn(listFailed, "last_seen", k.held, "error", k.err)
		}
	}
	g.kubeletLock = k
	if l.again {
		g.list(l)
	}
}

// ofKubelet reports whether a lock is a kubelet's, by the user and the process
// that logind knows it of. What the lock says of itself proves nothing: polkit
// lets every user take a delay lock (login1.inhibit-delay-shutdown).
func (g *Guard) ofKubelet(i Inhibitor) bool {
	return i.Who == KubeletWho && i.Mode == "delay" && i.UID == 0 && g.kubelet != nil && g.kubelet(int(i.PID))
}
