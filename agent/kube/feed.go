package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/evictd/evictd/agent/selffence"
)

const (
	// dialTimeout bounds one attempt to connect.
	dialTimeout = 5 * time.Second
	// The back-off between attempts to connect. evictd listens again within a second after
	// a restart, and a connect to a unix socket is cheap.
	firstBackoff, longestBackoff = 100 * time.Millisecond, 5 * time.Second
	// lastingSession is how long a session lasts after which the back-off begins again: two
	// evictd-kube end each other's sessions at the pace of the back-off.
	lastingSession = 2 * longestBackoff
	// versionBackoff is the back-off after a session with another version: an upgrade
	// takes minutes.
	versionBackoff = 30 * time.Second
	// ordersKept is how long orders are carried out without a session. An evictd that restarts
	// is back within seconds.
	ordersKept = time.Minute
)

// Feed is evictd-kube's side of the protocol: it keeps the facts about all pods of the node
// and sends them to evictd. The methods are safe for concurrent use.
type Feed struct {
	NodeName string
	Software string
	Log      *slog.Logger
	// Orders carries out evictd's orders. It is set before Run; nil if evictions are not
	// reported.
	Orders OrderHandler
	// Node maintains the conditions and taints of the Node object. It is set before Run; nil if
	// they are not maintained.
	Node NodeHandler
	// Marks writes the marks of the Node object. It is set before Run; nil if they are not written.
	Marks MarksHandler
	// Peers returns how many nodes cannot reach the API server. It is set before Run; nil if the others are not asked.
	Peers func() selffence.Count
	// KubeletReader reads the kubelet's configuration. It is set before Run; nil if it is not read.
	KubeletReader KubeletReader

	mu        sync.Mutex
	queue     queue
	watching  bool
	confirmed time.Time // when the API server last confirmed the facts; zero for never
	failure   string    // why the pods are not watched; "" if they are
	sendState bool      // the state must be sent
	wake      chan struct{}
	dropped   LogLimiter

	cannotReport string          // why evictions can't be reported
	orders       map[string]bool // the IDs of the orders of this session
	reports      []*Report       // answers that are not sent yet
	nodeState    uint64          // the number of the newest NodeState of this session; 0 for none
	nodeReport   *NodeReport     // is not sent yet
	marksReport  *MarksReport    // is not sent yet
	reported     chan struct{}   // reports has some, or nodeReport or marksReport is set

	nodeMu sync.Mutex // calls of Node
	stated time.Time  // when evictd last sent a NodeState, or Run began
	stale  bool       // the NodeState was withdrawn since

	kubelet *KubeletConfiguration // to be sent; nil for none

	affinity AffinityAdmission // nil if pods are not rejected
}

// NewFeed returns a Feed without facts.
func NewFeed(node, software string, log *slog.Logger) *Feed {
	return &Feed{
		NodeName: node, Software: software, Log: log, queue: newQueue(), wake: make(chan struct{}, 1),
		cannotReport: rightsUnknown, reported: make(chan struct{}, 1),
	}
}

// Replace replaces all facts by the complete list of the node's pods.
func (f *Feed) Replace(pods []*Pod) {
	uids := make(map[string]bool, len(pods))
	for _, p := range pods {
		uids[p.UID] = true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.queue.complete {
		f.queue.complete, f.queue.sendList = true, true
	}
	for uid := range f.queue.pods {
		if !uids[uid] {
			f.queue.remove(uid)
		}
	}
	for _, started := range []bool{true, false} {
		for _, p := range pods {
			if p.Started == started {
				f.put(p)
			}
		}
	}
	f.notify()
}

// Put adds or replaces the facts about a pod.
func (f *Feed) Put(p *Pod) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.queue.complete {
		f.put(p)
		f.notify()
	}
}

// put puts the facts about a pod into the queue. Failures are logged.
func (f *Feed) put(p *Pod) {
	line, err := encodePod(p)
	if err != nil {
		f.Log.Error("could not encode the facts about a pod; evictd gets none", "pod", p.key(), "error", err)
		return
	}
	if f.queue.put(p.UID, line, p.Started) {
		if !p.Deleted.IsZero() {
			f.queue.expedite(p.UID)
		}
		return
	}
	if skipped, ok := f.dropped.Allow(time.Now()); ok {
		f.Log.Warn("no room for the facts about a pod; evictd gets none", "pod", p.key(), "pods", maxQueued, "not_logged", skipped)
	}
}

// Remove removes the facts about a pod that has left the API.
func (f *Feed) Remove(uid string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.queue.remove(uid)
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

// SendState sends the state soon. It never blocks.
func (f *Feed) SendState() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sendState = true
	f.notify()
}

func (f *Feed) notify() { wakeUp(f.wake) }

// Run connects to evictd's socket and sends the facts and their changes. It connects again
// after each failure, until ctx ends. It withdraws the orders and the NodeState when there was no
// session for ordersKept.
func (f *Feed) Run(ctx context.Context, socket string) {
	f.run(ctx, socket, func() (bool, error) { return f.session(ctx, socket) })
}

// run runs sessions until ctx ends.
func (f *Feed) run(ctx context.Context, socket string, session func() (established bool, err error)) {
	backoff, last := firstBackoff, ""
	ended := time.Now() // when the last session ended, or the start; zero if its orders are withdrawn
	f.stated = ended
	for ctx.Err() == nil {
		began := time.Now()
		established, err := session()
		if ctx.Err() != nil {
			break
		}
		if established {
			last, ended = "", time.Now() // log how it ended
			backoff = min(backoff, longestBackoff)
			if ended.Sub(began) >= lastingSession {
				backoff = firstBackoff
			}
		}
		if !ended.IsZero() && time.Since(ended) >= ordersKept {
			ended = time.Time{}
			f.forget()
		}
		var version *VersionError
		if errors.As(err, &version) {
			backoff = versionBackoff
		}
		if text := err.Error(); text != last {
			f.Log.Warn("no session with evictd; trying again", "socket", socket, "error", printable(text))
			last = text
		}
		wait := backoff/2 + rand.N(backoff/2)
		if !ended.IsZero() {
			wait = min(wait, time.Until(ended.Add(ordersKept)))
		}
		if !sleep(ctx, wait) {
			break
		}
		backoff = min(2*backoff, max(longestBackoff, backoff))
	}
}

// session connects, and sends until that fails or ctx ends. established reports whether evictd
// has answered.
func (f *Feed) session(ctx context.Context, socket string) (established bool, err error) {
	dialer := net.Dialer{Timeout: dialTimeout}
	conn, err := dialer.DialContext(ctx, "unix", socket)
	if err != nil {
		return false, fmt.Errorf("%w: is evictd running, and is kube.uid in its configuration this process's user ID?", err)
	}
	return f.serve(ctx, conn)
}

// serve sends until that fails or ctx ends, and closes the connection. established reports
// whether evictd has answered.
func (f *Feed) serve(ctx context.Context, conn net.Conn) (established bool, err error) {
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	lines := newLineReader(conn, maxLine)
	hello, err := f.greet(conn, lines)
	if err != nil {
		return false, err
	}
	f.Log.Info("connected to evictd", "software", printable(hello.Software))
	f.beginSession()
	defer f.endMarks()
	answers := make(chan error, 1)
	go func() { answers <- f.answers(lines) }()
	err = f.sendAll(ctx, conn, hello, answers)
	conn.Close()
	if answersErr := <-answers; err == nil {
		err = answersErr
	}
	return true, err
}

// greet exchanges hellos.
func (f *Feed) greet(conn net.Conn, lines *lineReader) (*Hello, error) {
	if err := send(conn, &Message{Hello: &Hello{Version: Version, Software: f.Software, Node: f.NodeName}}); err != nil {
		return nil, err
	}
	if err := conn.SetReadDeadline(time.Now().Add(helloTimeout)); err != nil {
		return nil, err
	}
	line, err := lines.next()
	if err != nil {
		return nil, fmt.Errorf("evictd did not answer: %w: is kube.uid in its configuration this process's user ID?", err)
	}
	hello, err := decodeHello(line)
	if err != nil {
		return nil, err
	}
	return hello, conn.SetReadDeadline(time.Time{})
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
		f.ask(func(q *queue) { q.sendList = q.complete })
	case m.Want != nil:
		f.ask(func(q *queue) { q.want(m.Want.UIDs) })
	case m.Order != nil:
		return f.order(m.Order)
	case m.Withdraw != nil:
		f.withdraw(m.Withdraw.ID)
	case m.NodeState != nil:
		return f.setNode(m.NodeState)
	case m.NodeMarks != nil:
		return f.setMarks(m.NodeMarks)
	case m.ReadKubelet != nil:
		return f.readKubelet(m.ReadKubelet)
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

// ask records in the queue what evictd asks for.
func (f *Feed) ask(record func(*queue)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	record(&f.queue)
	f.notify()
}

// sendAll sends the state and the complete list, and then changes. It sends answers to orders
// at once. It returns nil if answers has an error.
func (f *Feed) sendAll(ctx context.Context, conn net.Conn, hello *Hello, answers chan error) error {
	f.mu.Lock()
	f.queue.begin(hello.Lines, hello.Bytes, time.Now())
	f.sendState = true
	f.mu.Unlock()
	states := time.NewTicker(StateInterval)
	defer states.Stop()
	f.expireNode(time.Now()) // sessions may all be shorter than an interval
	for {
		batch, wait, err := f.next(time.Now())
		if err != nil {
			return err
		}
		if err := errors.Join(write(conn, batch), f.writeReports(conn)); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-answers:
			answers <- err
			return nil
		case <-f.reported:
			if err := f.writeReports(conn); err != nil {
				return err
			}
		case <-f.wake:
		case <-time.After(wait):
		case now := <-states.C:
			f.expireNode(now)
			f.mu.Lock()
			f.sendState = true
			f.mu.Unlock()
		}
	}
}

// next returns the lines to write now, and the time until there may be others. It encodes the
// state when it is written, so that its age is right.
func (f *Feed) next(now time.Time) (batch [][]byte, wait time.Duration, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sendState {
		f.sendState = false
		s := &State{Connected: f.watching, AgeMilliseconds: -1, Error: printable(f.failure), CannotReport: printable(f.cannotReport), AffinityAdmission: f.affinityNumbers()}
		if f.Peers != nil {
			s.Peers = new(f.Peers())
		}
		if f.Orders == nil {
			s.CannotReport = "this evictd-kube does not report evictions"
		}
		if !f.confirmed.IsZero() {
			s.AgeMilliseconds = now.Sub(f.confirmed).Milliseconds()
		}
		if batch, err = f.first(batch, &Message{State: s}, now); err != nil {
			return nil, 0, err
		}
	}
	if f.kubelet != nil {
		if batch, err = f.first(batch, &Message{Kubelet: f.kubelet}, now); err != nil {
			return nil, 0, err
		}
		f.kubelet = nil
	}
	lines, wait, err := f.queue.next(now)
	return append(batch, lines...), wait, err
}

// first adds a message that goes out in front of all facts, and at once if f.notify follows.
// It does not wait for the pace, but counts.
func (f *Feed) first(batch [][]byte, m *Message, now time.Time) ([][]byte, error) {
	line, err := encode(m)
	if err != nil {
		return nil, err
	}
	f.queue.pace.take(decodedSize(line), now)
	return append(batch, line), nil
}
