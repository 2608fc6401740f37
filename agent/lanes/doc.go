// Package lanes learns of pressure. A lane watches the node in its own way and
// raises the alarm when a signal falls below a mark; what is done about it is
// decided elsewhere, on a fresh reading.
//
// [Memory] takes that reading: memory.available and allocatableMemory.available
// as the kubelet computes them. [Poll] is the lane that works everywhere: it
// takes the reading again and again, the more often the less is left.
package lanes
