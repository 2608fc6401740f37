// Package scenario replays a timeline of observations, written in a file,
// against a configuration: what would have been evicted, when and why.
//
// The decisions are those of [evict.Step], the daemon's own; this package
// decides nothing. It reads the file strictly ([Parse]: everything that is
// wrong comes back at once, with file, line and field), gives Step what the
// file says was observed, carries out in the file's terms what Step orders
// (a pod goes when the file says so, a node-level reclaim brings what the file
// says it brought), and prints what came of it, as JSON lines or for people.
// There is no clock, no kernel and no runtime in it: the same file always
// prints the same.
//
// The JSON form is a public interface. Its keys are always there and in one
// order; lists are never null.
package scenario
