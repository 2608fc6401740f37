package metrics

import (
	"net"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// cpuShare is how much of one processor serving may take, and cpuBurst how
	// much processor time it may take at once after a rest: a TLS handshake and a
	// password are checked without a wait.
	cpuShare = 0.05
	cpuBurst = 250 * time.Millisecond
	// leastCost is what each read from a client costs at least. It bounds the
	// requests per second where they are cheap, and with them the garbage that
	// they leave: while memory is short it is collected late.
	leastCost = time.Millisecond
)

// conn is a connection whose work is done on a thread of its own, which has
// ordinary priority, and is paid for from the listener's budget.
//
// net/http serves a connection on one goroutine, which reads, checks TLS and
// passwords and answers. With the first bytes from the client this goroutine is
// locked to its thread, so that the kernel accounts to that thread what the
// connection costs. The thread ends with the goroutine.
type conn struct {
	net.Conn
	listener *listener
	peer     string // whom it counts for

	// Of the listener, under its lock.
	changed   time.Time // when net/http last began or ended something
	answering bool

	close  sync.Once
	closed chan struct{}

	// Of the goroutine that reads. net/http has a second one, which reads while
	// a request is answered, and waits for its end before it goes on.
	paying bool
	clock  int32 // the thread's
	spent  time.Duration
}

// Read reads, and waits until what the connection has cost so far can be
// afforded.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n == 0 {
		return n, err
	}
	if !c.paying {
		c.paying = true
		c.takeThread()
	}
	wait := c.listener.budget.take(max(c.cost(), leastCost).Seconds())
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

// settle pays for what the connection has cost since it was read from last.
func (c *conn) settle() {
	if c.paying {
		c.listener.budget.take(c.cost().Seconds())
	}
}

// Close closes the connection, which ends a wait of Read.
func (c *conn) Close() (err error) {
	c.close.Do(func() {
		close(c.closed)
		err = c.Conn.Close()
		c.listener.remove(c) // after it, so that no more are open than may be
	})
	return err
}

// takeThread locks the calling goroutine to its thread, for good, and gives the
// thread ordinary priority. Go starts no thread from a locked one, so that no
// other inherits that.
func (c *conn) takeThread() {
	runtime.LockOSThread()
	if err := c.listener.thread(); err != nil {
		c.listener.log.Debug("metrics are served at evictd's own priority", "error", err)
	}
	// kernel/time/posix-cpu-timers.c: CPUCLOCK_PERTHREAD | CPUCLOCK_SCHED of the tid
	c.clock = int32(^unix.Gettid()<<3 | 6)
	c.spent, _ = threadTime(c.clock)
}

// cost returns the processor time that the thread has used since the last call.
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
