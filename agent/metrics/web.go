package metrics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/exporter-toolkit/web"
)

// Limits on what a client on the network may do.
const (
	readTimeout  = 5 * time.Second
	writeTimeout = 30 * time.Second // more than a scrape may take
	idleTimeout  = 2 * time.Minute  // more than a usual scrape interval
	stopTimeout  = 500 * time.Millisecond
	maxHeader    = 16 << 10
)

// CheckWebConfig reports what is wrong with a web configuration file: TLS and
// basic authentication in the exporter toolkit's format. No file is fine.
func CheckWebConfig(path string) error {
	if err := web.Validate(path); err != nil {
		return fmt.Errorf("web configuration %s: %w", path, err)
	}
	return nil
}

// Serve answers on the listener, which it closes, until ctx ends; that is nil.
// A web configuration file, where one is named, is read anew for each
// connection. Answers under way get three seconds to finish.
func Serve(ctx context.Context, l net.Listener, handler http.Handler, configFile string, log *slog.Logger) error {
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: readTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	ctx, cancel := context.WithCancel(ctx)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-ctx.Done()
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		if server.Shutdown(grace) != nil {
			server.Close()
		}
	}()
	err := web.Serve(l, server, &web.FlagConfig{WebConfigFile: &configFile}, log)
	cancel()
	<-stopped
	// Where the configuration is broken the toolkit returns before it serves.
	l.Close()
	if !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve metrics: %w", err)
	}
	return nil
}
