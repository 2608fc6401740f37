// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
//
// The maps that sampler, reclaim and oom share. Each of these objects declares them, and
// the loader puts the same two in all.

#ifndef EVICTD_SHARED_H
#define EVICTD_SHARED_H

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 64 << 10);
} events SEC(".maps");

MAPPED(pressures, struct pressure, 1);

#endif
