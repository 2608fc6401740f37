package kdump

import (
	"net/netip"
	"sync"
	"time"
)

const (
	// Silence ends a session. fence_kdump_send sends every 10 s.
	Silence = 30 * time.Second
	// maxPerSecond bounds the datagrams of one node that are taken in a second.
	maxPerSecond = 10
	// maxDatagrams bounds the count of a session.
	maxDatagrams = 1_000_000
	// refresh is how long the addresses of the nodes are used before they are asked again.
	refresh = 10 * time.Second
)

// Session is what was received from a node without a pause of [Silence].
type Session struct {
	First, Last time.Time
	// Datagrams is how many came, at most a million. Those above 10 in a second are not counted.
	Datagrams int
}

// Result is what became of a datagram.
type Result string

// The results.
const (
	Accepted      Result = "accepted"
	UnknownSender Result = "unknown_sender" // its source is the address of no node, or of two
	Malformed     Result = "malformed"
	Dropped       Result = "dropped" // more than 10 of the node in this second
)

// Results returns all results.
func Results() []Result { return []Result{Accepted, UnknownSender, Malformed, Dropped} }

// entry is a session, and the datagrams of one second.
type entry struct {
	Session
	second time.Time
	used   int
}

// sessions are those of the nodes that exist: senders that are no node have none.
type sessions struct {
	mu        sync.Mutex
	addresses map[netip.Addr]string
	asked     time.Time
	nodes     map[string]*entry
}

// take records a datagram. It reports whether it is the first of a session.
func (s *sessions) take(
	datagram []byte, from netip.Addr, now time.Time, addresses func() map[netip.Addr]string,
) (node string, result Result, first bool) {
	if Parse(datagram) != nil {
		return "", Malformed, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.update(now, addresses)
	node, ok := s.addresses[from.Unmap().WithZone("")]
	if !ok {
		return "", UnknownSender, false
	}
	e := s.nodes[node]
	if e == nil {
		e = &entry{}
		s.nodes[node] = e
	}
	if age := now.Sub(e.second); age < 0 || age >= time.Second {
		e.second, e.used = now, 0
	}
	if e.used++; e.used > maxPerSecond {
		e.used = maxPerSecond
		return node, Dropped, false
	}
	if e.Datagrams == 0 || now.Sub(e.Last) >= Silence {
		e.Session, first = Session{First: now}, true
	}
	e.Last, e.Datagrams = now, min(e.Datagrams+1, maxDatagrams)
	return node, Accepted, first
}

// update asks for the addresses, and forgets the sessions of nodes that have none.
func (s *sessions) update(now time.Time, addresses func() map[netip.Addr]string) {
	if age := now.Sub(s.asked); !s.asked.IsZero() && age >= 0 && age < refresh {
		return
	}
	s.addresses, s.asked = addresses(), now
	exists := make(map[string]bool, len(s.addresses))
	for _, node := range s.addresses {
		exists[node] = true
	}
	for node := range s.nodes {
		if !exists[node] {
			delete(s.nodes, node)
		}
	}
	if s.nodes == nil {
		s.nodes = make(map[string]*entry)
	}
}

// of returns the session of a node, the zero one if there is none.
func (s *sessions) of(node string) Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.nodes[node]; e != nil {
		return e.Session
	}
	return Session{}
}
