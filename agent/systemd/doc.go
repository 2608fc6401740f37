// Package systemd connects evictd to its service manager: notifications
// (sd_notify(3)), the descriptor store, and a log for the journal or any other
// reader of standard error.
//
// Callers never wait for a reader. [Notifier] and [Log] queue notifications and log
// lines in memory, and each has one goroutine, its Run, that writes them.
package systemd
