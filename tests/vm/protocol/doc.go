// Package protocol is what a virtual machine and the host that started it say to each other.
//
// The host leaves a Plan on the payload disk. The guest answers on a virtio port with one Event a line, in JSON, and
// nothing else: what the kernel prints goes to the console, which is another wire. Both sides are built from one
// commit, so that there are no versions; what can't be understood is an error.
package protocol
