// Package systemd is evictd as a service: what it tells its service manager
// (sd_notify(3)), and how it logs where the journal or anything else reads its
// standard error.
//
// Both have one rule: whoever has something to say never waits for whoever
// listens. [Notifier] and [Log] take what they are told into memory, and each
// has one goroutine, its Run, that passes it on.
package systemd
