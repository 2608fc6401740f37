package kube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// silenceTimeout is how long evictd waits for the next message: three intervals of
	// states.
	silenceTimeout = 3 * StateInterval
	// writeTimeout is how long a line may take to be written. The peer may be stopped.
	writeTimeout = 10 * time.Second
	// helloTimeout is how long a peer may take to send its hello.
	helloTimeout = 5 * time.Second
	// A peer may send lineBurst lines and decodeBurst bytes at once, which a complete list of
	// MaxPods has, and then lineRate lines and decodeRate bytes a second: decoding makes garbage
	// of several times its bytes, and no GC runs while a threshold is met. The bytes of a line
	// count twice, because the decoder copies it, and each comma as elementSize: an empty element
	// of an array has two bytes, and in memory about that much. A session counts as sessionSize
	// for its buffers.
	lineBurst, lineRate     = MaxPods + 100, 100
	decodeBurst, decodeRate = 6 << 20, 128 << 10
	elementSize             = 128
	sessionSize             = 32 << 10
	// listInterval is the time between the ends of two complete lists, which visit all facts.
	listInterval = time.Second
	// changeInterval is the time between two calls of Changed. After each the inventory
	// lists the runtime's pods.
	changeInterval = time.Second
	// acceptInterval is the time between two sessions.
	acceptInterval = 100 * time.Millisecond
	// logInterval is the time between two log lines about the same kind of event that the
	// peer can cause.
	logInterval = 6 * time.Second
)

// Server is evictd's side of the protocol.
type Server struct {
	// UID is the user ID that evictd-kube must have.
	UID      int
	Software string // evictd's version
	Facts    *Facts
	// Orders are sent to evictd-kube; nil for none.
	Orders *Orders
	// Node has the conditions that evictd-kube maintains on the Node object; nil for none.
	Node *Node
	// Marks has the annotations that evictd-kube maintains on the Node object; nil for none.
	Marks *Marks
	// Changed is called after a change of the facts about a pod that the runtime lists. It must
	// not wait.
	Changed func()
	// KubeletCertificates returns the certificates that the kubelet serves with (PEM). It may
	// block. Nil means that the kubelet's configuration is not asked for.
	KubeletCertificates func() string
	Log                 *slog.Logger

	asker kubeletAsker

	// These bound all sessions together, of which only one runs at a time.
	lines, decoded bucket
	listedAt       time.Time // when the last complete list ended
	changedAt      time.Time // when Changed is or was last called

	connected, ended, rejected, refusals, unaccepted, foreign, kubelets LogLimiter
}

// bucket is a token bucket. The zero bucket is full.
type bucket struct {
	spent float64
	at    time.Time // when it was
}

// wait returns how long a caller who takes n tokens from a bucket of burst tokens, to which
// rate tokens a second return, has to wait.
func (b *bucket) wait(n, burst, rate int, now time.Time) time.Duration {
	if !b.at.IsZero() {
		b.spent = max(0, b.spent-now.Sub(b.at).Seconds()*float64(rate))
	}
	b.at = now
	lacking := max(0, b.spent+float64(n)-float64(burst))
	return time.Duration(lacking / float64(rate) * float64(time.Second))
}

// take takes n tokens, and returns what wait returns.
func (b *bucket) take(n, burst, rate int, now time.Time) time.Duration {
	wait := b.wait(n, burst, rate, now)
	b.spent += float64(n)
	return wait
}

// left returns how many tokens can be taken without waiting.
func (b *bucket) left(burst, rate int, now time.Time) int {
	b.wait(0, burst, rate, now)
	return max(0, int(float64(burst)-b.spent))
}

// errReplaced ends a session when another one begins.
var errReplaced = errors.New("another process has connected as evictd-kube")

// Serve accepts sessions until ctx ends, closes l, and returns nil. A new session ends the
// previous one.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	var sessions sync.WaitGroup
	defer sessions.Wait()
	defer l.Close() // waits for the other one, which removes the socket
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	endLast := func(error) {} // the session that may still run
	for first := true; ; first = false {
		if !first && !sleep(ctx, acceptInterval) {
			return nil
		}
		conn, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return fmt.Errorf("accept evictd-kube: %w", err)
			}
			if skipped, ok := s.unaccepted.Allow(time.Now()); ok {
				s.Log.Warn("could not accept a connection of evictd-kube", "error", err, "not_logged", skipped)
			}
			if !sleep(ctx, time.Second) { // out of descriptors, say
				return nil
			}
			continue
		}
		if err := s.authorize(conn); err != nil {
			conn.Close()
			s.Facts.disconnect(time.Time{}, err.Error())
			if skipped, ok := s.rejected.Allow(time.Now()); ok {
				s.Log.Warn("refused a connection to the socket for evictd-kube", "error", err, "not_logged", skipped)
			}
			continue
		}
		endLast(errReplaced)
		sessions.Wait() // two sessions must not mix their lists
		sessionCtx, end := context.WithCancelCause(ctx)
		endLast = end
		sessions.Go(func() {
			defer end(nil)
			s.serveConn(sessionCtx, conn)
		})
	}
}

// authorize returns an error if the peer does not have the user ID of evictd-kube.
func (s *Server) authorize(conn net.Conn) error {
	uc, ok := conn.(*net.UnixConn)
	if !ok {
		return errors.New("not a unix socket")
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) { cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return err
	}
	if credErr != nil {
		return fmt.Errorf("read SO_PEERCRED: %w", credErr)
	}
	if int(cred.Uid) != s.UID {
		return fmt.Errorf("process %d has user ID %d; kube.uid in the configuration is %d", cred.Pid, cred.Uid, s.UID)
	}
	return nil
}

// serveConn serves one connection and closes it.
func (s *Server) serveConn(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	began := time.Now()
	established := false
	err := s.serve(ctx, conn, began, &established)
	level, reason := slog.LevelInfo, "evictd-kube has disconnected"
	switch {
	case errors.Is(err, net.ErrClosed) && errors.Is(context.Cause(ctx), errReplaced):
		level, reason = slog.LevelWarn, errReplaced.Error()
	case errors.Is(err, net.ErrClosed) && ctx.Err() != nil:
		reason = "evictd stops"
	case errors.Is(err, io.EOF), errors.Is(err, unix.EPIPE), errors.Is(err, unix.ECONNRESET):
	case err != nil:
		level, reason = slog.LevelWarn, printable(err.Error())
	}
	s.Facts.disconnect(began, reason)
	if level == slog.LevelInfo && !established {
		return
	}
	if skipped, ok := s.ended.Allow(time.Now()); ok {
		s.Log.Log(ctx, level, "session with evictd-kube ended; facts are kept", "reason", reason, "not_logged", skipped)
	}
}

// serve exchanges hellos and applies messages until one fails.
func (s *Server) serve(ctx context.Context, conn net.Conn, began time.Time, established *bool) error {
	if !s.throttle(ctx, sessionSize) {
		return net.ErrClosed
	}
	lines := newLineReader(conn, maxPodSize)
	if err := conn.SetReadDeadline(time.Now().Add(helloTimeout)); err != nil {
		return err
	}
	line, err := lines.next()
	if err != nil {
		return err
	}
	hello, err := decodeHello(line)
	var version *VersionError
	if err != nil && !errors.As(err, &version) {
		return err
	}
	// A peer of another version recognizes that by this hello.
	now := time.Now()
	if err := send(conn, &Message{Hello: &Hello{
		Version: Version, Software: s.Software, Lines: s.lines.left(lineBurst, lineRate, now), Bytes: s.decoded.left(decodeBurst, decodeRate, now),
	}}); err != nil {
		return err
	}
	if version != nil {
		return version
	}
	s.Facts.connect(hello, began)
	*established = true
	if skipped, ok := s.connected.Allow(began); ok {
		s.Log.Info("evictd-kube has connected", "software", printable(hello.Software), "node", printable(hello.Node), "not_logged", skipped)
	}
	t := session{Server: s, out: newOutbox()}
	return t.run(ctx, conn, lines)
}

// decodedSize returns as how many bytes a line counts.
func decodedSize(line []byte) int {
	return 2*len(line) + bytes.Count(line, []byte(","))*elementSize
}

// throttle counts a line, and waits if the peer sends faster than it may. It returns false if
// ctx, of the session, ends: the line is then not decoded, and does not count.
func (s *Server) throttle(ctx context.Context, size int) bool {
	now := time.Now()
	wait := max(s.lines.take(1, lineBurst, lineRate, now), s.decoded.take(size, decodeBurst, decodeRate, now))
	if wait == 0 || sleep(ctx, wait) {
		return true
	}
	s.decoded.spent = max(0, s.decoded.spent-float64(size))
	return false
}

// sleep waits and reports whether ctx has not ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
