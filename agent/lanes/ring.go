package lanes

import (
	"errors"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/bpf"
)

// ring is the queue of records that the BPF programs share. It is there as long
// as a lane uses it.
type ring struct {
	wait  Waiter
	users int
	ring  *bpf.Ring

	// Of the thread that waits.
	record bpf.Record

	gone    atomic.Bool               // a record said that the pods' cgroup is no more
	victims chan bpf.Victim           // of the kernel's OOM killer; what nobody takes is dropped
	raised  [signal.Marks]atomic.Bool // a crossing after which it was not armed anew
	broken  atomic.Pointer[error]     // the first error of reading
}

// Victim is a process that the kernel's OOM killer takes.
type Victim = bpf.Victim

// mostVictims is how many victims of the kernel may wait to be told.
const mostVictims = 64

// acquire opens the ring for a user, if it is the first.
func (r *ring) acquire() error {
	if r.users == 0 {
		opened, err := bpf.OpenRing()
		if err != nil {
			return err
		}
		r.ring = opened
		r.gone.Store(false)
		r.broken.Store(nil)
		if err := r.wait.Add(r); err != nil {
			return errors.Join(err, opened.Close())
		}
	}
	r.users++
	return nil
}

// release gives the ring up for a user, and closes it after the last.
func (r *ring) release() error {
	if r.users--; r.users > 0 {
		return nil
	}
	return errors.Join(r.wait.Remove(r), r.ring.Close())
}

// FD implements Source.
func (r *ring) FD() int { return r.ring.FD() }

// Events implements Source.
func (r *ring) Events() uint32 { return unix.EPOLLIN }

// Ready implements Source: it reads one record, and the descriptor stays ready
// while there are more.
func (r *ring) Ready(now time.Time) (Raise, bool) {
	ok, err := r.ring.Next(&r.record)
	if err != nil {
		kept := err // which would be on the heap each time, were it err itself
		r.broken.CompareAndSwap(nil, &kept)
		return Raise{}, false
	}
	if !ok {
		return Raise{}, false
	}
	switch r.record.Kind {
	case bpf.KindCrossing:
		return r.crossing(&r.record.Crossing, now)
	case bpf.KindGone:
		r.gone.Store(true)
	case bpf.KindVictim:
		select {
		case r.victims <- r.record.Victim:
		default:
		}
	}
	return Raise{}, false
}

// crossing makes an alarm of a record. Its key is the mark.
func (r *ring) crossing(c *bpf.Crossing, now time.Time) (Raise, bool) {
	raise := Raise{Lane: BPF, Seen: now, Answered: !c.Waiting}
	if c.Key < uint64(len(r.raised)) { // else it is of no mark that anybody has armed
		raise.Mark = signal.Mark(c.Key)
		r.raised[c.Key].Store(true)
	}
	if up, ok := bpf.Uptime(); ok {
		raise.Seen = now.Add(c.Seen - up)
		if c.LastAbove != 0 {
			raise.LastAbove = now.Add(c.LastAbove - up)
		}
	}
	return raise, true
}
