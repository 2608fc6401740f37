// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
//
// The maps that the programs share. Each object declares them, and the loader
// puts the same two in all.

#ifndef EVICTD_SHARED_H
#define EVICTD_SHARED_H

#define MAPPED(name, type_, entries)                                           \
	struct {                                                               \
		__uint(type, BPF_MAP_TYPE_ARRAY);                              \
		__uint(max_entries, entries);                                  \
		__uint(map_flags, BPF_F_MMAPABLE);                             \
		__type(key, __u32);                                            \
		__type(value, type_);                                          \
	} name SEC(".maps")

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 64 << 10);
} events SEC(".maps");

MAPPED(pressures, struct pressure, 1);

#endif
