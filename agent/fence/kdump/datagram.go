// Package kdump receives the datagrams of fence_kdump_send, by which the kernel that dumps a crashed one says that it
// is not finished: the machine must not be switched off yet.
//
// The datagrams are not authenticated. Only their source address says which node they are from, and both can be forged:
// whoever uses them must bound what they delay, and must not take them for a proof.
package kdump

import (
	"encoding/binary"
	"fmt"
)

// The datagram of fence_kdump_send (fence-agents, agents/kdump/message.h): two numbers of 32 bits in the byte order of
// the sender.
const (
	size    = 8
	magic   = 0x1B302A40
	version = 1
)

// Parse returns why a datagram is not one of fence_kdump_send, nil if it is one. Both byte orders are right.
func Parse(datagram []byte) error {
	if len(datagram) != size {
		return fmt.Errorf("datagram has %d bytes or more; one of fence_kdump_send has %d", len(datagram), size)
	}
	var order binary.ByteOrder = binary.LittleEndian
	if order.Uint32(datagram) != magic {
		order = binary.BigEndian
	}
	if m := order.Uint32(datagram); m != magic {
		return fmt.Errorf("datagram begins with %#08x; one of fence_kdump_send with %#08x in one of the byte orders", m, magic)
	}
	if v := order.Uint32(datagram[4:]); v != version {
		return fmt.Errorf("datagram has the version %d; this release reads version %d", v, version)
	}
	return nil
}
