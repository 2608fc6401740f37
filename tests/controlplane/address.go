package controlplane

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

// Free addresses have ports below those that the kernel chooses for connections
// (net.ipv4.ip_local_port_range): a connection of another test would take them before the
// program listens, or while it is restarted.
const firstFreePort, freePorts = 20000, 10000

var usedPorts sync.Map

// FreeAddress returns an address on loopback that nothing listens on, and that no other call
// returns.
func FreeAddress() (string, error) {
	for range freePorts {
		address := fmt.Sprint("127.0.0.1:", firstFreePort+rand.IntN(freePorts))
		if _, used := usedPorts.LoadOrStore(address, true); used {
			continue
		}
		if l, err := net.Listen("tcp", address); err == nil {
			l.Close()
			return address, nil
		}
	}
	return "", errors.New("find a free port on loopback: all are in use")
}
