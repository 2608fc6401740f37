package kube

import (
	"context"
	"net"
	"sync"
	"time"
)

// listenRetry is the time between two attempts to listen.
const listenRetry = 10 * time.Second

// ListenAndServe listens and accepts sessions until ctx ends. After a failure, which the
// status shows, it tries again: evictd decides by the facts that it has.
func (s *Server) ListenAndServe(ctx context.Context, listen func() (net.Listener, error)) {
	logged := ""
	if s.KubeletCertificates != nil {
		var asking sync.WaitGroup
		defer asking.Wait()
		asking.Go(func() { s.asker.run(ctx, s.Facts.kubelet.wake, s.KubeletCertificates, s.Log) })
	}
	for {
		l, err := listen()
		if err == nil {
			s.Facts.disconnect(time.Time{}, "")
			err = s.Serve(ctx, l)
		}
		if err == nil { // ctx has ended
			return
		}
		s.Facts.disconnect(time.Time{}, err.Error())
		if text := err.Error(); text != logged {
			logged = text
			s.Log.Error("no socket for evictd-kube; evictd keeps the facts that it has, and tries again", "error", err)
		}
		if !sleep(ctx, listenRetry) {
			return
		}
	}
}
