package cri

import (
	"context"
	"errors"
	"io"
	"time"

	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// EventType is what happened to a container or sandbox.
type EventType uint8

// The events of CRI. Unknown is what a later CRI may add: something changed.
const (
	EventUnknown EventType = iota
	EventCreated
	EventStarted
	EventStopped
	EventDeleted
)

func (t EventType) String() string {
	switch t {
	case EventCreated:
		return "created"
	case EventStarted:
		return "started"
	case EventStopped:
		return "stopped"
	case EventDeleted:
		return "deleted"
	}
	return "unknown"
}

// Event is one change. For a change of the sandbox itself ContainerID is the
// sandbox's ID.
type Event struct {
	Type        EventType
	ContainerID string
	SandboxID   string    // "" if the runtime does not say
	Time        time.Time // zero if the runtime does not say
}

// Events calls f for each container event, in order and never concurrently, until
// ctx ends, the stream breaks or the client is closed, and returns why; it never
// returns nil. A runtime without events (containerd before 1.7) is
// ErrUnimplemented: the caller relists. A stream that the runtime ends is
// ErrUnreachable: the caller calls again, and relists, because events were lost.
//
// Runtimes do not acknowledge the subscription and drop events when f is slow, so
// events only hasten a relist; they never replace it.
func (c *Client) Events(ctx context.Context, f func(Event)) error {
	const op = "container events"
	stream, err := c.runtime.GetContainerEvents(ctx, &runtimev1.GetEventsRequest{})
	if err != nil {
		return callFailed(ctx, c.closed.Load(), op, err)
	}
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return &callError{op: op, kind: ErrUnreachable, cause: errors.New("stream ended by the runtime")}
		}
		if err != nil {
			return callFailed(ctx, c.closed.Load(), op, err)
		}
		f(eventOf(resp))
	}
}

func eventOf(resp *runtimev1.ContainerEventResponse) Event {
	e := Event{
		ContainerID: resp.GetContainerId(),
		SandboxID:   resp.GetPodSandboxStatus().GetId(),
		Time:        nanoseconds(resp.GetCreatedAt()),
	}
	switch resp.GetContainerEventType() {
	case runtimev1.ContainerEventType_CONTAINER_CREATED_EVENT:
		e.Type = EventCreated
	case runtimev1.ContainerEventType_CONTAINER_STARTED_EVENT:
		e.Type = EventStarted
	case runtimev1.ContainerEventType_CONTAINER_STOPPED_EVENT:
		e.Type = EventStopped
	case runtimev1.ContainerEventType_CONTAINER_DELETED_EVENT:
		e.Type = EventDeleted
	}
	return e
}
