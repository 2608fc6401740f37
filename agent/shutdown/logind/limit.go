package logind

import (
	"cmp"
	"context"
	"fmt"
	"time"
)

// updateLimit raises logind's limit to needs, by the drop-in, if it is lower. It
// lowers the limit only by removing the drop-in, when no lock is wanted. During a
// shutdown it changes nothing. Problems with the drop-in are reported in the
// status; the error is that of the connection.
func (d *DelayLock) updateLimit(ctx context.Context, c *Conn, needs time.Duration, s *Status) (err error) {
	if s.Limit, err = c.Limit(ctx); err != nil || s.Preparing || needs == needsUnknown {
		return err
	}
	if err := d.reload(ctx, c, needs, s); err != nil {
		return err
	}
	current, err := d.dropIn.read()
	wanted := wholeSeconds(needs)
	switch {
	case err != nil || current.ofOtherEvictd():
	case needs == 0 && !d.kubeletLock.known: // wait for the list
	case needs == 0:
		d.reloadPending, err = d.removeDropIn()
	case s.Limit >= needs && current.exists && !current.ofThisProcess():
		// Written by an earlier run, and sufficient: rewrite it in this process's
		// name, so that this process removes it.
		err = d.dropIn.write(cmp.Or(current.seconds, wanted))
	case s.Limit >= needs:
	case current.ofThisProcess() && current.seconds == wanted:
		d.reloadPending = d.dropIn.override() == "" // the overriding file may be gone
	default:
		err = d.dropIn.write(wanted)
		d.reloadPending = err == nil
	}
	if err := d.reload(ctx, c, needs, s); err != nil {
		return err
	}
	d.reportLimit(needs, current, err, s)
	return nil
}

// removeDropIn removes the drop-in, unless another running evictd wrote it. The drop-in
// stays during a shutdown, because /run ends with the boot. It also stays if a
// kubelet has a lock, or if no list of the locks was ever read: a kubelet reads the
// limit once, at its start, and relies on it (pkg/kubelet/nodeshutdown, Start).
func (d *DelayLock) removeDropIn() (removed bool, err error) {
	current, err := d.dropIn.read()
	if err != nil || !current.exists || current.ofOtherEvictd() || d.preparing || d.kubeletLock.present || !d.kubeletLock.seen {
		return false, err
	}
	err = d.dropIn.remove()
	return err == nil, err
}

// reportLimit reports in the status, and once in the log, why logind allows less
// than needed. A problem with the drop-in that does not reduce the limit is only
// logged, once.
func (d *DelayLock) reportLimit(needs time.Duration, current dropInContent, err error, s *Status) {
	text := ""
	switch {
	case err != nil:
		text = err.Error()
	case s.Limit >= needs:
	case current.ofOtherEvictd():
		text = fmt.Sprintf("%s belongs to another evictd, process %d", d.dropIn.path(), current.pid)
	default:
		text = cmp.Or(d.dropIn.override(), "logind does not apply the limit of "+d.dropIn.path())
	}
	if s.Limit < needs {
		s.Error = text
	}
	if text == d.limitLogged {
		return
	}
	switch d.limitLogged = text; {
	case text == "":
	case s.Limit < needs:
		d.log.Warn("logind allows less time than the pods need; each group gets its share", "needs", needs.String(), "allowed", s.Limit.String(), "why", text)
	default:
		d.log.Warn("could not update the drop-in to logind's configuration", "error", text, "allowed", s.Limit.String())
	}
}

// reload makes logind read its configuration if the drop-in has changed. It polls
// until the limit has changed to needs, for a bounded time: another file may
// override the drop-in.
func (d *DelayLock) reload(ctx context.Context, c *Conn, needs time.Duration, s *Status) error {
	if !d.reloadPending {
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
		if now != before && now >= needs || wait > d.reloadTimeout {
			s.Limit, d.reloadPending = now, false
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
}

// maxReloadWait is the last wait for logind to read its configuration; the waits
// double from 10 ms, some 2.5 s in all.
const maxReloadWait = 1280 * time.Millisecond
