package selffence

import (
	"errors"
	"fmt"
	"time"
)

const (
	// AskInterval is how often a node whose advert is not accepted asks the others.
	AskInterval = 5 * time.Second
	// AnswerValid is for how long an answer counts, from the question.
	AnswerValid = 10 * time.Second
	// PeersValid is for how long a majority allows feeding, from when it was counted.
	PeersValid = 20 * time.Second
	// MaxListAge is the age at which a list of all nodes is not used any more. No node is fed because of the others for
	// longer.
	MaxListAge = 6 * time.Hour
	// MinNodeAge is the age of a node from which a reader of adverts may count it: it is in each list that is in use.
	// It is longer than MaxListAge and the longest bound together.
	MinNodeAge = MaxListAge + time.Hour
	// MaxNodes limits a list of nodes.
	MaxNodes = 10_000

	// freshSlack is for how much longer than RenewSeconds an advert may be unchanged until its node is counted as cut
	// off by a reader, and unreachableSlack for how much longer the node has no answer when it says that it is cut
	// off.
	freshSlack, unreachableSlack = 15 * time.Second, 60 * time.Second
)

// MinPeerTimes is what FeedGap and twice the timeout must be at least together: others say that they cannot reach the
// API server before the watchdog fires.
const MinPeerTimes = 240 * time.Second

// MinPeerGap is the least FeedGap of a node that asks its peers. An answer and a count allow feeding for AnswerValid and
// PeersValid: the question must be later than what a reader of the advert has seen since it was renewed.
const MinPeerGap = 30 * time.Second

// Fresh returns up to which time without a change a reader that lists each 10 s counts the node as one that reaches the
// API server.
func (a Advert) Fresh() time.Duration {
	return a.Renew() + freshSlack
}

// Renew returns the period of the adverts.
func (a Advert) Renew() time.Duration { return time.Duration(a.RenewSeconds) * time.Second }

// Reach is what a node knows of its way to the API server.
type Reach struct {
	// Votes is set while the node has an armed advert with Peers.
	Votes bool
	// Renew is the period of its adverts.
	Renew time.Duration
	// Unanswered is the time since the last answer of the API server to a request about the advert, since the last
	// write of one was sent, or since the start, whichever was last.
	Unanswered time.Duration
	// Waiting is for how long the newest advert has not been accepted; 0 if it is.
	Waiting time.Duration
}

// Cannot reports whether the node says that it cannot reach the API server.
func (r Reach) Cannot() bool { return r.Votes && r.Unanswered >= r.Renew+unreachableSlack }

// Asks reports whether the node asks the others.
func (r Reach) Asks() bool { return r.Votes && r.Waiting >= AskInterval }

// Count is how many nodes cannot reach the API server.
type Count struct {
	// CannotReach are those that say so, and Nodes are all nodes of the list.
	CannotReach int `json:"cannotReach"`
	Nodes       int `json:"nodes"`
	// ListAge is the age of the list; negative if there is none.
	ListAge time.Duration `json:"listAgeNanoseconds"`
	// At is when it was counted, as the time since the boot; zero if the node does not ask.
	At time.Duration `json:"atNanoseconds"`
}

// Check validates a count of another process.
func (c Count) Check() error {
	switch {
	case c.CannotReach < 0 || c.Nodes < 0 || c.CannotReach > c.Nodes:
		return fmt.Errorf("%d of %d nodes", c.CannotReach, c.Nodes)
	case c.Nodes > MaxNodes:
		return fmt.Errorf("%d nodes, more than %d", c.Nodes, MaxNodes)
	case c.At < 0:
		return errors.New("counted before the boot")
	}
	return nil
}

// Majority reports whether more than half of all nodes, not of those that have answered, cannot reach the API server.
func (c Count) Majority() bool {
	return c.ListAge >= 0 && c.ListAge < MaxListAge && 2*c.CannotReach > c.Nodes
}

// Until returns until when the count allows feeding, zero for never.
func (c Count) Until(now time.Duration) time.Duration {
	if c.At <= 0 || c.At > now || !c.Majority() {
		return 0
	}
	return c.At + PeersValid
}
