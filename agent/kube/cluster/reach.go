package cluster

import (
	"errors"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/evictd/evictd/agent/kube"
	"github.com/evictd/evictd/agent/selffence"
)

// reach is what Marks know of the way to the API server.
type reach struct {
	// contact is when the API server last answered, or a write was sent, which it may have carried out.
	contact time.Time
	// votes is set while the newest advert is armed and says that the node is counted; renew is its period.
	votes bool
	renew time.Duration
	// waiting is since when the newest marks are not written; zero if they are.
	waiting time.Time
}

// set notes the newest marks and the last that were written.
func (r *reach) set(want, written *kube.NodeMarks, now time.Time) {
	r.votes = false
	switch {
	case want == nil || want == written:
		r.waiting = time.Time{}
	case r.waiting.IsZero():
		r.waiting = now
	}
	if want == nil {
		return
	}
	if a, err := selffence.ParseAdvert(want.Watchdog); err == nil {
		r.votes, r.renew = a.Armed && a.Peers, time.Duration(a.RenewSeconds)*time.Second
	}
}

// touch notes a contact with the API server.
func (m *Marks) touch() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reach.contact = time.Now()
}

// answered reports whether the API server has answered a request. A refusal is an answer, an error of the server is
// none: other requests fail as well.
func answered(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return err == nil
	}
	code := status.Status().Code
	return code > 0 && code < http.StatusInternalServerError
}

// Reach returns whether the node reaches the API server, as the writes of its advert show.
func (m *Marks) Reach() selffence.Reach {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	r := selffence.Reach{Votes: m.reach.votes, Renew: m.reach.renew, Unanswered: now.Sub(m.reach.contact)}
	if !m.reach.waiting.IsZero() {
		r.Waiting = now.Sub(m.reach.waiting)
	}
	return r
}
