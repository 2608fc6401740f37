// Package meminfo reads /proc/meminfo, the node's memory in one short file
// (fs/proc/meminfo.c), and computes from it what the kubelet counts as used.
//
// [File] is for whoever reads it often: it keeps the file open and allocates
// nothing. [Read] opens it for one reading. Both fail, with the name of the
// line, when one that an [Info] needs is missing or malformed; lines that are
// not needed are not looked at.
package meminfo
