package lanes

import (
	"errors"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/bpf"
)

// ring is the BPF ring buffer that the programs of several lanes share. It is open while a
// lane uses it.
type ring struct {
	wait  Waiter
	users int
	ring  *bpf.Ring

	// Used by the waiting thread only.
	record bpf.Record

	podsRemoved atomic.Bool                          // a record said that the cgroup of the pods was removed
	victims     chan bpf.Victim                      // of the kernel's OOM killer; dropped while the channel is full
	raised      [signal.ThresholdIDCount]atomic.Bool // raised an alarm and not armed again since, by threshold
	readErr     atomic.Pointer[error]                // first error of reading
}

// OOMVictim is a process that the kernel's OOM killer kills.
type OOMVictim = bpf.Victim

// maxQueuedVictims is how many victims of the OOM killer are queued for [Set.OOMVictims].
const maxQueuedVictims = 64

// acquire opens the ring for its first user.
func (r *ring) acquire() error {
	if r.users == 0 {
		opened, err := bpf.OpenRing()
		if err != nil {
			return err
		}
		r.ring = opened
		r.podsRemoved.Store(false)
		r.readErr.Store(nil)
		if err := r.wait.Add(r); err != nil {
			return errors.Join(err, opened.Close())
		}
	}
	r.users++
	return nil
}

// release closes the ring after its last user.
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

// Ready implements Source. It reads one record; the descriptor stays ready while there are
// more.
func (r *ring) Ready(now time.Time) (Alarm, bool) {
	ok, err := r.ring.Next(&r.record)
	if err != nil {
		first := err // with &err instead, each call would allocate
		r.readErr.CompareAndSwap(nil, &first)
		return Alarm{}, false
	}
	if !ok {
		return Alarm{}, false
	}
	switch r.record.Kind {
	case bpf.KindCrossing:
		return r.alarm(&r.record.Crossing, now)
	case bpf.KindPodsRemoved:
		r.podsRemoved.Store(true)
	case bpf.KindVictim:
		select {
		case r.victims <- r.record.Victim:
		default:
		}
	}
	return Alarm{}, false
}

// alarm converts a record of a crossing. Its key is the threshold.
func (r *ring) alarm(c *bpf.Crossing, now time.Time) (Alarm, bool) {
	alarm := Alarm{Lane: BPF, Seen: now, ActNow: !c.Waiting}
	if c.Key < uint64(len(r.raised)) { // any other key is of no armed threshold
		alarm.Threshold = signal.ThresholdID(c.Key)
		r.raised[c.Key].Store(true)
	}
	if clock, ok := bpf.MonotonicTime(); ok {
		alarm.Seen = now.Add(c.Seen - clock)
		if c.LastAbove != 0 {
			alarm.LastAbove = now.Add(c.LastAbove - clock)
		}
	}
	return alarm, true
}
