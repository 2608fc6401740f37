package logind

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// errLost ends a session whose connection broke off.
var errLost = errors.New("the connection to the system bus broke off")

// session serves one connection until it breaks off. A lock that it takes
// outlives it: logind knows it by its descriptor, not by the connection.
func (g *Guard) session(ctx context.Context) error {
	c, err := connect(ctx, g.address, g.timeout)
	if err != nil {
		return err
	}
	defer c.Close()
	l := newLister(ctx, c, g.ofKubelet)
	defer l.close()
	g.kubeletLock.known = false
	// What changes from here on is told by a signal.
	if err := g.ask(ctx, c); err != nil {
		return err
	}
	if err := g.reconcile(ctx, c); err != nil {
		return err
	}
	g.tell()
	g.list(l)
	again := time.NewTicker(g.again)
	defer again.Stop()
	for {
		changed, err := true, error(nil)
		select {
		case <-ctx.Done():
			return g.leave(context.WithoutCancel(ctx), c)
		case <-g.poke:
			err = g.look(ctx, c, l)
		case <-again.C:
			err = g.look(ctx, c, l)
		case k := <-l.results:
			g.updateKubeletLock(k, l)
		case s, ok := <-c.signals:
			if !ok {
				if !g.preparing {
					g.calm = time.Now() // nothing was told until now
				}
				return errLost
			}
			changed, err = g.receive(ctx, c, l, s)
		}
		if err == nil && changed {
			err = g.reconcile(ctx, c)
		}
		if err != nil {
			return err
		}
		if changed {
			g.tell()
		}
	}
}

// look asks logind how things stand: whether the node is going down, and which locks
// there are.
func (g *Guard) look(ctx context.Context, c *Conn, l *lister) error {
	if err := g.ask(ctx, c); err != nil {
		return err
	}
	g.list(l)
	return nil
}

// receive takes in a signal, and reports whether lock and limit may have to change.
func (g *Guard) receive(ctx context.Context, c *Conn, l *lister, s arrival) (changed bool, err error) {
	switch what, ok := understand(s); {
	case !ok:
		return false, nil
	case what.owner && !what.present:
		g.log.Warn("logind has gone, waiting for it")
		return false, nil
	case what.owner:
		// A new one knows the locks of the old, but not of a shutdown that was being
		// held up.
		return true, g.look(ctx, c, l)
	default:
		g.hear(what.begins, s.at)
		// At once: what follows takes time.
		g.tell()
		return !what.begins, nil
	}
}

// ask asks logind whether the node is going down.
func (g *Guard) ask(ctx context.Context, c *Conn) error {
	began := time.Now()
	preparing, err := c.Preparing(ctx)
	if err != nil {
		return err
	}
	if g.preparing = preparing; !preparing {
		g.calm = began
	}
	return nil
}

// hear takes in that a shutdown begins or is called off, as it came at a time.
func (g *Guard) hear(begins bool, at time.Time) {
	if !begins || !g.preparing {
		g.calm = at // until then
	}
	g.preparing = begins
	s := g.Status()
	s.Preparing = begins
	g.status.Store(&s)
}

// reconcile takes the lock if one is wanted and logind does not know it, and raises
// the limit. Signals that come meanwhile are heard after it, with the time that they
// came.
func (g *Guard) reconcile(ctx context.Context, c *Conn) error {
	g.mu.Lock()
	if !g.preparing {
		g.done = false
	}
	needs, done := g.needs, g.done
	valid := g.lock.known() && !g.lock.inherited
	g.mu.Unlock()

	// The lock comes before all else: with a lock and too low a limit each group of
	// pods gets its share, without one none gets any time. While a shutdown is already
	// delayed, logind grants no further lock (logind-dbus.c: method_inhibit).
	taken := needs > 0 && !done && !g.preparing && !valid
	if taken {
		lock, err := c.Inhibit(ctx, Who, why)
		if err != nil {
			return err
		}
		g.take(lock)
	}
	s := Status{
		Connected: true, Needs: max(0, needs), Preparing: g.preparing,
		Kubelet: g.kubeletLock.held, KubeletKnown: g.kubeletLock.known,
	}
	if err := g.limit(ctx, c, needs, &s); err != nil {
		return err
	}
	if taken {
		g.log.Info("a shutdown of the node is held up for the pods", "needs", needs.String(), "allowed", s.Limit.String())
	}
	if err := g.kubeletLock.err; err != nil {
		s.Error = strings.TrimPrefix(s.Error+"; "+fmt.Sprintf(listFailed+": %v", err), "; ")
	}
	s.Locked = g.locked()
	g.status.Store(&s)
	g.told = ""
	return nil
}

// leave removes this process's drop-in and has logind read its configuration again.
func (g *Guard) leave(ctx context.Context, c *Conn) error {
	removed, err := g.removeDropIn()
	if err != nil || !removed {
		return err
	}
	return c.Reload(ctx)
}
