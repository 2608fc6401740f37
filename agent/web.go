package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/evictd/evictd/agent/metrics"
	"github.com/evictd/evictd/agent/self"
)

// webRetryInterval is how often evictd tries again to listen, after a failure.
const webRetryInterval = 10 * time.Second

// webServer serves metrics and health. evictd starts without it, because every local user
// can bind a port above 1023.
type webServer struct {
	address string
	serve   func(context.Context, net.Listener) error
	retry   time.Duration
	log     *slog.Logger
	failure atomic.Pointer[string] // why metrics are not served; nil while they are
}

func (d *daemon) newWebServer() *webServer {
	return &webServer{
		address: d.options.WebAddress, retry: webRetryInterval, log: d.log.Logger,
		serve: func(ctx context.Context, l net.Listener) error {
			return metrics.Serve(ctx, l, metrics.Options{
				Handler:       metrics.Mux(d.metrics.Handler(d.log.Logger), &d.heartbeat, loopTimeout, d.statusBackend.Checks()...),
				ConfigFile:    d.options.WebConfigFile,
				PrepareThread: self.ResetNice,
				Log:           d.log.Logger,
			})
		},
	}
}

// run serves until ctx ends, and tries again after a failure. It returns nil.
func (w *webServer) run(ctx context.Context) error {
	logged := ""
	for {
		began := time.Now()
		err := w.once(ctx)
		if ctx.Err() != nil {
			return nil
		}
		failure := err.Error()
		w.failure.Store(&failure)
		if failure != logged || time.Since(began) > w.retry {
			w.log.Warn("could not serve metrics and health; evictd tries again", "address", w.address, "error", err)
		}
		logged = failure
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(w.retry):
		}
	}
}

// once listens and serves until that fails or ctx ends.
func (w *webServer) once(ctx context.Context) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", w.address)
	if err != nil {
		return err
	}
	w.failure.Store(nil)
	return w.serve(ctx, l)
}

// warning returns why metrics are not served, "" if they are.
func (w *webServer) warning() string {
	if w == nil || w.failure.Load() == nil {
		return ""
	}
	return fmt.Sprintf("metrics and health are not served, trying again every %v: %s", w.retry, *w.failure.Load())
}

// checkWebAddress returns an error for an address that is malformed. It does not listen: the
// port may be free later, and the node may get the address later.
func checkWebAddress(ctx context.Context, address string) error {
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = net.DefaultResolver.LookupPort(ctx, "tcp", port)
	}
	if err != nil {
		return fmt.Errorf("serve metrics on %q: %w (--web.listen-address)", address, err)
	}
	return nil
}
