// Package protocol defines the messages between a virtual machine and its host.
//
// The host writes a Plan to the payload disk. The guest writes Events to a virtio port, one JSON object per line and
// nothing else: the kernel's messages go to the console, which is another device. Both sides are built from one commit,
// so the protocol has no versions; a message that can't be parsed is an error.
package protocol
