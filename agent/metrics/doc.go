// Package metrics serves evictd's Prometheus metrics and health checks over HTTP:
// /metrics, /healthz and /readyz.
//
// The agent calls the methods of [Metrics] with values of agent/signal and
// agent/evict. They never wait for a scrape or for each other. None is called
// between a crossing and its kill: an eviction is counted from its record, when
// it is complete.
//
// Every local user can connect. [Serve] therefore limits the connections and
// serves each on a thread at ordinary priority. All together may use a twentieth
// of a CPU: a client that needs more waits. Scrapes within a second get the same
// response.
//
// Names begin with evictd_, units are base units, and every label has few values,
// which exist from the start with 0. A value that was not read is absent, never 0.
// Amounts of a signal are in its unit, which ends the metric's name: bytes, inodes
// or pids.
package metrics
