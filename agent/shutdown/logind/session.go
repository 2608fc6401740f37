package logind

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// errLost is returned for a connection that was closed.
var errLost = errors.New("connection to the system bus closed")

// session serves one connection until it is closed. A lock that it takes outlives
// it: logind identifies a lock by its descriptor, not by the connection.
func (g *DelayLock) session(ctx context.Context) error {
	c, err := connect(ctx, g.address, g.timeout)
	if err != nil {
		return err
	}
	defer c.Close()
	l := newLister(ctx, c, g.isKubeletLock)
	defer l.close()
	g.kubeletLock.known = false
	// Changes from here on are received as signals.
	if err := g.queryPreparing(ctx, c); err != nil {
		return err
	}
	if err := g.reconcile(ctx, c); err != nil {
		return err
	}
	g.sendEvent()
	g.list(l)
	again := time.NewTicker(g.pollInterval)
	defer again.Stop()
	for {
		changed, err := true, error(nil)
		select {
		case <-ctx.Done():
			return g.restoreLimit(context.WithoutCancel(ctx), c)
		case <-g.changed:
			err = g.refresh(ctx, c, l)
		case <-again.C:
			err = g.refresh(ctx, c, l)
		case k := <-l.results:
			g.updateKubeletLock(k, l)
		case s, ok := <-c.signals:
			if !ok {
				if !g.preparing {
					g.lastNotPreparing = time.Now() // no signal until now
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
			g.sendEvent()
		}
	}
}

// refresh queries logind for PreparingForShutdown, and starts a list of the locks.
func (g *DelayLock) refresh(ctx context.Context, c *Conn, l *lister) error {
	if err := g.queryPreparing(ctx, c); err != nil {
		return err
	}
	g.list(l)
	return nil
}

// receive handles a signal, and reports whether lock and limit may have to change.
func (g *DelayLock) receive(ctx context.Context, c *Conn, l *lister, s timedSignal) (changed bool, err error) {
	switch what, ok := parseSignal(s); {
	case !ok:
		return false, nil
	case what.owner && !what.present:
		g.log.Warn("logind has left the bus; waiting for it")
		return false, nil
	case what.owner:
		// A restarted logind knows the existing locks, but not a delayed shutdown.
		return true, g.refresh(ctx, c, l)
	default:
		g.setPreparing(what.begins, s.at)
		// Send it before the calls that follow, which take time.
		g.sendEvent()
		return !what.begins, nil
	}
}

// queryPreparing queries PreparingForShutdown.
func (g *DelayLock) queryPreparing(ctx context.Context, c *Conn) error {
	began := time.Now()
	preparing, err := c.Preparing(ctx)
	if err != nil {
		return err
	}
	if g.preparing = preparing; !preparing {
		g.lastNotPreparing = began
	}
	return nil
}

// setPreparing records that a shutdown has begun or was cancelled, at the time of
// the signal.
func (g *DelayLock) setPreparing(begins bool, at time.Time) {
	if !begins || !g.preparing {
		g.lastNotPreparing = at // no shutdown until then
	}
	g.preparing = begins
	s := g.Status()
	s.Preparing = begins
	g.status.Store(&s)
}

// reconcile takes the lock if one is wanted and logind has none, and raises the
// limit. Signals that arrive during it are handled afterwards, with the time of
// their arrival.
func (g *DelayLock) reconcile(ctx context.Context, c *Conn) error {
	g.mu.Lock()
	if !g.preparing {
		g.done = false
	}
	needs, done := g.needs, g.done
	valid := g.lock.known() && !g.lock.inherited
	g.mu.Unlock()

	// Take the lock first: with a lock and too low a limit each group of pods gets
	// its share, without a lock none gets any time. During a delayed shutdown
	// logind grants no further lock (logind-dbus.c: method_inhibit).
	taken := needs > 0 && !done && !g.preparing && !valid
	if taken {
		lock, err := c.Inhibit(ctx, Who, why)
		if err != nil {
			return err
		}
		g.setLock(lock)
	}
	s := Status{
		Connected: true, Needs: max(0, needs), Preparing: g.preparing,
		Kubelet: g.kubeletLock.present, KubeletKnown: g.kubeletLock.known,
	}
	if err := g.updateLimit(ctx, c, needs, &s); err != nil {
		return err
	}
	if taken {
		g.log.Info("took the shutdown lock; a shutdown of the node waits for the pods", "needs", needs.String(), "allowed", s.Limit.String())
	}
	if err := g.kubeletLock.err; err != nil {
		s.Error = strings.TrimPrefix(s.Error+"; "+fmt.Sprintf(listFailed+": %v", err), "; ")
	}
	s.Inhibited = g.locked()
	g.status.Store(&s)
	g.loggedError = ""
	return nil
}

// restoreLimit removes this process's drop-in and makes logind read its
// configuration.
func (g *DelayLock) restoreLimit(ctx context.Context, c *Conn) error {
	removed, err := g.removeDropIn()
	if err != nil || !removed {
		return err
	}
	return c.Reload(ctx)
}
