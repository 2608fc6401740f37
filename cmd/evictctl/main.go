// Evictctl is the operator's tool beside evictd: it checks and shows
// configurations, replays scenarios, and asks a running daemon what it sees
// and why it decides as it does. It never links the daemon.
//
// It exits with 0 when it did what was asked, 1 when that failed or what was
// checked is invalid, and 2 when it was called wrongly.
package main

import "os"

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }
