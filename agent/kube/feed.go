package kube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"
)

const (
	// dialTimeout bounds one attempt to connect.
	dialTimeout = 5 * time.Second
	// The back-off between attempts to connect. evictd listens again within a second after
	// a restart, and a connect to a unix socket is cheap.
	firstBackoff, longestBackoff = 100 * time.Millisecond, 5 * time.Second
	// versionBackoff is the back-off after a session with another version: an upgrade
	// takes minutes.
	versionBackoff = 30 * time.Second
	// sendInterval is the time between two transfers of changes: several changes of one
	// pod within it are sent once.
	sendInterval = 100 * time.Millisecond
)

// Feed is evictd-kube's side of the protocol: it keeps the facts about all pods of the node
// and sends them to evictd. The methods are safe for concurrent use.
type Feed struct {
	Node     string
	Software string
	Log      *slog.Logger
	// Orders carries out evictd's orders. It is set before Run; nil if evictions are not
	// reported.
	Orders OrderHandler

	mu        sync.Mutex
	lines     map[string][]byte // the facts, by UID; nil before the first list
	dirty     map[string]bool   // UIDs that changed since they were sent
	sendList  bool              // the complete list must be sent
	watching  bool
	confirmed time.Time // when the API server last confirmed the facts; zero for never
	failure   string    // why the pods are not watched; "" if they are
	sendState bool      // the state must be sent
	wake      chan struct{}

	cannotReport string          // why evictions can't be reported
	orders       map[string]bool // the IDs of the orders of this session
	reports      []*Report       // answers that are not sent yet
	reported     chan struct{}   // reports has some
}

// NewFeed returns a Feed without facts.
func NewFeed(node, software string, log *slog.Logger) *Feed {
	return &Feed{
		Node: node, Software: software, Log: log, dirty: map[string]bool{}, wake: make(chan struct{}, 1),
		cannotReport: "evictd-kube has not looked at its rights yet", reported: make(chan struct{}, 1),
	}
}

// Replace replaces all facts by the complete list of the node's pods.
func (f *Feed) Replace(pods []*Pod) {
	lines := make(map[string][]byte, len(pods))
	for _, p := range pods {
		if line := f.line(p); line != nil {
			lines[p.UID] = line
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lines == nil || !maps.EqualFunc(f.lines, lines, bytes.Equal) {
		f.lines, f.sendList = lines, true
	}
	f.notify()
}

// Put adds or replaces the facts about a pod.
func (f *Feed) Put(p *Pod) {
	line := f.line(p)
	f.mu.Lock()
	defer f.mu.Unlock()
	if line == nil || f.lines == nil || bytes.Equal(f.lines[p.UID], line) {
		return
	}
	f.lines[p.UID], f.dirty[p.UID] = line, true
	f.notify()
}

// Remove removes the facts about a pod that has left the API.
func (f *Feed) Remove(uid string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.lines[uid]; !ok {
		return
	}
	delete(f.lines, uid)
	f.dirty[uid] = true
	f.notify()
}

// Confirm records that the API server confirmed the facts at a time.
func (f *Feed) Confirm(at time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if at.After(f.confirmed) {
		f.confirmed = at
	}
	if !f.watching {
		f.watching, f.failure, f.sendState = true, "", true
		f.notify()
	}
}

// Fail records why the pods can't be watched.
func (f *Feed) Fail(why string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.watching && f.failure == why {
		return
	}
	f.watching, f.failure, f.sendState = false, why, true
	f.notify()
}

// line encodes a pod; nil if that fails, which is logged.
func (f *Feed) line(p *Pod) []byte {
	line, err := encodePod(p)
	if err != nil {
		f.Log.Error("could not encode the facts about a pod; evictd gets none", "pod", p.key(), "error", err)
		return nil
	}
	return line
}

func (f *Feed) notify() { wakeUp(f.wake) }

// Run connects to evictd's socket and sends the facts and their changes. It connects again
// after each failure, until ctx ends, and returns nil.
func (f *Feed) Run(ctx context.Context, socket string) error {
	backoff, last := firstBackoff, ""
	for ctx.Err() == nil {
		began := time.Now()
		err := f.session(ctx, socket)
		if ctx.Err() != nil {
			break
		}
		if time.Since(began) > longestBackoff {
			backoff, last = firstBackoff, "" // the session was established: log how it ended
		}
		var version *VersionError
		if errors.As(err, &version) {
			backoff = versionBackoff
		}
		if text := err.Error(); text != last {
			f.Log.Warn("no session with evictd; trying again", "socket", socket, "error", printable(text))
			last = text
		}
		if !sleep(ctx, backoff/2+rand.N(backoff/2)) {
			break
		}
		backoff = min(2*backoff, max(longestBackoff, backoff))
	}
	return nil
}

// session connects, and sends until that fails or ctx ends.
func (f *Feed) session(ctx context.Context, socket string) error {
	dialer := net.Dialer{Timeout: dialTimeout}
	conn, err := dialer.DialContext(ctx, "unix", socket)
	if err != nil {
		return fmt.Errorf("%w: is evictd running, and is kube.uid in its configuration this process's user ID?", err)
	}
	return f.serve(ctx, conn)
}

// serve sends until that fails or ctx ends, and closes the connection.
func (f *Feed) serve(ctx context.Context, conn net.Conn) error {
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if err := send(conn, &Message{Hello: &Hello{Version: Version, Software: f.Software, Node: f.Node}}); err != nil {
		return err
	}
	lines := newLineReader(conn, maxLine)
	if err := conn.SetReadDeadline(time.Now().Add(helloTimeout)); err != nil {
		return err
	}
	line, err := lines.next()
	if err != nil {
		return fmt.Errorf("evictd did not answer: %w: is kube.uid in its configuration this process's user ID?", err)
	}
	hello, err := decodeHello(line)
	if err != nil {
		return err
	}
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	f.Log.Info("connected to evictd", "software", printable(hello.Software))
	f.resetOrders()
	answers := make(chan error, 1)
	go func() { answers <- f.answers(lines) }()
	err = f.sendAll(ctx, conn, answers)
	conn.Close()
	if answersErr := <-answers; err == nil {
		err = answersErr
	}
	return err
}

// answers reads evictd's messages until that fails.
func (f *Feed) answers(lines *lineReader) error {
	for {
		line, err := lines.next()
		if errors.Is(err, io.EOF) {
			return errors.New("evictd has closed the connection")
		}
		if err != nil {
			return err
		}
		m, err := decode(line)
		if err == nil {
			err = f.apply(m)
		}
		if err != nil {
			return err
		}
	}
}

// apply applies a message of evictd.
func (f *Feed) apply(m *Message) error {
	switch {
	case m.Resend != nil:
		f.resend()
	case m.Order != nil:
		return f.order(m.Order)
	case m.Withdraw != nil:
		f.withdraw(m.Withdraw.ID)
	case m.Accepted != nil:
		f.Log.Info("evictd accepted the list of pods", "pods", m.Accepted.Pods, "refused", len(m.Accepted.Refused))
		for _, r := range m.Accepted.Refused[:min(len(m.Accepted.Refused), maxNamed)] {
			f.Log.Warn("evictd refused facts about a pod", "pod", printable(r.Pod), "reason", printable(r.Why))
		}
	default:
		return errors.New("a message that only evictd-kube sends")
	}
	return nil
}

// resend sends the complete list again.
func (f *Feed) resend() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sendList = f.lines != nil
	f.notify()
}

// sendAll sends the state, the complete list, and then changes, at most every sendInterval. It
// sends answers to orders at once. It returns nil if answers has an error.
func (f *Feed) sendAll(ctx context.Context, conn net.Conn, answers chan error) error {
	f.mu.Lock()
	f.sendList, f.sendState = f.lines != nil, true
	f.mu.Unlock()
	states, pause := time.NewTicker(StateInterval), time.NewTimer(sendInterval)
	defer states.Stop()
	defer pause.Stop()
	var lists uint64
	var wake chan struct{} // f.wake, or nil until sendInterval after the last changes
	send := func() error {
		batch, err := f.batch(&lists)
		if err != nil {
			return err
		}
		wake = nil
		pause.Reset(sendInterval)
		return f.writeAll(conn, batch)
	}
	err := send()
	for err == nil {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-answers:
			answers <- err
			return nil
		case <-f.reported:
			err = f.writeReports(conn)
		case <-pause.C:
			wake = f.wake
		case <-wake:
			err = send()
		case <-states.C:
			f.mu.Lock()
			f.sendState = true
			f.mu.Unlock()
			err = send()
		}
	}
	return err
}

// writeAll writes lines, and answers to orders between them.
func (f *Feed) writeAll(conn net.Conn, batch [][]byte) error {
	for lines := range slices.Chunk(batch, chunk) {
		if err := write(conn, lines); err != nil {
			return err
		}
		if err := f.writeReports(conn); err != nil {
			return err
		}
	}
	return nil
}

// batch returns the lines that must be sent.
func (f *Feed) batch(lists *uint64) (batch [][]byte, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	add := func(m *Message) {
		line, e := encode(m)
		batch, err = append(batch, line), errors.Join(err, e)
	}
	if f.sendList {
		*lists++
		add(&Message{List: &ListID{*lists}})
		for _, uid := range slices.Sorted(maps.Keys(f.lines)) {
			batch = append(batch, f.lines[uid])
		}
		add(&Message{Listed: &ListID{*lists}})
		f.sendList = false
		clear(f.dirty)
	}
	for uid := range f.dirty {
		if line, ok := f.lines[uid]; ok {
			batch = append(batch, line)
		} else {
			add(&Message{Gone: &Gone{uid}})
		}
	}
	clear(f.dirty)
	if f.sendState {
		s := &State{Connected: f.watching, AgeMilliseconds: -1, Error: printable(f.failure), CannotReport: printable(f.cannotReport)}
		if f.Orders == nil {
			s.CannotReport = "this evictd-kube does not report evictions"
		}
		if !f.confirmed.IsZero() {
			s.AgeMilliseconds = time.Since(f.confirmed).Milliseconds()
		}
		add(&Message{State: s})
		f.sendState = false
	}
	return batch, err
}
