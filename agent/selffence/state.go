package selffence

import "time"

// Phase is how far self-fencing is.
type Phase string

const (
	// Preparing is the phase before the device is open: an advert that is not armed is requested.
	Preparing Phase = "preparing"
	// Armed is the phase in which the device is open, and armed adverts are requested.
	Armed Phase = "armed"
	// Withdrawing is the phase of a stop: the device is open until an advert that is not armed is accepted.
	Withdrawing Phase = "withdrawing"
	// Disarmed is the phase after that. It is final.
	Disarmed Phase = "disarmed"
)

// State is the state of self-fencing. Its zero value is not valid, see [Restore].
type State struct {
	Phase Phase `json:"phase"`
	// Number is that of the newest advert that was requested.
	Number uint64 `json:"number"`
	// Accepted is when the newest accepted advert was requested; not valid without HasAccepted.
	Accepted    time.Duration `json:"accepted"`
	HasAccepted bool          `json:"hasAccepted"`
	// PeersUntil is until when feeding is allowed because of a majority of nodes; zero if it never was.
	PeersUntil time.Duration `json:"peersUntil,omitzero"`
	// PeerNodes is the largest list of nodes whose majority allows feeding: no larger than that of any advert that the
	// API server may have ([Advert.PeerNodes]).
	PeerNodes int `json:"peerNodes,omitempty"`

	// prepared is set when an advert of this run was accepted.
	prepared bool
	// requests are the adverts without an answer, the oldest first.
	requests []request
	// next is when the next advert is requested.
	next time.Duration
	// withdrawal is the number of the first advert of the phase Withdrawing.
	withdrawal uint64
}

// request is an advert that was requested and is not known to be accepted.
type request struct {
	number uint64
	at     time.Duration
	nodes  int // [Advert.PeerNodes]
}

// maxRequests limits the adverts whose answer is awaited; the oldest are dropped, which shortens the permission only.
const maxRequests = 16

// openRetry is how long after a failure to open the device the next advert is requested.
const openRetry = time.Minute

// Settings are the times of self-fencing.
type Settings struct {
	// FeedGap is for how long after the request of an accepted advert feeding is allowed.
	FeedGap time.Duration
	// Renew is how often an advert is requested.
	Renew time.Duration
	// Peers is set if feeding is allowed because of a majority of nodes, too.
	Peers bool
}

// Inputs are what happened since the last step.
type Inputs struct {
	// Accepted is the number of an advert that the API server has accepted, 0 if there is none.
	Accepted uint64
	// PeersUntil is until when a majority of nodes allows feeding ([Count.Until]); zero without news of that.
	PeersUntil time.Duration
	// ListNodes is how many nodes the list of evictd-kube has, which PeersUntil is of, too; 0 without a list.
	ListNodes int
	// Opened is set once after the device was opened, OpenFailed after it could not be.
	Opened, OpenFailed bool
	// Stop is set from when self-fencing is to end.
	Stop bool
}

// Orders are what is to be done, in the order of the fields.
type Orders struct {
	// Disarm is set if the device is to be disarmed and closed.
	Disarm bool
	// Open is set if the device is to be opened, which arms and feeds it. The result is an input of the next step.
	Open bool
	// Request is set if an advert is to be requested. It has the number Number and the state Armed.
	Request bool
	Number  uint64
	Armed   bool
	// PeerNodes is that of the advert.
	PeerNodes int
	// FeedUntil is until when the device may be fed: not after that. Zero is never.
	FeedUntil time.Duration
	// Next is when the next step is due.
	Next time.Duration
}

// Restore returns the state after a start. saved is the state that an earlier run of the same boot has saved, nil if
// there is none.
func Restore(saved *State, now time.Duration) State {
	s := State{Phase: Preparing, next: now}
	if saved == nil {
		return s
	}
	s.Number = saved.Number
	switch saved.Phase {
	case Armed, Withdrawing:
		// The device was left armed and the advert may be armed. Feeding goes on under the permission of the earlier run.
		s.Accepted, s.HasAccepted = saved.Accepted, saved.HasAccepted && saved.Accepted <= now
		s.PeersUntil, s.PeerNodes = min(saved.PeersUntil, now+PeersValid), saved.PeerNodes
	}
	return s
}

// LateTimeout is the timeout that a watchdog gets that was fed late: the machine should have been reset by now.
const LateTimeout = MinTimeout

// Late reports whether a feeding at a time was late: the process was stopped after its look at the clock.
func Late(feedUntil, now time.Duration) bool { return now > feedUntil+time.Second }
