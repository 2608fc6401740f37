package selffence

import (
	"cmp"
	"time"
)

// Step decides what to do now, the time since the boot.
func Step(s State, set Settings, in Inputs, now time.Duration) (State, Orders) {
	var o Orders
	answered := s.accept(in.Accepted)
	if set.Peers && in.ListNodes <= s.PeerNodes {
		s.PeersUntil = max(s.PeersUntil, min(in.PeersUntil, now+PeersValid))
	}
	if s.Phase == Preparing {
		s.takeOpened(in, now)
	}
	switch {
	case in.Stop && s.Phase == Preparing:
		s.Phase = Disarmed
	case in.Stop && s.Phase == Armed:
		s.Phase, s.next, s.withdrawal = Withdrawing, now, s.Number+1
	case s.Phase == Withdrawing && answered >= s.withdrawal:
		s.Phase, o.Disarm = Disarmed, true
	}
	until := s.feedUntil(set)
	switch s.Phase {
	case Disarmed:
		s.requests = nil
		return s, o
	case Preparing:
		if o.Open = now < until; o.Open {
			o.FeedUntil = until // opening it feeds it
		}
	case Armed, Withdrawing:
		o.FeedUntil = until
	}
	if now >= s.next && !o.Open {
		o.Request, o.Armed = true, s.Phase == Armed
		if set.Peers {
			// Without a list, as after a start of evictd or evictd-kube, that of the last adverts stays in use.
			o.PeerNodes = cmp.Or(in.ListNodes, s.PeerNodes)
		}
		o.Number = s.request(now, o.PeerNodes)
		s.next = now + set.Renew
	}
	o.Next = s.next
	return s, o
}

// takeOpened notes whether the device could be opened.
func (s *State) takeOpened(in Inputs, now time.Duration) {
	switch {
	case in.Opened:
		s.Phase, s.next = Armed, now
	case in.OpenFailed:
		s.HasAccepted, s.next = false, now+openRetry
		if !s.prepared { // an earlier run may have left an armed advert
			s.next = now
		}
	}
}

// feedUntil returns until when feeding is allowed, zero for never. A majority of nodes allows nothing to a node of
// which no advert was accepted in this boot.
func (s *State) feedUntil(set Settings) time.Duration {
	switch {
	case !s.HasAccepted:
		return 0
	case !set.Peers:
		return s.Accepted + set.FeedGap
	}
	return max(s.Accepted+set.FeedGap, s.PeersUntil)
}

// ByPeers reports whether feeding is allowed now only because of a majority of nodes.
func (s *State) ByPeers(set Settings, now time.Duration) bool {
	return now >= s.Accepted+set.FeedGap && now < s.feedUntil(set)
}

// accept notes that an advert was accepted, and returns its number if it was requested by this run, else 0.
func (s *State) accept(number uint64) uint64 {
	for i, r := range s.requests {
		if r.number == number && number != 0 {
			s.requests = append([]request(nil), s.requests[i+1:]...)
			s.Accepted, s.HasAccepted = max(s.Accepted, r.at), true
			s.prepared = true // the first request of a run is not armed
			s.PeerNodes = r.nodes
			for _, later := range s.requests { // the API server may have one of them
				s.PeerNodes = min(s.PeerNodes, later.nodes)
			}
			return number
		}
	}
	return 0
}

// request adds a request. Numbers begin at the milliseconds since the boot, so that a run that has lost its state does
// not use one again.
func (s *State) request(now time.Duration, nodes int) uint64 {
	s.PeerNodes = min(s.PeerNodes, nodes)
	s.Number = max(s.Number+1, uint64(now.Milliseconds()))
	requests := append([]request(nil), s.requests...)
	if len(requests) == maxRequests {
		requests = requests[1:]
	}
	s.requests = append(requests, request{s.Number, now, nodes})
	return s.Number
}
