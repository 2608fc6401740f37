// Package selffence has the node's half of fencing, without input and output: what a node says about its hardware
// watchdog and its shutdowns in annotations of its Node object, and the decision to feed the watchdog.
//
// # Self-fencing
//
// evictd feeds the watchdog only while the API server accepts the node's advert: an annotation that says that the
// watchdog is armed, and with which times. A node that cannot reach the API server stops feeding, and the watchdog
// resets the machine. A controller that has seen an armed advert unchanged for [Advert.Bound] can conclude, without a
// word from the machine, that the boot that wrote it has ended.
//
// # The bound
//
// [Step] allows feeding until FeedGap after the request of the last accepted advert, which is not later than its
// acceptance. Then the watchdog fires after its timeout, unless it was fed later than allowed. The kernel does that
// once: if evictd ends without disarming the watchdog, closing the device feeds it (watchdog_release in
// drivers/watchdog/watchdog_dev.c). A process that is stopped between its look at the clock and the write feeds late,
// too, by less than the timeout; it then shortens the timeout ([Late]). The bound therefore has the timeout twice.
//
// Invariants:
//
//  1. Opening the device feeds it, so it is opened only while feeding is allowed.
//  2. The advert is armed only after the device is open, and the device is disarmed only after the API server has
//     accepted an advert that is not armed. Adverts are written with a test of the value that they replace, so that a
//     request that was delayed does not bring an armed advert back.
//  3. A start without the saved state of the same boot, or with one that allows no feeding any more, opens the device
//     only after the API server has accepted an advert that is not armed: an earlier run may have left an armed one.
//     That advert is written even if there is none: a lack of rights is found before anything is armed.
//  4. Numbers of adverts are not used twice in a boot. An accepted advert counts from its own request, however many
//     were requested since.
//
// With Settings.Peers feeding is also allowed for PeersValid after more than half of all nodes could not reach the API
// server ([Count]). The bound stays, and a reader must know more: see agent/selffence/peers.
//
// The clock of [Step] is the time since the boot (CLOCK_BOOTTIME): setting the wall clock changes nothing. A virtual
// machine that its hypervisor pauses does not count that time, and neither does its watchdog: the bound does not apply
// to it.
package selffence
