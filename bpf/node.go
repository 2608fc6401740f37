package bpf

import (
	"errors"
	"fmt"
	"io/fs"
	"math/bits"
	"os"
	"strconv"
	"strings"
)

// The kernel's lists of NUMA nodes (drivers/base/node.c: node_state_attr).
const (
	nodesOnline     = "online"
	nodesWithMemory = "has_memory"
)

// readNodes returns the NUMA nodes of a list, one bit each. A kernel built without NUMA
// has node 0 only.
func readNodes(list string) (uint64, error) {
	content, err := os.ReadFile("/sys/devices/system/node/" + list)
	if errors.Is(err, fs.ErrNotExist) {
		return 1, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read NUMA nodes: %w", err)
	}
	nodes, err := parseNodes(string(content))
	if err != nil {
		return 0, fmt.Errorf("read NUMA nodes: %w", err)
	}
	return nodes, nil
}

// NodesWithMemory returns the number of NUMA nodes that have memory. It reads a file.
func NodesWithMemory() (int, error) {
	nodes, err := readNodes(nodesWithMemory)
	return bits.OnesCount64(nodes), err
}

// NUMANodesChanged reports whether other NUMA nodes have memory than when the sampler was
// opened. If so, the sampler's figures of the node are wrong and the caller must open
// a new one, since [OpenSampler] finds the nodes. It reads a file.
func (s *Sampler) NUMANodesChanged() (bool, error) {
	nodes, err := readNodes(nodesWithMemory)
	return err == nil && nodes != s.nodes, err
}

// parseNodes reads a list such as
//
//	0-1,4
//
// (lib/bitmap.c: bitmap_print_to_pagebuf). It ignores nodes beyond the 64th: the
// sampler needs only one node to find the others.
func parseNodes(list string) (uint64, error) {
	var nodes uint64
	for part := range strings.SplitSeq(strings.TrimSpace(list), ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err := strconv.ParseUint(first, 10, 16)
		if err != nil {
			return 0, fmt.Errorf("parse list of NUMA nodes %q", list)
		}
		to, err := strconv.ParseUint(last, 10, 16)
		if err != nil || to < from {
			return 0, fmt.Errorf("parse list of NUMA nodes %q", list)
		}
		for n := from; n <= min(to, 63); n++ {
			nodes |= 1 << n
		}
	}
	return nodes, nil
}
