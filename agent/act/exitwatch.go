package act

import (
	"context"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel/process"
)

const (
	// maxWatched bounds the pidfds that are opened to wait for processes of a container.
	maxWatched = 64
	// maxEventLooks bounds how often exits have a container looked at. One that forks for ever
	// is then looked at by the timer only.
	maxEventLooks = 100
	// After the last exit the kernel may still count a process: on v1 nothing reports when it
	// no longer does. The container is looked at soonLooks times, each after soonDelay.
	soonLooks, soonDelay = 4, time.Millisecond
)

// exitWatch waits until a killed container should be looked at: after the exit of its
// processes and changes of its cgroup.events (v2), which an epoll instance reports, and else
// after an interval that doubles. The Go runtime polls the epoll instance, so no thread waits.
type exitWatch struct {
	interval time.Duration // until the next look without an event, up to drainPollMax
	next     time.Time     // of that look
	looks    int           // that events may still cause
	soon     int           // looks that follow the last exit

	epoll *os.File // nil: only the interval counts
	conn  syscall.RawConn
	// watched has the pids that were added, and their pidfds if they were opened for that.
	watched map[int]*process.Process
	opened  int  // number of these pidfds
	left    int  // number of processes that were added and have not exited
	exited  bool // one has
}

// groupToken is the token of cgroup.events. The others are pids.
const groupToken = 0

// newExitWatch returns a watch that waits for an interval, which doubles. It needs the caller
// to call close.
func newExitWatch(interval time.Duration) *exitWatch {
	w := &exitWatch{interval: interval, next: time.Now().Add(interval), looks: maxEventLooks, watched: map[int]*process.Process{}}
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return w // no descriptor is left
	}
	// Only then does the runtime poll it.
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return w
	}
	file := os.NewFile(uintptr(fd), "epoll")
	conn, err := file.SyscallConn()
	if err != nil || file.SetReadDeadline(time.Time{}) != nil {
		file.Close()
		return w
	}
	w.epoll, w.conn = file, conn
	return w
}

func (w *exitWatch) close() {
	for _, p := range w.watched {
		if p != nil {
			p.Close()
		}
	}
	if w.epoll != nil {
		w.epoll.Close()
	}
}

// add adds a descriptor. It stays its owner's, who closes it after the watch.
func (w *exitWatch) add(fd int, events uint32, token int) bool {
	added := false
	if w.epoll != nil {
		_ = w.conn.Control(func(epoll uintptr) {
			added = unix.EpollCtl(int(epoll), unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(token)}) == nil
		})
	}
	return added
}

// addProcess adds a pidfd, whose exit is reported once. opened is what the watch closes.
func (w *exitWatch) addProcess(pid, fd int, opened *process.Process) {
	if _, known := w.watched[pid]; known || !w.add(fd, unix.EPOLLIN|unix.EPOLLONESHOT, pid) {
		return
	}
	w.watched[pid] = opened
	w.left++
}

// watch adds the processes of a victim that are open, and opens those that are listed.
func (w *exitWatch) watch(v *victim) {
	if w.epoll == nil || w.looks == 0 {
		return
	}
	if _, known := w.watched[groupToken]; !known {
		w.watched[groupToken] = nil // also if there is no such file
		if fd := v.group.EventsFD(); fd >= 0 {
			w.add(fd, unix.EPOLLPRI|unix.EPOLLET, groupToken)
		}
	}
	for _, p := range v.exiting {
		w.addProcess(p.pid, p.fd, nil)
	}
	for _, p := range v.largest {
		_ = p.Use(func(fd int) error { w.addProcess(p.PID(), fd, nil); return nil })
	}
	for _, pid := range v.procs {
		if _, known := w.watched[pid]; known || w.opened == maxWatched {
			continue
		}
		// If the pid was reused, the exit of another process causes a look; no more.
		p, err := process.Open(pid)
		if err != nil {
			continue
		}
		_ = p.Use(func(fd int) error { w.addProcess(pid, fd, p); return nil })
		if w.watched[pid] == nil {
			p.Close()
			continue
		}
		w.opened++
	}
}

// wait returns nil when the container should be looked at, and the cause when ctx ends.
func (w *exitWatch) wait(ctx context.Context) error {
	until := w.next
	if w.soon > 0 {
		if soon := time.Now().Add(soonDelay); soon.Before(until) {
			until = soon
		}
		w.soon--
	}
	if !w.awaitEvent(ctx, until) && ctx.Err() == nil && !time.Now().Before(w.next) {
		w.interval = min(2*w.interval, drainPollMax)
		w.next = time.Now().Add(w.interval)
	}
	return context.Cause(ctx)
}

// awaitEvent waits for an event. It returns false at a time before, and when ctx ends.
func (w *exitWatch) awaitEvent(ctx context.Context, until time.Time) bool {
	if w.epoll == nil || w.looks == 0 {
		timer := time.NewTimer(time.Until(until))
		defer timer.Stop()
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		return false
	}
	if w.epoll.SetReadDeadline(until) != nil {
		return false
	}
	defer context.AfterFunc(ctx, func() { w.epoll.SetReadDeadline(time.Unix(1, 0)) })()
	look := false
	err := w.conn.Read(func(epoll uintptr) bool {
		look = w.read(int(epoll))
		return look
	})
	if err != nil || !look {
		return false
	}
	w.looks--
	return true
}

// read reads the events, and reports whether the container should be looked at: all watched
// processes have exited, or the first one, or the cgroup has changed.
func (w *exitWatch) read(epoll int) (look bool) {
	var events [maxWatched]unix.EpollEvent
	for {
		n, err := unix.EpollWait(epoll, events[:], 0)
		if err != nil {
			return look
		}
		for _, e := range events[:n] {
			if e.Fd == groupToken {
				look = true
			} else {
				look = w.noteExit(int(e.Fd)) || look
			}
		}
		if n < len(events) {
			return look
		}
	}
}

// noteExit notes the exit of a process, and reports whether it is the first or the last one.
func (w *exitWatch) noteExit(pid int) bool {
	if p := w.watched[pid]; p != nil {
		p.Close()
		w.watched[pid] = nil
		w.opened--
	}
	first := !w.exited
	w.exited = true
	w.left--
	if w.left == 0 {
		w.soon = soonLooks
	}
	return first || w.left == 0
}
