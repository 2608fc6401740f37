// Package meminfo reads the node's memory from /proc/meminfo (fs/proc/meminfo.c)
// and computes the working set as the kubelet counts it.
//
// [File] is for frequent reads: it keeps the file open and allocates nothing.
// [Read] opens the file for one read. Both fail if a line that an [Info] needs is
// missing or malformed, and the error names it. Other lines are ignored.
package meminfo
