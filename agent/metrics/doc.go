// Package metrics is what Prometheus sees of evictd, and what a supervisor asks
// it over HTTP: /metrics, /healthz and /readyz.
//
// The agent calls the methods of [Metrics] and hands over values of agent/signal
// and agent/evict. None of them waits for a scrape or for one another, and
// none belongs on the way from a crossing to its kill: an eviction is counted
// from its record, when it is over.
//
// Every local user can connect. [Serve] therefore bounds the connections, and
// serves each on a thread of its own at ordinary priority, all together with a
// twentieth of a processor: a client that asks for more waits. Scrapes within a
// second get the same answer.
//
// Names begin with evictd_, units are base units, and every label has few
// values, which are known and exist from the start with 0. What was not read is
// absent, never 0. Amounts of a signal are in its unit, which its name ends in:
// bytes, inodes or pids.
package metrics
