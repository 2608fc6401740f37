package logind

import (
	"cmp"
	"context"
	"fmt"
	"time"
)

// limit raises logind's limit to what is needed, by the drop-in, where it is lower.
// It lowers the limit only by removing the drop-in, when no lock is wanted any more.
// While the node goes down nothing is changed. A drop-in that can't be read, written
// or removed is reported; an error is that of the connection.
func (g *Guard) limit(ctx context.Context, c *Conn, needs time.Duration, s *Status) (err error) {
	if s.Limit, err = c.Limit(ctx); err != nil || s.Preparing || needs == unasked {
		return err
	}
	if err := g.reload(ctx, c, needs, s); err != nil {
		return err
	}
	there, err := g.dropIn.read()
	wanted := inSeconds(needs)
	switch {
	case err != nil || there.others():
	case needs == 0 && !g.kubeletLock.known: // when it is
	case needs == 0:
		g.unread, err = g.removeDropIn()
	case s.Limit >= needs && there.there && !there.ours():
		// Of an earlier run, and enough: this process removes it in the end.
		err = g.dropIn.write(cmp.Or(there.seconds, wanted))
	case s.Limit >= needs:
	case there.ours() && there.seconds == wanted:
		g.unread = g.dropIn.rival() == "" // what overrode it may be gone
	default:
		err = g.dropIn.write(wanted)
		g.unread = err == nil
	}
	if err := g.reload(ctx, c, needs, s); err != nil {
		return err
	}
	g.reportLimit(needs, there, err, s)
	return nil
}

// removeDropIn removes the drop-in, unless another evictd that runs wrote it. It stays
// while the node goes down, which ends it, and where a kubelet has a lock or that could
// never be found out: a kubelet reads the limit once, when it starts, and counts on it
// (pkg/kubelet/nodeshutdown, Start).
func (g *Guard) removeDropIn() (removed bool, err error) {
	there, err := g.dropIn.read()
	if err != nil || !there.there || there.others() || g.preparing || g.kubeletLock.held || !g.kubeletLock.seen {
		return false, err
	}
	err = g.dropIn.remove()
	return err == nil, err
}

// reportLimit says why logind allows less than is needed, in the status and once in
// the log, or once in the log what is wrong with the drop-in where that costs nothing.
func (g *Guard) reportLimit(needs time.Duration, there written, err error, s *Status) {
	text := ""
	switch {
	case err != nil:
		text = err.Error()
	case s.Limit >= needs:
	case there.others():
		text = fmt.Sprintf("%s is another evictd's, of process %d", g.dropIn.path(), there.pid)
	default:
		text = cmp.Or(g.dropIn.rival(), "logind does not take the limit of "+g.dropIn.path())
	}
	if s.Limit < needs {
		s.Error = text
	}
	if text == g.limitLogged {
		return
	}
	switch g.limitLogged = text; {
	case text == "":
	case s.Limit < needs:
		g.log.Warn("logind allows less time than the pods are to have, each group gets its share", "needs", needs.String(), "allowed", s.Limit.String(), "why", text)
	default:
		g.log.Warn("the drop-in to logind's configuration stays as it is", "error", text, "allowed", s.Limit.String())
	}
}

// reload has logind read its configuration where it has not since the drop-in was
// written or removed. It waits until the limit has changed to what is needed, but not
// for long: another file may override the drop-in.
func (g *Guard) reload(ctx context.Context, c *Conn, needs time.Duration, s *Status) error {
	if !g.unread {
		return nil
	}
	if err := c.Reload(ctx); err != nil {
		return err
	}
	before := s.Limit
	for wait := 10 * time.Millisecond; ; wait *= 2 {
		now, err := c.Limit(ctx)
		if err != nil {
			return err
		}
		if now != before && now >= needs || wait > g.patience {
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
