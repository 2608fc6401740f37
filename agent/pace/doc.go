// Package pace computes how often to read a quantity that may fall: rarely while it
// is far above every threshold, and the more often the closer it comes, by how fast
// it has fallen in the last minutes.
//
// [Pace] does it for one quantity, [Budget] bounds the processor time that reading
// takes, and [Together] aligns readings of different rooms, so that an idle processor
// wakes up once for all of them. The present time is passed in; nothing here sleeps or
// starts a goroutine. A Pace is for one goroutine, a Budget for any number.
package pace
