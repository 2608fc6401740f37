package metrics

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"time"
)

// listenRetryInterval is how often a Server tries again to listen, after a failure.
const listenRetryInterval = 10 * time.Second

// Server serves metrics and health at an address, and tries again after a failure: evictd
// runs without them, because every local user can bind a port above 1023.
type Server struct {
	address string
	retry   time.Duration
	failure atomic.Pointer[string] // why metrics are not served; nil while they are
}

// NewServer returns a server for an address, and an error if the address is malformed. It does
// not listen: the port may be free later, and the node may get the address later.
func NewServer(ctx context.Context, address string) (*Server, error) {
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = net.DefaultResolver.LookupPort(ctx, "tcp", port)
	}
	if err != nil {
		return nil, fmt.Errorf("serve metrics on %q: %w", address, err)
	}
	return &Server{address: address, retry: listenRetryInterval}, nil
}

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context, o Options) {
	logged := ""
	for {
		began := time.Now()
		err := s.once(ctx, o)
		if ctx.Err() != nil {
			return
		}
		failure := err.Error()
		s.failure.Store(&failure)
		if failure != logged || time.Since(began) > s.retry {
			o.Log.Warn("could not serve metrics and health; evictd tries again", "address", s.address, "error", err)
		}
		logged = failure
		select {
		case <-ctx.Done():
			return
		case <-time.After(s.retry):
		}
	}
}

// once listens and serves until that fails or ctx ends.
func (s *Server) once(ctx context.Context, o Options) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.address)
	if err != nil {
		return err
	}
	s.failure.Store(nil)
	return Serve(ctx, l, o)
}

// Warning returns why metrics are not served, "" if they are, or if s is nil.
func (s *Server) Warning() string {
	if s == nil || s.failure.Load() == nil {
		return ""
	}
	return fmt.Sprintf("metrics and health are not served, trying again every %v: %s", s.retry, *s.failure.Load())
}
