// Package fencing tests evictd's fencing end to end and has what its demonstration shares with the tests.
//
// The control plane, evictd-controller and the BMCs (ipmi_sim) are real. Stand-ins are what a test without machines
// cannot have: a [Machine] is a computer with a kubelet that only writes what a kubelet writes, and the attacher
// answers for the CSI driver. [Storage] notices if two machines use one volume.
//
// A [Timeline] has what happened, in order: each write to the API server from its audit log, each command from the logs
// of the BMCs. [Timeline.Violations] checks the rule above all others: no pod and no volume of a machine is released
// while that is on.
package fencing
