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
func (d *DelayLock) session(ctx context.Context) error {
	c, err := connect(ctx, d.address, d.timeout)
	if err != nil {
		return err
	}
	defer c.Close()
	l := newLister(ctx, c, d.isKubeletLock)
	defer l.close()
	d.kubeletLock.known = false
	// Changes from here on are received as signals.
	if err := d.queryPreparing(ctx, c); err != nil {
		return err
	}
	if err := d.reconcile(ctx, c); err != nil {
		return err
	}
	d.sendEvent()
	d.list(l)
	again := time.NewTicker(d.pollInterval)
	defer again.Stop()
	for {
		changed, err := true, error(nil)
		select {
		case <-ctx.Done():
			return d.restoreLimit(context.WithoutCancel(ctx), c)
		case <-d.changed:
			err = d.refresh(ctx, c, l)
		case <-again.C:
			err = d.refresh(ctx, c, l)
		case k := <-l.results:
			d.updateKubeletLock(k, l)
		case s, ok := <-c.signals:
			if !ok {
				if !d.preparing {
					d.lastNotPreparing = time.Now() // no signal until now
				}
				return errLost
			}
			changed, err = d.receive(ctx, c, l, s)
		}
		if err == nil && changed {
			err = d.reconcile(ctx, c)
		}
		if err != nil {
			return err
		}
		if changed {
			d.sendEvent()
		}
	}
}

// refresh queries logind for PreparingForShutdown, and starts a list of the locks.
func (d *DelayLock) refresh(ctx context.Context, c *Conn, l *lister) error {
	if err := d.queryPreparing(ctx, c); err != nil {
		return err
	}
	d.list(l)
	return nil
}

// receive handles a signal, and reports whether lock and limit may have to change.
func (d *DelayLock) receive(ctx context.Context, c *Conn, l *lister, s timedSignal) (changed bool, err error) {
	switch what, ok := parseSignal(s); {
	case !ok:
		return false, nil
	case what.owner && !what.present:
		d.log.Warn("logind has left the bus; waiting for it")
		return false, nil
	case what.owner:
		// A restarted logind knows the existing locks, but not a delayed shutdown.
		return true, d.refresh(ctx, c, l)
	default:
		d.setPreparing(what.begins, s.at)
		// Send it before the calls that follow, which take time.
		d.sendEvent()
		return !what.begins, nil
	}
}

// queryPreparing queries PreparingForShutdown.
func (d *DelayLock) queryPreparing(ctx context.Context, c *Conn) error {
	began := time.Now()
	preparing, err := c.Preparing(ctx)
	if err != nil {
		return err
	}
	if d.preparing = preparing; !preparing {
		d.lastNotPreparing = began
	}
	return nil
}

// setPreparing records that a shutdown has begun or was canceled, at the time of
// the signal.
func (d *DelayLock) setPreparing(begins bool, at time.Time) {
	if !begins || !d.preparing {
		d.lastNotPreparing = at // no shutdown until then
	}
	d.preparing = begins
	s := d.Status()
	s.Preparing = begins
	d.status.Store(&s)
}

// reconcile takes the lock if one is wanted and logind has none, and raises the
// limit. Signals that arrive during it are handled afterwards, with the time of
// their arrival.
func (d *DelayLock) reconcile(ctx context.Context, c *Conn) error {
	d.mu.Lock()
	if !d.preparing {
		d.done = false
	}
	needs, done := d.needs, d.done
	valid := d.lock.known() && !d.lock.inherited
	d.mu.Unlock()

	// Take the lock first: with a lock and too low a limit each group of pods gets
	// its share, without a lock none gets any time. During a delayed shutdown
	// logind grants no further lock (logind-dbus.c: method_inhibit).
	taken := needs > 0 && !done && !d.preparing && !valid
	if taken {
		lock, err := c.Inhibit(ctx, Who, why)
		if err != nil {
			return err
		}
		d.setLock(lock)
	}
	s := Status{
		Connected: true, Needs: max(0, needs), Preparing: d.preparing,
		Kubelet: d.kubeletLock.present, KubeletKnown: d.kubeletLock.known,
	}
	if err := d.updateLimit(ctx, c, needs, &s); err != nil {
		return err
	}
	if taken {
		d.log.Info("took the shutdown lock; a shutdown of the node waits for the pods", "needs", needs.String(), "allowed", s.Limit.String())
	}
	if err := d.kubeletLock.err; err != nil {
		s.Error = strings.TrimPrefix(s.Error+"; "+fmt.Sprintf(listFailed+": %v", err), "; ")
	}
	s.Inhibited = d.locked()
	d.status.Store(&s)
	d.loggedError = ""
	return nil
}

// restoreLimit removes this process's drop-in and makes logind read its
// configuration.
func (d *DelayLock) restoreLimit(ctx context.Context, c *Conn) error {
	removed, err := d.removeDropIn()
	if err != nil || !removed {
		return err
	}
	return c.Reload(ctx)
}
