package cluster

import (
	"context"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// eventDelays are the times after which the creation of an event is repeated that the API server has not answered in
// time, or with an error that may pass. It is given up after the last.
var eventDelays = [...]time.Duration{time.Second, 4 * time.Second, 15 * time.Second, 60 * time.Second}

// queuedEvent is an event that waits to be created.
type queuedEvent struct {
	eventObject
	failures  int       // attempts so far
	notBefore time.Time // of the next attempt
}

func (r *Reporter) enqueue(e queuedEvent) {
	if len(r.events) >= maxEvents {
		r.log.Debug("dropped an event", "reason", e.Reason, "name", e.Regarding.Name)
		return
	}
	r.events = append(r.events, e)
	r.notify()
}

// addEvents adds the requests for events that are due, the oldest first. It moves next to the time of another attempt.
func (r *Reporter) addEvents(list []started, now time.Time, next *time.Time) []started {
	for i := 0; i < len(r.events) && r.eventsInFlight < maxEventsInFlight && r.inFlight < maxInFlight; {
		e := r.events[i]
		if now.Before(e.notBefore) {
			if e.notBefore.Before(*next) {
				*next = e.notBefore
			}
			i++
			continue
		}
		list = append(list, r.emit(e))
		r.events = slices.Delete(r.events, i, i+1)
	}
	return list
}

// emit returns the request that creates an event.
func (r *Reporter) emit(e queuedEvent) started {
	r.inFlight++
	r.eventsInFlight++
	return func(ctx context.Context, c *connection) {
		_, err := c.create(ctx, &e.eventObject, "/apis/events.k8s.io/v1/namespaces", e.Metadata.Namespace, "events")
		r.mu.Lock()
		defer r.mu.Unlock()
		r.inFlight--
		r.eventsInFlight--
		r.notify()
		switch {
		case err == nil, apierrors.IsAlreadyExists(err), ctx.Err() != nil:
		case apierrors.IsForbidden(err) && !r.eventForbidden && !strings.Contains(err.Error(), "being terminated"):
			r.eventForbidden = true
			r.log.Warn("could not create an event; further ones are not logged", "error", oneLine(err.Error()))
		case outcomeOf(err) == later && e.failures < len(eventDelays):
			e.notBefore = time.Now().Add(max(eventDelays[e.failures], retryAfter(err)))
			e.failures++
			r.enqueue(e)
		default:
			r.log.Debug("could not create an event", "reason", e.Reason, "name", e.Regarding.Name, "error", oneLine(err.Error()))
		}
	}
}
