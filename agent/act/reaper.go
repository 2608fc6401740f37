package act

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Reaper does, on threads of its own, what a kill needs and may hang.
//
// It tears the memory of dying processes down besides the kernel, which matters
// where the processes get little CPU (process_mrelease(2), Linux 5.15). One whose
// memory map is held by a thread that hangs in the kernel keeps a thread for as
// long; then processes die as fast as they can by themselves.
//
// And it finishes a strike: it has the kernel kill whole cgroups, which waits while the
// tree of the cgroups is changed, or signals what the strike could not, which takes
// longer the more cgroups and processes there are.
type Reaper struct {
	processes, cgroups queue
	// Started is called on the thread that finishes strikes, to give it a priority: its
	// victims compete with it for the processor. It may be nil.
	Started func()

	spares  spares // of the thread that finishes strikes
	stopped atomic.Bool
	hung    atomic.Bool // a thread has not ended
}

// dying is a process of a Hold by its descriptor, or a container of one.
type dying struct {
	hold *Hold
	fd   int
	// Of a container: judged says that the strike has looked at all of its processes and
	// none is to be spared.
	member *member
	judged bool
}

// queue is what waits for a kind of thread.
type queue struct {
	waiting chan dying
	// bell is an eventfd, rung once for each: a thread that sleeps in the kernel
	// is woken by the kernel, and whoever has no time does not wait for Go's
	// scheduler.
	bell int
}

// The threads that tear processes down, and how many processes, and cgroups, may
// wait.
const reapers, mostDying = 2, 64

// NewReaper returns a Reaper that does nothing until it runs.
func NewReaper() (*Reaper, error) {
	r := &Reaper{processes: queue{bell: -1}, cgroups: queue{bell: -1}}
	for _, q := range []*queue{&r.processes, &r.cgroups} {
		bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_SEMAPHORE)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("make reaper: %w", os.NewSyscallError("eventfd2", err)), r.Close())
		}
		*q = queue{make(chan dying, mostDying), bell}
	}
	r.spares.fill()
	return r, nil
}

// lastReap is how long the end of Run waits for a thread that is reaping: one
// that hangs with its victim in the kernel must not keep evictd from ending.
const lastReap = time.Second

// Run reaps until ctx ends. It is called once.
func (r *Reaper) Run(ctx context.Context) {
	var threads sync.WaitGroup
	for range reapers {
		threads.Go(func() { r.serve(&r.processes, func(d dying) { release(d.fd) }) })
	}
	threads.Go(func() {
		if r.Started != nil {
			// It is never unlocked: a thread with a priority is not for others.
			runtime.LockOSThread()
			r.Started()
		}
		r.serve(&r.cgroups, r.end)
	})
	<-ctx.Done()
	r.stopped.Store(true)
	for range reapers {
		r.processes.ring()
	}
	r.cgroups.ring()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		threads.Wait()
	}()
	select {
	case <-ended:
	case <-time.After(lastReap):
		r.hung.Store(true)
	}
}

// serve is a thread that deals with what waits in a queue.
func (r *Reaper) serve(q *queue, deal func(dying)) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for q.wait() && !r.stopped.Load() {
		select {
		case d := <-q.waiting:
			deal(d)
			d.hold.release()
		default:
		}
	}
}

// Close gives the bells up, once nobody uses the Reaper any more. A thread that
// hangs may come back to them: then they stay open for the rest of evictd's life.
// Further calls do nothing.
func (r *Reaper) Close() error {
	if r.hung.Load() {
		return nil
	}
	errs := []error{r.spares.close()}
	for _, q := range []*queue{&r.processes, &r.cgroups} {
		if q.bell >= 0 {
			errs = append(errs, os.NewSyscallError("close", unix.Close(q.bell)))
			q.bell = -1
		}
	}
	return errors.Join(errs...)
}

// wait returns when the bell was rung; false says that it can't be.
func (q *queue) wait() bool {
	var count [8]byte
	for {
		if _, err := unix.Read(q.bell, count[:]); err != unix.EINTR {
			return err == nil
		}
	}
}

// ring wakes one thread. The bell can't be rung too often to be counted.
func (q *queue) ring() {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	_, _ = unix.Write(q.bell, one[:]) // it waits for nothing and can't fail
}

// put queues a descriptor of a Hold, if there is room, and keeps that open until
// it was dealt with. It waits for nobody and allocates nothing.
func (q *queue) put(d dying) bool {
	h := d.hold
	if !h.keep() {
		return false
	}
	select {
	case q.waiting <- d:
		q.ring()
		return true
	default:
		h.release()
		return false
	}
}

// add has a process torn down that was sent SIGKILL, if there is room.
func (r *Reaper) add(h *Hold, fd int) { r.processes.put(dying{hold: h, fd: fd}) }

// finish has the killing of a container finished; false says that it won't be.
func (r *Reaper) finish(h *Hold, m *member, judged bool) bool {
	return r.cgroups.put(dying{hold: h, member: m, judged: judged})
}

// end ends what a strike has begun. What goes wrong the Killer that follows finds out.
func (r *Reaper) end(d dying) {
	m := d.member
	if d.judged && m.kill >= 0 {
		killCgroup(m.kill)
		return
	}
	v := m.begun(d.hold)
	defer v.close()
	if exhausted(v.kill(d.hold.procfs)) {
		_ = r.spares.close()
		_ = v.kill(d.hold.procfs)
		r.spares.fill()
	}
	m.finished.Store(int64(len(v.signalled)))
}

var one = [...]byte{'1'}

// killCgroup writes cgroup.kill. A cgroup that has gone has nobody left; of any
// other error whoever follows the pod finds out.
func killCgroup(fd int) {
	for {
		if _, err := unix.Write(fd, one[:]); err != unix.EINTR {
			return
		}
	}
}

// release is process_mrelease(2), again while the map is contended.
func release(fd int) {
	for range reapTries {
		if _, _, errno := unix.Syscall(unix.SYS_PROCESS_MRELEASE, uintptr(fd), 0, 0); errno != unix.EAGAIN {
			return
		}
	}
}
