// Evictctl is the operator's tool for evictd. It validates and prints
// configurations, replays scenarios, and shows the status and decisions of a
// running evictd. It does not link the daemon.
//
// It exits with 0 on success, 1 on failure or if a checked file is invalid, and 2 on
// wrong usage.
package main

import "os"

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }
