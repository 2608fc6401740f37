// Package control is the HTTP API of a running evictd on a unix socket: the
// responses as JSON types, the server, and the client that evictctl uses. An
// operator reads evictd's status and decisions, reloads the configuration, and
// begins a shutdown on hosts without logind.
//
// The protocol is plain HTTP with JSON bodies. A GET changes nothing:
//
//	GET  /v1/status             Status
//	GET  /v1/explain?signal=S   Explanation; S is memory.available by default
//	GET  /v1/records            Records
//	GET  /v1/shutdown           Shutdown
//	POST /v1/shutdown/begin     stops the pods as in a node shutdown; Shutdown
//	POST /v1/shutdown/cancel    stops no further pod; Shutdown
//	POST /v1/reload             reads the configuration again; Config
//
// A rejected command gets status 409 and the reason.
//
// A response other than 200 has the body {"error": "…"}. Numbers are in bytes,
// inodes, PIDs or seconds. An unknown number is null, never 0. An empty list is
// [], never null. Later versions may add fields, so a reader must skip unknown
// ones.
//
// [Listen] creates the socket with mode 0600; there is no other authentication.
// [Server.Serve] returns when its context ends. The server gets all data from its
// [Source] and has no state of its own.
package control

// DefaultSocket is the default path of evictd's control socket.
const DefaultSocket = "/run/evictd/evictd.sock"
