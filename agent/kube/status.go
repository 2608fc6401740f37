package kube

import "time"

// peer is the evictd-kube of the session.
type peer struct {
	connected bool
	listed    bool      // it has sent a complete list
	listedAt  time.Time // when the first list ended
	ageKnown  bool      // it has sent the age of the facts
	stated    bool      // it has sent a state
	hello     Hello
	since     time.Time
	err       string // why there is no session, or why the last one ended
}

// setState stores evictd-kube's state.
func (f *Facts) setState(s *State, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.state, f.seen = *s, now
	f.state.Error, f.state.CannotReport = printable(s.Error), printable(s.CannotReport)
	f.peer.stated = true
	f.noteCannotReport()
	f.confirm()
	f.prune(now) // regularly
}

// confirm updates the age of the facts from the state, after a complete list. Within a
// session the age of the API server's last confirmation only falls. The first age of a
// session replaces an earlier one: that one may be of a wall clock that was set since.
func (f *Facts) confirm() {
	age := f.state.AgeMilliseconds
	if !f.peer.listed || age < 0 || age > int64(maxAge/time.Millisecond) {
		return
	}
	if at := f.seen.Add(-time.Duration(age) * time.Millisecond); !f.peer.ageKnown || at.After(f.asOf) {
		f.asOf, f.peer.ageKnown = at, true
	}
}

// maxAge is the largest valid age: a longer time would overflow.
const maxAge = 100 * 365 * 24 * time.Hour

// connect begins a session.
func (f *Facts) connect(hello *Hello, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.peer = peer{connected: true, hello: *hello, since: now}
	// The numbers stay until the first state: metrics would else fall to 0 and rise again.
	f.state, f.seen = State{AgeMilliseconds: -1, AffinityAdmission: f.state.AffinityAdmission}, now
	for uid, p := range f.room.unknown {
		p.askedAt = time.Time{}
		f.room.unknown[uid] = p
	}
}

// disconnect ends the session that began at since, or reports a connection that did
// not become one.
func (f *Facts) disconnect(since time.Time, why string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.peer.connected && !f.peer.since.Equal(since) {
		return // another session has begun
	}
	f.peer.connected, f.peer.listed, f.peer.err = false, false, printable(why)
}

// Status describes the session and the facts.
type Status struct {
	// Connected is set while evictd-kube has a session, since Since. Software is its
	// version and Node the node that it reads.
	Connected bool
	Since     time.Time
	Software  string
	Node      string
	// Watching is set while evictd-kube watches the API server.
	Watching bool
	// Error is the reason if it is not connected or does not watch, or why its facts are
	// doubtful.
	Error string
	// AsOf is when the API server last confirmed the facts; zero if unknown.
	AsOf time.Time
	// Pods is the number of pods with facts, and Used that of running pods whose facts
	// agree with the runtime.
	Pods, Used int
	// Refusals counts the refused facts since the start, and Refused has the first
	// maxNamed that are refused now.
	Refusals uint64
	Refused  []Refusal
	// CannotReport is what [Facts.CannotReport] returns.
	CannotReport string
	// AffinityAdmission has the numbers that evictd-kube last sent; nil if it rejects no pods.
	AffinityAdmission AffinityAdmission
}

// Status returns the present status.
func (f *Facts) Status(now time.Time) Status {
	f.mu.Lock()
	s := Status{
		Connected: f.peer.connected, Software: f.peer.hello.Software, Node: f.peer.hello.Node,
		AsOf: f.asOf, Pods: len(f.pods), Refusals: f.count, Error: f.peer.err,
		AffinityAdmission: f.state.AffinityAdmission,
	}
	if f.peer.connected {
		s.Since, s.Watching, s.Error = f.peer.since, f.state.Connected, f.state.Error
		if s.Error == "" && f.lacksAll(now) {
			s.Error = doubtful
		}
	}
	for _, known := range f.pods {
		if known.refused == "" && known.listed(now) {
			s.Used++
		}
	}
	first := f.firstRefused()
	f.mu.Unlock()
	s.Software, s.Node, s.Refused, s.CannotReport = printable(s.Software), printable(s.Node), shown(first), f.CannotReport()
	return s
}

// FactsDescription describes the facts about a pod.
type FactsDescription struct {
	Owner   string    // kind/name, or none
	AsOf    time.Time // when the API server last confirmed them; zero if unknown
	Refused string    // why the facts are not used; "" if they are
	Reduced bool      // see Pod.Reduced
	Gone    bool      // the pod is no longer in the API
}

// Describe returns a description of the facts about a pod; ok is false if there are none.
func (f *Facts) Describe(uid string) (_ FactsDescription, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	known := f.pods[uid]
	if known == nil {
		r, refused := f.refused[printable(uid)]
		return FactsDescription{Refused: r.why}, refused
	}
	return FactsDescription{
		Owner: printable(known.pod.Owner.text()), AsOf: f.asOf, Refused: printable(known.refused), Reduced: known.pod.Reduced, Gone: known.gone,
	}, true
}

// CannotReport returns why evictd-kube may not report evictions, as it last said after a
// complete list, also to an earlier evictd; "" if it may.
func (f *Facts) CannotReport() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cannotReport == nil {
		return "evictd-kube has never connected"
	}
	return *f.cannotReport
}

// CanReportKnown reports whether CannotReport is what evictd-kube has found out about its rights, now
// or earlier.
func (f *Facts) CanReportKnown() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.cannotReport != nil && *f.cannotReport != rightsUnknown
}

// noteCannotReport uses what the state says about reports, after a complete list.
func (f *Facts) noteCannotReport() {
	if !f.peer.listed || !f.peer.stated || f.cannotReport != nil && *f.cannotReport == f.state.CannotReport {
		return
	}
	if f.cannotReport != nil && f.state.CannotReport == rightsUnknown {
		return // what an earlier evictd-kube has said counts until this one knows
	}
	f.canReportAgain = f.cannotReport != nil && f.state.CannotReport == ""
	f.cannotReport = new(f.state.CannotReport)
	f.version++
}

// takeCanReportAgain reports whether evictd-kube can report evictions since the last call, and
// could not before.
func (f *Facts) takeCanReportAgain() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	again := f.canReportAgain
	f.canReportAgain = false
	return again
}
