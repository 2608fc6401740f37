package kube

import "time"

// NodeHandler maintains the conditions and taints of the Node object. Its method is called by one
// goroutine at a time, and must not block.
type NodeHandler interface {
	// SetNode is called with each NodeState: with the newest at the beginning of each session,
	// and with each later one. The handler calls [Feed.ReportNode] when it has written it, also if
	// there was nothing to write. Between two sessions, and in a session before its first state, it
	// goes on with the state that it has; it starts with none, and leaves the Node as it is. SetNode
	// is called with nil when there was no session for a minute, also since the start, or no
	// NodeState for three minutes: then what evictd has set is stale. The handler must not change s.
	SetNode(s *NodeState)
}

// ReportNode sends the answer to a NodeState soon, or drops it if evictd has not sent that state
// in this session. It never blocks. Only the newest answer is sent.
func (f *Feed) ReportNode(r *NodeReport) {
	answer := &NodeReport{Number: r.Number, Why: printable(r.Why), Refused: r.Refused}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.nodeState == 0 || r.Number > f.nodeState {
		return
	}
	f.nodeReport = answer
	wakeUp(f.reported)
}

// setNode passes on a NodeState.
func (f *Feed) setNode(s *NodeState) error {
	if err := s.check(); err != nil || f.Node == nil {
		return err
	}
	f.mu.Lock()
	f.nodeState = s.Number
	f.mu.Unlock()
	f.nodeMu.Lock()
	defer f.nodeMu.Unlock()
	f.stated, f.stale = time.Now(), false
	f.Node.SetNode(s)
	return nil
}

// expireNode withdraws the NodeState of an evictd that has sent none for stateKept: it repeats it
// while it measures.
func (f *Feed) expireNode(now time.Time) {
	f.nodeMu.Lock()
	defer f.nodeMu.Unlock()
	if f.Node == nil || f.stale || now.Sub(f.stated) < stateKept {
		return
	}
	f.stale = true
	f.Log.Warn("evictd does not say which conditions the node has; those that it has set are withdrawn", "for", now.Sub(f.stated).Round(time.Second).String())
	f.Node.SetNode(nil)
}

// forgetNode withdraws the NodeState of an evictd that is gone.
func (f *Feed) forgetNode() {
	f.nodeMu.Lock()
	defer f.nodeMu.Unlock()
	if f.Node != nil {
		f.stale = true
		f.Node.SetNode(nil)
	}
}

// beginSession withdraws the orders of the last session, and drops its answers.
func (f *Feed) beginSession() {
	f.mu.Lock()
	f.nodeState, f.nodeReport = 0, nil
	f.mu.Unlock()
	f.resetOrders()
}
