package kube

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
)

// MaintainedCondition is a condition that evictd maintains on the Node object, with its type there
// (a key of NodeConditions).
type MaintainedCondition struct {
	Condition signal.Condition
	Type      string
}

// Maintained are the conditions that evictd maintains on the Node object.
var Maintained = [...]MaintainedCondition{
	{signal.MemoryPressure, "EvictdMemoryPressure"},
	{signal.DiskPressure, "EvictdDiskPressure"},
	{signal.PIDPressure, "EvictdPIDPressure"},
	{signal.NodeShutdown, "EvictdNodeShutdown"},
}

// shutdownIndex is the index of signal.NodeShutdown in Maintained.
const shutdownIndex = len(Maintained) - 1

// TaintFor returns the key of the taint that keeps new pods off the node while pods are evicted
// for a cause ([evict.Order]); "" for a cause without a condition: a limit of the pod or
// contention.
func TaintFor(cause string) string {
	condition := signal.NodeShutdown
	if cause != evict.CauseShutdown {
		s, ok := signal.Parse(cause)
		if !ok {
			return ""
		}
		condition = s.Condition()
	}
	for _, m := range Maintained {
		if m.Condition == condition {
			return NodeConditions[m.Type].Taint
		}
	}
	return ""
}

// nodeStatus is the status of a condition of the Node.
type nodeStatus uint8

const (
	notMaintained nodeStatus = iota // it is not in the NodeState
	conditionFalse
	conditionTrue
)

// nodeStatuses has a status for each of Maintained.
type nodeStatuses [len(Maintained)]nodeStatus

// maintainedAny reports whether a condition is in the NodeState.
func (s *nodeStatuses) maintainedAny() bool { return *s != nodeStatuses{} }

// NodeOptions configure a Node.
type NodeOptions struct {
	// Uptime is the present time since the boot, CLOCK_BOOTTIME. The numbers of the states begin
	// at its microseconds, so that they are higher than those of an earlier evictd of this boot,
	// also if that one has saved nothing or the wall clock was set back. evictd-kube keeps no
	// number over a reboot.
	Uptime time.Duration
	Log    *slog.Logger
}

// Node has the conditions that evictd-kube maintains on the Node object. The methods are safe for
// concurrent use. Set never waits for evictd-kube or for I/O.
//
// No state is sent before the first call of Set. Until then evictd-kube leaves the Node as an
// earlier evictd has set it.
type Node struct {
	log     *slog.Logger
	written chan struct{} // the newest state was written

	mu      sync.Mutex
	session *outbox
	// What Set and SetShutdown were last called with. decided is set by the first call of Set.
	decided, dryRun, shutdown bool
	pressure                  nodeStatuses
	stopping                  bool

	state    *NodeState // the newest; nil before the first. It is immutable.
	number   uint64     // of state
	statuses nodeStatuses
	since    [len(Maintained)]time.Time // when the statuses changed
	changed  time.Time                  // when state was made
	// sent are the states that were sent and not reported, the oldest first. The last one may be
	// the newest state.
	sent []sentState
	// dropped is the number of the newest one that was sent and is forgotten without a report.
	dropped uint64
	// reported is the newest state that evictd-kube has reported. why is the reason that its last
	// report gave, failing since when its reports give one, and refused is set if the last one says
	// that the newest state can't be written soon.
	reported  sentState
	why       string
	failing   time.Time
	refused   bool
	measured  time.Time // when Set was last called
	unknown   uint64
	unwritten LogLimiter
	warned    bool // of the newest state
}

// sentState is a NodeState that was sent.
type sentState struct {
	number   uint64
	statuses nodeStatuses
}

// While evictd has measured within measuredLimit, the newest state is sent again every
// repeatInterval; the loop measures every 10 s at the latest. evictd-kube regards what evictd has set
// as stale without a state for stateKept.
const (
	measuredLimit  = 30 * time.Second
	repeatInterval = time.Minute
	stateKept      = 3 * time.Minute
)

// maxSent is how many states that were not reported can be reported later.
const maxSent = 16

// NewNode returns a Node without conditions.
func NewNode(o NodeOptions) *Node {
	return &Node{log: o.Log, written: make(chan struct{}, 1), number: uint64(max(0, o.Uptime.Microseconds()))}
}

// Set sets which conditions the node has, as the last step of the decision has found them. It
// is called after each step; without a change it does nothing. In dry run no condition is
// maintained.
func (n *Node) Set(conditions []signal.Condition, dryRun bool, now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.decided, n.dryRun, n.measured = true, dryRun, time.Now()
	for i := range n.pressure {
		n.pressure[i] = conditionFalse
		if slices.Contains(conditions, Maintained[i].Condition) {
			n.pressure[i] = conditionTrue
		}
	}
	n.update(now)
}

// SetShutdown sets whether evictd stops the pods because the node shuts down.
func (n *Node) SetShutdown(shutdown bool, now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.shutdown = shutdown
	n.update(now)
}

// wanted returns the statuses that the Node should have. An evictd that stops measures nothing
// any more, but a node that shuts down still does.
func (n *Node) wanted() (s nodeStatuses) {
	if n.dryRun {
		return s
	}
	if !n.stopping {
		s = n.pressure
	}
	switch {
	case n.shutdown:
		s[shutdownIndex] = conditionTrue
	case !n.stopping:
		s[shutdownIndex] = conditionFalse
	}
	return s
}

// update makes and sends a new state if the statuses have changed.
func (n *Node) update(now time.Time) {
	want := n.wanted()
	switch {
	case n.state != nil && want == n.statuses:
		return
	case !n.decided && (!n.stopping || n.shutdown): // it is not known whether it is in dry run
		return
	}
	now = now.Round(0).UTC()
	for i := range want {
		if want[i] != n.statuses[i] {
			n.since[i] = now
		}
	}
	n.number++
	n.statuses, n.changed, n.warned, n.refused = want, now, false, false
	n.state = &NodeState{Number: n.number, Conditions: n.conditions(&want), Stopped: n.stopping}
	if n.session != nil {
		n.session.node()
	}
}

// conditions returns statuses as conditions. Those that are not the present ones have no Since.
func (n *Node) conditions(statuses *nodeStatuses) (list []NodeCondition) {
	for i, status := range statuses {
		if status == notMaintained {
			continue
		}
		c := NodeCondition{Type: Maintained[i].Type, Status: status == conditionTrue}
		if status == n.statuses[i] {
			c.Since = n.since[i]
		}
		list = append(list, c)
	}
	return list
}

// attach begins a session: the newest state is sent, and from then on each change.
func (n *Node) attach(session *outbox) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.session = session
	if n.state != nil {
		session.node()
	}
}

// detach ends a session.
func (n *Node) detach(session *outbox) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.session == session {
		n.session = nil
	}
}

// repeat sends the newest state again to a session, if evictd has measured lately.
func (n *Node) repeat(session *outbox, now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.session == session && n.state != nil && now.Sub(n.measured) < measuredLimit {
		session.node()
	}
}

// repeatUntil repeats the newest state every repeatInterval until ctx ends.
func (n *Node) repeatUntil(ctx context.Context, session *outbox) {
	for sleep(ctx, repeatInterval) {
		n.repeat(session, time.Now())
	}
}

// take returns the newest state, which is about to be sent.
func (n *Node) take() *NodeState {
	n.mu.Lock()
	defer n.mu.Unlock()
	if known, _ := n.find(n.number); !known {
		if len(n.sent) == maxSent {
			n.dropped = n.sent[0].number
			n.sent = append(n.sent[:0], n.sent[1:]...)
		}
		n.sent = append(n.sent, sentState{n.number, n.statuses})
	}
	return n.state
}

// find reports whether a state was sent, and returns its index in n.sent; -1 if it was reported.
func (n *Node) find(number uint64) (known bool, at int) {
	if n.reported.number != 0 && number == n.reported.number {
		return true, -1
	}
	at = slices.IndexFunc(n.sent, func(s sentState) bool { return s.number == number })
	return at >= 0, at
}

// report applies a report. It ignores that of a state that was not sent; 0 is none.
func (n *Node) report(r *NodeReport, now time.Time) {
	level, message, args := n.apply(r, now)
	if message != "" {
		n.log.Log(context.Background(), level, message, args...)
	}
}

// apply applies a report, and returns what is to be logged about it.
func (n *Node) apply(r *NodeReport, now time.Time) (level slog.Level, message string, args []any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	known, at := n.find(r.Number)
	forgotten := n.reported.number < r.Number && r.Number <= n.dropped
	if !known && !forgotten && r.Number != 0 {
		n.unknown++
		return 0, "", nil
	}
	if at >= 0 {
		n.reported = n.sent[at]
		n.sent = append(n.sent[:0], n.sent[at+1:]...)
	}
	n.why, n.refused = r.Why, r.Refused
	switch {
	case r.Why == "":
		n.failing = time.Time{}
	case n.failing.IsZero():
		n.failing = now
	}
	if n.current() || n.refused {
		wakeUp(n.written)
	}
	switch {
	case n.current() && r.Why == "":
		if n.warned {
			n.warned = false
			return slog.LevelInfo, "conditions and taints of the Node are written", []any{"after_ms", now.Sub(n.changed).Milliseconds()}
		}
	case r.Why != "":
		if skipped, ok := n.unwritten.Allow(now); ok {
			n.warned = true
			return slog.LevelWarn, "conditions and taints of the Node are not written; evictd-kube tries again", []any{"reason", r.Why, "not_logged", skipped}
		}
	}
	return 0, "", nil
}

// current reports whether the newest state was written.
func (n *Node) current() bool { return n.state != nil && n.reported.number == n.number }

// pending reports whether there is something to write: conditions that the newest state has, or
// that one before it has had.
func (n *Node) pending() bool {
	if n.state == nil || n.current() {
		return false
	}
	return n.statuses.maintainedAny() || n.reported.statuses.maintainedAny() ||
		slices.ContainsFunc(n.sent, func(s sentState) bool { return s.statuses.maintainedAny() })
}

// unwrittenSince returns since when the Node lacks what it should have; zero if it does not.
func (n *Node) unwrittenSince() time.Time {
	if n.pending() && (n.failing.IsZero() || n.changed.Before(n.failing)) {
		return n.changed
	}
	return n.failing
}

// Stop sends the state without conditions, except that the node shuts down, and waits until it
// is written, evictd-kube has answered that it can't be soon, or ctx ends. It does not wait if this
// evictd has had no conditions. The session has to go on.
func (n *Node) Stop(ctx context.Context) {
	n.mu.Lock()
	n.stopping = true
	n.update(time.Now())
	session := n.session
	n.mu.Unlock()
	for n.isPending() {
		select {
		case <-n.written:
			continue
		case <-ctx.Done():
		}
		break
	}
	if session != nil {
		session.flush()
	}
}

func (n *Node) isPending() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.pending() && !n.refused
}

// NodeStatus describes what evictd-kube maintains on the Node object.
type NodeStatus struct {
	// Decided is set once evictd has decided on the conditions. Number is that of the state.
	Decided bool
	Number  uint64
	Wanted  []NodeCondition
	// Written are the conditions that the Node has as evictd-kube last reported; those that are
	// not the wanted ones have no Since. Reported is set once it has reported any.
	Written  []NodeCondition
	Reported bool
	// Unwritten is since when the Node lacks the wanted conditions, taints or heartbeats, or has those
	// of an earlier evictd; zero if it does not. Why is the reason that evictd-kube gave.
	Unwritten time.Time
	Why       string
	// Unknown counts the reports about states that were not sent.
	Unknown uint64
}

// Status returns the present status.
func (n *Node) Status() NodeStatus {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := NodeStatus{Decided: n.state != nil, Reported: n.reported.number != 0, Why: n.why, Unknown: n.unknown}
	if s.Decided {
		s.Number, s.Wanted = n.number, n.conditions(&n.statuses)
	}
	s.Written = n.conditions(&n.reported.statuses)
	s.Unwritten = n.unwrittenSince()
	return s
}
