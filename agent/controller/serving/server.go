package serving

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// The times and limits of a connection. The deadlines are those of a whole request, so that slow clients end.
const (
	headerTimeout  = 5 * time.Second // also that of the TLS handshake
	readTimeout    = 10 * time.Second
	writeTimeout   = 20 * time.Second // from the end of the header on
	idleTimeout    = 90 * time.Second
	stopTimeout    = 3 * time.Second
	maxHeaderBytes = 16 << 10
)

// Server serves HTTPS. It must be started after the caches have synced, which a manager does.
type Server struct {
	// Address is HOST:PORT or :PORT.
	Address     string
	Handler     http.Handler
	Certificate *Certificate
	Metrics     *Metrics
	Log         *slog.Logger
	// ClientCertificates asks clients for certificates. It is left to the handler to require them: the API server has
	// none.
	ClientCertificates bool

	listening atomic.Bool
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: every replica serves.
func (*Server) NeedLeaderElection() bool { return false }

// Check reports as an error why the server can't be used yet. It is that of a readiness probe. Once there was a
// certificate, its expiry does not end the readiness, since no other replica has a better one.
func (s *Server) Check(*http.Request) error {
	if !s.listening.Load() {
		return errors.New("the webhook server does not listen yet")
	}
	_, err := s.Certificate.Get(nil)
	return err
}

// Start implements manager.Runnable. It serves until ctx ends, and returns an error if it can't listen.
func (s *Server) Start(ctx context.Context) error {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", s.Address)
	if err != nil {
		return fmt.Errorf("serve the webhook: %w", err)
	}
	return s.serve(ctx, listener)
}

func (s *Server) serve(ctx context.Context, listener net.Listener) (err error) {
	bounded := newBoundedListener(listener, s.Metrics)
	server := &http.Server{
		Handler:           s.Handler,
		TLSConfig:         &tls.Config{GetCertificate: s.Certificate.Get, MinVersion: tls.VersionTLS12},
		ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeaderBytes, ConnContext: withVerified,
		// A stream of HTTP/2 would be a request that the limit of connections does not count. The API server does not use it
		// for webhooks.
		Protocols: new(http.Protocols),
		// A client that breaks a handshake off writes no line of the log.
		ErrorLog: slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
	}
	server.Protocols.SetHTTP1(true)
	if s.ClientCertificates {
		server.TLSConfig.ClientAuth = tls.RequestClientCert
	}
	ended := make(chan error, 1)
	go func() { ended <- server.ServeTLS(bounded, "", "") }()
	s.listening.Store(true)
	s.Log.Info("serving webhook", "address", listener.Addr().String())
	select {
	case err := <-ended:
		return fmt.Errorf("serve the webhook: %w", err)
	case <-ctx.Done():
	}
	s.listening.Store(false)
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	if server.Shutdown(stop) != nil {
		err = server.Close() // requests that have not ended by then
	}
	<-ended
	return err
}
