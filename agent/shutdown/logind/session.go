package logind

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
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
	// What changes from here on is told by a signal.
	if err := g.ask(ctx, c); err != nil {
		return err
	}
	if err := g.reconcile(ctx, c); err != nil {
		return err
	}
	g.tell()
	again := time.NewTicker(slowestRetry)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return g.leave(context.WithoutCancel(ctx), c)
		case <-g.poke:
			if err := g.ask(ctx, c); err != nil {
				return err
			}
		case <-again.C:
			if err := g.ask(ctx, c); err != nil {
				return err
			}
		case s, ok := <-c.signals:
			if !ok {
				if !g.preparing {
					g.calm = time.Now() // nothing was told until now
				}
				return errLost
			}
			switch what, ok := understand(s); {
			case !ok:
				continue
			case what.owner && !what.present:
				g.log.Warn("logind has gone, waiting for it")
				continue
			case what.owner:
				// A new one knows the locks of the old, but not of a shutdown that
				// was being held up.
				if err := g.ask(ctx, c); err != nil {
					return err
				}
			default:
				g.hear(what.begins, s.at)
				// At once: what follows takes time.
				g.tell()
				if what.begins {
					continue
				}
			}
		}
		if err := g.reconcile(ctx, c); err != nil {
			return err
		}
		g.tell()
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

// reconcile brings lock and limit to what is wanted, and the status to what is.
// Signals that come meanwhile are heard after it, with the time that they came.
func (g *Guard) reconcile(ctx context.Context, c *Conn) error {
	g.mu.Lock()
	if !g.preparing {
		g.done = false
	}
	needs, done := g.needs, g.done
	have := g.lock != nil
	g.mu.Unlock()

	s := Status{Connected: true, Needs: max(0, needs), Preparing: g.preparing}
	inhibitors, err := c.Inhibitors(ctx)
	if err != nil {
		return err
	}
	s.Kubelet = slices.ContainsFunc(inhibitors, g.ofKubelet)
	held := slices.ContainsFunc(inhibitors, func(i Inhibitor) bool { return i.Who == Who && int(i.PID) == os.Getpid() })
	// The lock comes before the limit: with a lock and too low a limit each group of
	// pods gets its share, without one none gets any time. While a shutdown is being
	// held up already logind gives nobody a lock.
	taken := needs > 0 && !done && !g.preparing && !(have && held)
	if taken {
		lock, err := c.Inhibit(ctx, Who, why)
		if err != nil {
			return err
		}
		g.take(lock)
	}
	if err := g.limit(ctx, c, needs, &s); err != nil {
		return err
	}
	if taken {
		g.log.Info("a shutdown of the node is held up for the pods", "needs", needs.String(), "allowed", s.Limit.String())
	}
	s.Locked = g.locked()
	g.status.Store(&s)
	g.told = ""
	return nil
}

// ofKubelet reports whether a lock is a kubelet's, by the user and the process
// that logind knows it of. What the lock says of itself proves nothing: polkit
// lets every user take a delay lock (login1.inhibit-delay-shutdown).
func (g *Guard) ofKubelet(i Inhibitor) bool {
	return i.Who == KubeletWho && i.Mode == "delay" && i.UID == 0 && g.kubelet != nil && g.kubelet(int(i.PID))
}

// limit sees that logind allows what is needed, by the drop-in where its own
// limit is lower, and without it where not. While the node goes down nothing is
// changed, and while a kubelet holds shutdowns up nothing is lowered: it has
// looked at the limit once, and counts on it. A drop-in that can't be read, written
// or removed is reported; an error is that of the connection.
func (g *Guard) limit(ctx context.Context, c *Conn, needs time.Duration, s *Status) (err error) {
	if s.Limit, err = c.Limit(ctx); err != nil {
		return err
	}
	if s.Preparing || needs == unasked {
		return nil
	}
	there, err := g.dropIn.read()
	if err != nil {
		g.keepsDropIn(fmt.Errorf("read logind's limit: %w", err), needs, s)
		return nil
	}
	if there.others() {
		if s.Limit < needs {
			g.warn(fmt.Sprintf("%s is another evictd's, of process %d", g.dropIn.path(), there.pid), needs, s)
		}
		return nil
	}
	if there.there && s.Kubelet && s.Limit >= needs {
		return nil
	}
	there.there, err = g.replaceDropIn(ctx, c, there, needs, s)
	if err != nil || needs == 0 || s.Limit >= needs {
		return err
	}
	return g.raise(ctx, c, there.there, needs, s)
}

// replaceDropIn removes a drop-in that is not what is needed, or makes it this
// process's where it is. It reports whether one is there afterwards that is to stay.
func (g *Guard) replaceDropIn(ctx context.Context, c *Conn, there written, needs time.Duration, s *Status) (stays bool, err error) {
	wanted := inSeconds(needs)
	before := s.Limit
	changed := func(now time.Duration) bool { return now != before }
	switch {
	case there.there && there.seconds == wanted && !there.ours():
		// Of an earlier run, and right: from now on it is ours.
		g.unread = s.Limit < needs // that run may not have come to the reload
		if err := g.dropIn.write(wanted); err != nil {
			g.keepsDropIn(err, needs, s)
		}
	case there.there && needs > s.Limit && there.seconds != wanted && g.dropIn.beneath() <= needs:
		return false, nil // it is written over
	case there.there && (needs == 0 || there.seconds != wanted || g.dropIn.beneath() > needs):
		if err := g.dropIn.remove(); err != nil {
			g.keepsDropIn(err, needs, s)
			return true, nil
		}
		g.unread = true
		return false, g.reload(ctx, c, s, changed)
	case g.unread && !there.there:
		return false, g.reload(ctx, c, s, changed)
	}
	return there.there, nil
}

// raise sees that the drop-in holds what is needed, and that logind reads it.
func (g *Guard) raise(ctx context.Context, c *Conn, there bool, needs time.Duration, s *Status) error {
	if there && g.dropIn.rival() == "" {
		g.unread = true // what had the say before may have gone
	}
	if !there {
		if err := g.dropIn.write(inSeconds(needs)); err != nil {
			g.warn(err.Error(), needs, s)
			return nil // what is allowed is shared out
		}
		g.unread = true
	}
	if g.unread {
		if err := g.reload(ctx, c, s, func(now time.Duration) bool { return now >= needs }); err != nil {
			return err
		}
	}
	if s.Limit >= needs {
		s.Error = ""
		return nil
	}
	if s.Rival = g.dropIn.rival(); s.Rival == "" {
		s.Rival = "logind does not take the limit of " + g.dropIn.path()
	}
	if s.Error == "" { // else the drop-in stays as it is
		g.warn(s.Rival, needs, s)
	}
	return nil
}

// keepsDropIn reports a drop-in that stays as it is: as a warning where logind allows
// too little, and else once in the log.
func (g *Guard) keepsDropIn(err error, needs time.Duration, s *Status) {
	if s.Limit < needs {
		g.warn(err.Error(), needs, s)
		return
	}
	if text := err.Error(); text != g.kept {
		g.kept = text
		g.log.Warn("the drop-in to logind's configuration stays as it is", "error", err, "allowed", s.Limit.String())
	}
}

// warn tells once that less is allowed than is needed.
func (g *Guard) warn(why string, needs time.Duration, s *Status) {
	s.Error = why
	if before := g.Status(); before.Error != why {
		g.log.Warn("logind allows less time than the pods are to have, each group gets its share", "needs", needs.String(), "allowed", s.Limit.String(), "why", why)
	}
}

// reload has logind read its configuration and waits until the limit is as
// wanted, but not for long: another file may have the say.
func (g *Guard) reload(ctx context.Context, c *Conn, s *Status, wanted func(time.Duration) bool) error {
	if err := c.Reload(ctx); err != nil {
		return err
	}
	for wait := 10 * time.Millisecond; ; wait *= 2 {
		now, err := c.Limit(ctx)
		if err != nil {
			return err
		}
		if wanted(now) || wait > g.patience {
			s.Limit, g.unread = now, false
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
}

// longestReload is the last of the waits for logind to have read its
// configuration, which double: some 2.5 s in all.
const longestReload = 1280 * time.Millisecond

// leave ends the Guard where logind can be told: what is not wanted any more
// goes. The drop-in of a node that goes down goes with it.
func (g *Guard) leave(ctx context.Context, c *Conn) error {
	there, err := g.dropIn.read()
	if g.preparing || g.Status().Kubelet || err != nil || !there.ours() {
		return err
	}
	if err := g.dropIn.remove(); err != nil {
		return err
	}
	return c.Reload(ctx)
}
