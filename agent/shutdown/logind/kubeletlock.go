package logind

import (
	"context"
	"slices"
	"sync"
	"time"
)

// kubeletLock is whether a kubelet has an inhibitor lock, by logind's last list.
type kubeletLock struct {
	present bool
	known   bool  // false while a newer list is in flight, and after one that failed
	err     error // of the last list; present is then that of the previous list
	at      time.Time
	seen    bool // this process has read a list
}

// listFailed is the message for a list that could not be read.
const listFailed = "could not list logind's inhibitors; unknown whether a kubelet has one"

// lister searches logind's list of inhibitors for a kubelet's, on a goroutine of
// its own: every local user can make the list, and so the call, long, and neither
// evictd's lock nor the events of a shutdown may wait for it.
//
// A list of more than 32 MiB, such as 40 inhibitors of 1 MiB, closes logind's
// connection to the bus (dbus-daemon 1.14, max_message_size), hence listBackoff.
type lister struct {
	results chan kubeletLock // of one call at a time

	conn          *Conn
	isKubeletLock func(Inhibitor) bool
	ctx           context.Context
	cancel        context.CancelFunc
	calls         sync.WaitGroup
	inFlight      bool // a call is in flight, or its result was not received
	repeat        bool // another list was requested since that call
}

func newLister(ctx context.Context, c *Conn, isKubeletLock func(Inhibitor) bool) *lister {
	l := &lister{results: make(chan kubeletLock, 1), conn: c, isKubeletLock: isKubeletLock}
	l.ctx, l.cancel = context.WithCancel(ctx)
	return l
}

// listBackoff is how long after a failure no list is requested: the call itself may
// have ended logind, which systemd starts at most five times in 10 s.
const listBackoff = 10 * time.Minute

// list starts a list, unless the last one failed within listBackoff.
func (d *DelayLock) list(l *lister) {
	if d.kubeletLock.err != nil && time.Since(d.kubeletLock.at) < d.listBackoff {
		return
	}
	d.kubeletLock.known = false
	if l.repeat = l.inFlight; !l.inFlight {
		l.start()
	}
}

func (l *lister) start() {
	l.inFlight = true
	l.calls.Go(func() {
		list, err := l.conn.Inhibitors(l.ctx)
		l.results <- kubeletLock{
			present: slices.ContainsFunc(list, l.isKubeletLock), known: err == nil, err: err, at: time.Now(), seen: err == nil,
		}
	})
}

// close ends a call in flight.
func (l *lister) close() {
	l.cancel()
	l.calls.Wait()
}

// updateKubeletLock stores the result of l's call. After a failure the previous
// answer stays: a user who makes the list unreadable can neither make evictd leave
// a shutdown to a missing kubelet nor hide an existing one.
func (d *DelayLock) updateKubeletLock(k kubeletLock, l *lister) {
	l.inFlight = false
	if k.err != nil {
		k.present, k.seen = d.kubeletLock.present, d.kubeletLock.seen
		if d.kubeletLock.err == nil {
			d.log.Warn(listFailed, "last_seen", k.present, "error", k.err)
		}
	}
	d.kubeletLock = k
	if l.repeat {
		d.list(l)
	}
}

// isKubeletLock reports whether a lock is a kubelet's, by the user and the process
// that logind reports for it. The lock's own text proves nothing: polkit lets every
// user take a delay lock (login1.inhibit-delay-shutdown).
func (d *DelayLock) isKubeletLock(i Inhibitor) bool {
	return i.Who == KubeletWho && i.Mode == "delay" && i.UID == 0 && d.kubelet != nil && d.kubelet(int(i.PID))
}
