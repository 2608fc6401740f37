// Package pollinterval computes adaptive polling intervals for a quantity that may fall. The
// interval is long while the quantity is far above every threshold. It becomes shorter
// as the quantity approaches one, and the faster the quantity has fallen in the last
// minutes.
//
// [Interval] computes the interval for one quantity. [Budget] limits the CPU time of polling.
// [AlignedWait] aligns the polling of different packages, so that an idle CPU wakes up once
// for all of them. Callers pass the current time; the package does not sleep and starts
// no goroutine. An [Interval] must be used by one goroutine at a time; a [Budget] may be used
// concurrently.
package pollinterval
