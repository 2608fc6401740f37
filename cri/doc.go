// Package cri talks to the node's container runtime over its CRI v1 socket: it
// lists sandboxes and containers, learns each container's cgroup, process and
// limits, stops and removes them, and follows their events.
//
// Contract:
//   - Only unix sockets are dialled. [Connect] does not touch the socket; the
//     first call does. A [Client] survives the runtime's restart: the call after
//     it connects again.
//   - Every call ends: by the caller's context or by the package's own deadline,
//     whichever is first. [Client.Events] alone lasts as long as its context.
//   - Errors carry one sentinel per decision that a caller makes: [ErrUnreachable],
//     [ErrTimeout], [ErrUnimplemented], [ErrNotFound], [ErrMalformed]; a cancelled
//     context is [context.Canceled], a closed client [net.ErrClosed].
//   - What a runtime leaves out stays absent (nil, "" or the zero time) and is
//     never replaced by a number. What it says but cannot be true is ErrMalformed.
//   - Stopping or removing what is already gone succeeds.
//   - No policy, no logging, no cache, no goroutine that outlives a call, gRPC's
//     own connection aside.
package cri
