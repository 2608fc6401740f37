// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
//
// The LRU lists of one memory cgroup. Part of sampler.bpf.c.

#ifndef EVICTD_LRU_H
#define EVICTD_LRU_H

#define MAX_LISTS (MAX_ZONES * NR_LRU_LISTS)
#define MAX_GENERATIONS 8
// Room for the generations of all types and zones, a power of two.
#define MAX_COUNTS 64

// A global function is verified once, on its own, and not again on each path that leads
// to it; otherwise the verifier of Linux 6.1 exceeds its limit. Its arguments are numbers.
#define GLOBAL_FUNC __attribute__((noinline))

struct lru {
	__u64 inactive_file;
	__u64 active_file;
	__u64 anon;
	__u64 unevictable;
};

static struct lru lru;
static __u64 lru_fault;
static unsigned long lists[MAX_LISTS];
static long generations[MAX_COUNTS];

// quotient returns size / part if that is a whole number and at most most, else 0. The
// verifier knows sizes of the kernel's types as constants, but not the result of a division,
// of which it would follow every value.
static __always_inline __u64 quotient(__u64 size, __u64 part, int most)
{
	__u64 found = 0;
	asm volatile("" : "+r"(size));
#pragma unroll
	for (int n = 1; n <= most; n++)
		if (n * part == size)
			found = n;
	return found;
}

// With the multi-generational LRU, mm/vmscan.c keeps lru_zone_size at zero for
// the pages that it ages, and counts them by generation, type and zone: the two
// youngest generations are what memory.stat calls active (include/linux/mm_inline.h:
// lru_gen_is_active).
static __always_inline int add_generations(struct lruvec *lruvec, __u64 zones)
{
	unsigned long youngest = 0;
	const __u64 size = bpf_core_field_size(lruvec->lrugen.nr_pages);
	__u64 count = quotient(size, zones * 2 * sizeof(long), MAX_GENERATIONS);
	__u32 at = 0;

	if (size > sizeof(generations) || !count ||
	    read_kernel(&youngest, sizeof(youngest), &lruvec->lrugen.max_seq) ||
	    read_kernel(generations, size, &lruvec->lrugen.nr_pages))
		return -1;
	for (int g = 0; g < MAX_GENERATIONS; g++) {
		if (g >= count)
			break;
		long anon = 0, file = 0;
		for (int z = 0; z < MAX_ZONES && z < zones; z++)
			anon += generations[at++ & (MAX_COUNTS - 1)];
		for (int z = 0; z < MAX_ZONES && z < zones; z++)
			file += generations[at++ & (MAX_COUNTS - 1)];
		// Below zero while batches are due (mm/vmscan.c: reset_batch_size).
		lru.anon += anon > 0 ? anon : 0;
		if (file <= 0)
			continue;
		if (g == youngest % count || g == (youngest - 1) % count)
			lru.active_file += file;
		else
			lru.inactive_file += file;
	}
	return 0;
}

// add_lru adds the LRU lists of one cgroup on one node, in pages. The sizes are exact at
// once; the sums of memory.stat lag by two seconds.
static long add_lru(__u32 i, void *context)
{
	struct mem_cgroup *memcg = *(struct mem_cgroup **)context;
	if (i >= MAX_NODES)
		return 1;
	struct mem_cgroup_per_node *info = NULL;
	void *at = (void *)&memcg->nodeinfo + nodes[i].id * sizeof(info);
	if (read_kernel(&info, sizeof(info), at))
		goto fault;
	const __u64 per_zone = bpf_core_enum_value(enum lru_list, NR_LRU_LISTS);
	const __u64 size = bpf_core_field_size(info->lru_zone_size);
	if (per_zone != NR_LRU_LISTS || size > sizeof(lists))
		goto fault;
	if (read_kernel(lists, size, &info->lru_zone_size))
		goto fault;
	__u64 zones = quotient(size, NR_LRU_LISTS * sizeof(unsigned long), MAX_ZONES);
	if (!zones)
		goto fault;
	for (int z = 0; z < MAX_ZONES; z++) {
		if (z >= zones)
			break;
		unsigned long *zone = &lists[z * NR_LRU_LISTS];
		lru.anon += zone[LRU_INACTIVE_ANON] + zone[LRU_ACTIVE_ANON];
		lru.inactive_file += zone[LRU_INACTIVE_FILE];
		lru.active_file += zone[LRU_ACTIVE_FILE];
		lru.unevictable += zone[LRU_UNEVICTABLE];
	}
	if (bpf_core_field_exists(info->lruvec.lrugen) && add_generations(&info->lruvec, zones))
		goto fault;
	return 0;
fault:
	lru_fault = 1;
	return 1;
}

// read_lru reads the lists of one memory cgroup, without its children, on all nodes into lru.
GLOBAL_FUNC int read_lru(__u64 address)
{
	struct mem_cgroup *memcg = (void *)address;

	__builtin_memset(&lru, 0, sizeof(lru));
	lru_fault = 0;
	bpf_loop(node_count, add_lru, &memcg, 0);
	return lru_fault ? -1 : 0;
}

static __always_inline void add_sizes(struct lru *sum, struct lru *more)
{
	sum->inactive_file += more->inactive_file;
	sum->active_file += more->active_file;
	sum->anon += more->anon;
	sum->unevictable += more->unevictable;
}

#endif
