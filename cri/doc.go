// Package cri is a client of the node's container runtime, over its CRI v1 socket.
// It lists sandboxes and containers, reads the cgroup, process and limits of each
// container, stops and removes them, and receives their events.
//
// Contract:
//   - Only unix sockets are supported. [Connect] does not dial; the first call does.
//     A [Client] survives a restart of the runtime: the next call reconnects.
//   - Every call ends at the caller's deadline or the package's own, whichever is
//     earlier. Only [Client.Events] lasts as long as its context.
//   - Errors match one sentinel per decision that a caller makes: [ErrUnreachable],
//     [ErrTimeout], [ErrUnimplemented], [ErrNotFound], [ErrMalformed]. A cancelled
//     context is [context.Canceled], a closed client [net.ErrClosed].
//   - A value that the runtime does not report stays absent (nil, "" or the zero
//     time) and is never replaced by a number. An impossible value is ErrMalformed.
//   - Stopping or removing a container or sandbox that does not exist succeeds.
//   - The package has no policy, does not log or cache, and starts no goroutine that
//     outlives a call, except for gRPC's connection.
package cri
