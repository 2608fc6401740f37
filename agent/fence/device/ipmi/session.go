package ipmi

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/bougou/go-ipmi/pkg/client"
	"github.com/bougou/go-ipmi/pkg/types"

	"github.com/evictd/evictd/agent/fence/device"
)

// session is one session with a BMC.
type session struct {
	ctx    context.Context // its end ends reads and writes of the link
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
	defer func() {
		if err != nil && s.link.state().answered {
			err = &device.AnswerError{Err: err}
		}
	}()
	stop := context.AfterFunc(ctx, s.link.interrupt)
	defer stop()
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the BMC's answer made go-ipmi panic: %v", p)
		}
	}()
	if err := s.client.Connect(s.request()); err != nil {
		return s.explain("open a session", err)
	}
	return use(s)
}

// close ends the session on the BMC, which has few of them, also if the context has ended, and closes the socket.
func (s *session) close() {
	defer s.link.close()
	if !s.link.state().active {
		return
	}
	defer func() { _ = recover() }() // as in session; the outcome of what was done is known
	s.link.finish(time.Now().Add(closeTimeout))
	// A BMC that does not get this ends the session itself after a minute.
	_ = s.client.WithRetry(0).Close(s.request())
}

// request returns the context for a request of the client, whose time the link bounds.
func (s *session) request() context.Context { return context.WithoutCancel(s.ctx) }

// explain adds to an error of go-ipmi what the guard and the context know, and makes it one line.
func (s *session) explain(operation string, err error) error {
	g := s.link.state()
	if g.err != nil {
		return fmt.Errorf("%s: %w", operation, g.err)
	}
	if g.refused != types.RmcpStatusCodeNoErrors {
		err = fmt.Errorf("the BMC refuses: %s: %w", g.refused, err)
	}
	if s.ctx.Err() != nil && !errors.Is(err, s.ctx.Err()) {
		err = fmt.Errorf("%w: %w", s.ctx.Err(), err)
	}
	if g.dropped > 0 {
		err = fmt.Errorf("%w (%d datagrams dropped that were not a valid answer)", err, g.dropped)
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
