package ipmi

import (
	"bytes"
	"maps"
	"net"
	"strconv"
	"sync"
	"testing"
)

// relay is a UDP proxy between one client at a time and a BMC, which changes datagrams.
type relay struct {
	client, bmc net.PacketConn
	// toBMC and toClient return what is sent in place of a datagram. They are called by one goroutine each.
	toBMC, toClient func([]byte) [][]byte

	bmcAddress net.Addr
	start      sync.Once
}

// newRelay returns a relay that begins with the first call of parameters. Its functions are set before.
func newRelay(t *testing.T, endpoint string) *relay {
	t.Helper()
	to, err := net.ResolveUDPAddr("udp", endpoint)
	do(t, err)
	same := func(b []byte) [][]byte { return [][]byte{b} }
	r := &relay{toBMC: same, toClient: same, bmcAddress: to}
	if r.client, err = net.ListenPacket("udp", "127.0.0.1:0"); err == nil {
		r.bmc, err = net.ListenPacket("udp", "127.0.0.1:0")
	}
	do(t, err)
	t.Cleanup(func() { r.client.Close(); r.bmc.Close() })
	return r
}

// run relays until the sockets are closed.
func (r *relay) run() {
	peer := make(chan net.Addr, 1)
	go func() {
		for b := make([]byte, 4096); ; {
			n, from, err := r.client.ReadFrom(b)
			if err != nil {
				return
			}
			select {
			case <-peer: // of the datagram before
			default:
			}
			peer <- from
			for _, b := range r.toBMC(bytes.Clone(b[:n])) {
				r.bmc.WriteTo(b, r.bmcAddress)
			}
		}
	}()
	go func() {
		for b := make([]byte, 4096); ; {
			n, _, err := r.bmc.ReadFrom(b)
			if err != nil {
				return
			}
			from := <-peer
			peer <- from
			for _, b := range r.toClient(bytes.Clone(b[:n])) {
				r.client.WriteTo(b, from)
			}
		}
	}()
}

// parameters begins to relay and returns the parameters of the BMC with the relay's port.
func (r *relay) parameters(of map[string]string) map[string]string {
	r.start.Do(r.run)
	m := maps.Clone(of)
	m["ipport"] = strconv.Itoa(r.client.LocalAddr().(*net.UDPAddr).Port)
	return m
}
