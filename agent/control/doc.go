// Package control is how an operator asks a running evictd what it sees and
// why it decides as it does, and tells it of a shutdown that nobody else tells
// it of: the answers as JSON types, the server that gives them over a unix
// socket, and the client that evictctl asks with.
//
// The protocol is plain HTTP with JSON bodies. A GET changes nothing:
//
//	GET  /v1/status             Status
//	GET  /v1/explain?signal=S   Explanation, of memory.available where S is not given
//	GET  /v1/records            Records
//	GET  /v1/shutdown           Shutdown
//	POST /v1/shutdown/begin     stops the pods as if the node went down; Shutdown
//	POST /v1/shutdown/cancel    stops no further pod; Shutdown
//
// A command that is not taken is answered with 409 and the reason.
//
// An answer other than 200 has the body {"error": "…"}. Numbers are in bytes,
// inodes, PIDs or seconds, and null where they are not known, which is never
// 0. A list that is empty is [], never null. Fields may be added in later
// versions, so a reader skips those that it does not know.
//
// [Listen] makes the socket, which is its owner's alone (mode 0600): that is
// all the authentication there is. [Server.Serve] returns when its context
// ends. The server asks its [Source] and nobody else, and holds no state.
package control

// DefaultSocket is where evictd listens unless it is told otherwise.
const DefaultSocket = "/run/evictd/evictd.sock"
