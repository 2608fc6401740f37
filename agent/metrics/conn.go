package metrics

import (
	"net"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// cpuShare is the share of one CPU that serving may use. cpuBurst is the CPU
	// time that it may use at once after idling: enough to check a TLS handshake and
	// a password without a wait.
	cpuShare = 0.05
	cpuBurst = 250 * time.Millisecond
	// minReadCost is the minimum charge for each read from a client. It limits the
	// rate of cheap requests, and with it the garbage that they create, which is
	// collected late while memory is short.
	minReadCost = time.Millisecond
)

// conn is a connection that is served on its own thread at ordinary priority. The
// thread's CPU time is charged to the listener's budget.
//
// net/http serves a connection on one goroutine, which reads, checks TLS and
// passwords and responds. The first read with data locks this goroutine to its
// thread, so that the thread's CPU time is that of the connection. The thread ends
// with the goroutine.
type conn struct {
	net.Conn
	listener *listener
	peer     string // see peerOf

	// Guarded by the listener's lock.
	changed time.Time // of active
	active  bool      // a request is in progress

	close  sync.Once
	closed chan struct{}

	// Used by the goroutine that reads. While a request is in progress this is a
	// second goroutine of net/http, which ends before the first continues.
	locked bool          // to a thread
	clock  int32         // CPU-time clock of the thread
	spent  time.Duration // reading of clock up to which the budget was charged
}

// Read reads, and then waits until the budget allows the CPU time that the
// connection has used.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n == 0 {
		return n, err
	}
	if !c.locked {
		c.locked = true
		c.lockThread()
	}
	wait := c.listener.budget.take(max(c.cost(), minReadCost).Seconds())
	if wait == 0 {
		return n, err
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return n, err
	case <-c.closed:
		return 0, net.ErrClosed
	}
}

// chargeRest charges the CPU time since the last read.
func (c *conn) chargeRest() {
	if c.locked {
		c.listener.budget.take(c.cost().Seconds())
	}
}

// Close closes the connection, which ends a wait of Read.
func (c *conn) Close() (err error) {
	c.close.Do(func() {
		close(c.closed)
		err = c.Conn.Close()
		c.listener.remove(c) // after Close, so that maxConnections is never exceeded
	})
	return err
}

// lockThread locks the calling goroutine to its thread until it ends, and sets the
// thread to ordinary priority. Go starts no thread from a locked one, so no other
// thread inherits the priority.
func (c *conn) lockThread() {
	runtime.LockOSThread()
	if err := c.listener.thread(); err != nil {
		c.listener.log.Debug("could not lower the priority of a metrics thread; it runs at evictd's priority", "error", err)
	}
	// kernel/time/posix-cpu-timers.c: CPUCLOCK_PERTHREAD | CPUCLOCK_SCHED of the tid
	c.clock = int32(^unix.Gettid()<<3 | 6)
	c.spent, _ = threadTime(c.clock)
}

// cost returns the CPU time that the thread has used since the last call.
func (c *conn) cost() time.Duration {
	now, err := threadTime(c.clock)
	if err != nil {
		return 0
	}
	cost := now - c.spent
	c.spent = now
	return cost
}

func threadTime(clock int32) (time.Duration, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(clock, &ts); err != nil {
		return 0, err
	}
	return time.Duration(ts.Nano()), nil
}
