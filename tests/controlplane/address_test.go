package controlplane

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"testing"
)

// TestFreeAddress: connections do not take a free address.
func TestFreeAddress(t *testing.T) {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		t.Fatal(err)
	}
	var first, last int
	if _, err := fmt.Sscan(string(text), &first, &last); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for range 100 {
		address, err := FreeAddress()
		if err != nil {
			t.Fatal(err)
		}
		_, text, _ := net.SplitHostPort(address)
		if port, err := strconv.Atoi(text); err != nil || port >= first && port <= last || seen[address] {
			t.Errorf("free address %s, again: %t; ports of connections are %d to %d", address, seen[address], first, last)
		}
		seen[address] = true
	}
}
