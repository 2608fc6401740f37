package ipmi

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/bougou/go-ipmi/pkg/client"
)

// session is one session with a BMC.
type session struct {
	ctx    context.Context
	client *client.Client
	link   *link
}

// session opens a session, calls use, and closes the session. A panic of go-ipmi in this goroutine becomes an error;
// those of its own goroutines are prevented by the guard.
func (d *Device) session(ctx context.Context, use func(*session) error) (err error) {
	unlock, err := lock(ctx, d.address())
	if err != nil {
		return err
	}
	defer unlock()
	s := &session{ctx: ctx, link: &link{ctx: ctx, address: d.address()}}
	s.link.guard.username, s.link.guard.password = d.username, d.password
	if s.client, err = d.newClient(s.link); err != nil {
		return err
	}
	defer s.close()
	stop := context.AfterFunc(ctx, s.link.interrupt)
	defer stop() // before close
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the BMC's answer made go-ipmi panic: %v", p)
		}
	}()
	if err := s.client.Connect(ctx); err != nil {
		return s.explain("open a session", err)
	}
	return use(s)
}

// close ends the session on the BMC, which has few of them, and closes the socket.
func (s *session) close() {
	defer s.link.close()
	defer func() { _ = recover() }() // as in session; the outcome of what was done is known
	if active, _, _ := s.link.state(); !active {
		s.link.interrupt() // for a read that was given up
		return
	}
	// This context replaces one that may have ended. The limit holds also for a read that was given up but goes on: the
	// client waits for it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), closeTimeout)
	defer cancel()
	s.link.finish(time.Now().Add(closeTimeout))
	_ = s.client.WithRetry(0).Close(ctx) // a BMC that does not answer ends the session itself after a minute
}

// explain adds to an error of go-ipmi what the guard knows, and makes it one line.
func (s *session) explain(operation string, err error) error {
	_, dropped, ended := s.link.state()
	if ended != nil {
		return fmt.Errorf("%s: %w", operation, ended)
	}
	if s.ctx.Err() != nil && !errors.Is(err, s.ctx.Err()) {
		err = fmt.Errorf("%w: %w", s.ctx.Err(), err)
	}
	if dropped > 0 {
		err = fmt.Errorf("%w (%d datagrams dropped that were not a valid answer)", err, dropped)
	}
	return oneLine{operation, err}
}

// oneLine is an error with its operation; go-ipmi joins errors by line breaks.
type oneLine struct {
	operation string
	err       error
}

func (e oneLine) Error() string {
	return e.operation + ": " + strings.Join(strings.Fields(e.err.Error()), " ")
}

func (e oneLine) Unwrap() error { return e.err }
