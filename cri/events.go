package cri

import (
	"context"
	"errors"
	"io"
	"time"

	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// EventType is the kind of a change of a container or sandbox.
type EventType uint8

// The events of CRI. Unknown is an event that a later CRI adds.
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

// Event is one change. ContainerID is the ID of the sandbox for a change of the
// sandbox itself.
type Event struct {
	Type        EventType
	ContainerID string
	SandboxID   string    // "" if not reported
	Time        time.Time // zero if not reported
}

// Events calls f for each container event, in order and never concurrently, until
// ctx ends, the stream breaks or the client is closed. It always returns an error:
// ErrUnimplemented for a runtime without events (containerd before 1.7), where the
// caller must poll the lists, and ErrUnreachable for a stream that the runtime ends,
// where the caller must call Events again and relist, because events were lost.
//
// Runtimes do not acknowledge the subscription and drop events if f is slow, so
// events can trigger an early relist but not replace the periodic one.
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
