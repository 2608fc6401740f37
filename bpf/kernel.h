// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
//
// The kernel's types, cut down to the fields that are read. The loader finds
// each field by its name in the BTF of the running kernel (CO-RE), so neither
// order nor size matter here, and a type may be smaller than the kernel's.

#ifndef EVICTD_KERNEL_H
#define EVICTD_KERNEL_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;

// include/uapi/linux/bpf.h: numbers of the interface, which don't change.
enum {
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_RINGBUF = 27,
};

enum {
	BPF_ANY = 0,
	BPF_NOEXIST = 1,
	BPF_F_MMAPABLE = 1 << 10,
	BPF_RB_FORCE_WAKEUP = 1 << 1,
};

enum {
	CLOCK_MONOTONIC = 1,
};

struct bpf_timer {
	__u64 : 64;
	__u64 : 64;
} __attribute__((aligned(8)));

// What a raw tracepoint hands over: the arguments of its TP_PROTO.
struct bpf_raw_tracepoint_args {
	__u64 args[0];
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef struct {
	long counter;
} atomic_long_t;

struct list_head {
	struct list_head *next;
	struct list_head *prev;
};

struct kernfs_node {
	__u64 id;
};

// include/linux/cgroup-defs.h
enum cgroup_subsys_id {
	memory_cgrp_id = 4,
};

enum {
	CSS_RELEASED = 1 << 2,
	CSS_DYING = 1 << 4,
};

struct cgroup_subsys_state {
	struct cgroup *cgroup;
	struct list_head sibling;
	struct list_head children;
	unsigned int flags;
	__u64 serial_nr;
	struct cgroup_subsys_state *parent;
};

struct cgroup {
	struct kernfs_node *kn;
	struct cgroup_subsys_state *subsys[1];
};

struct css_set {
	struct cgroup_subsys_state *subsys[1];
};

// include/linux/mmzone.h
enum node_stat_item {
	NR_INACTIVE_FILE = 2,
	NR_ACTIVE_FILE = 3,
	NR_ANON_MAPPED = 17,
	NR_FILE_PAGES = 19,
};

enum lru_list {
	LRU_INACTIVE_ANON = 0,
	LRU_ACTIVE_ANON = 1,
	LRU_INACTIVE_FILE = 2,
	LRU_ACTIVE_FILE = 3,
	LRU_UNEVICTABLE = 4,
	NR_LRU_LISTS = 5,
};

struct zone {
	struct pglist_data *zone_pgdat;
};

struct zoneref {
	struct zone *zone;
	int zone_idx;
};

struct zonelist {
	struct zoneref _zonerefs[1];
};

struct pglist_data {
	struct zonelist node_zonelists[1];
	int node_id;
	atomic_long_t vm_stat[1];
};

// struct lru_gen_struct on Linux 6.1, struct lru_gen_folio since 6.3, and
// absent without CONFIG_LRU_GEN. Fields are matched along their path from struct
// lruvec, in which the name of this type has no part.
struct lru_gen_folio {
	unsigned long max_seq;
	long nr_pages[1];
};

struct lruvec {
	struct pglist_data *pgdat;
	struct lru_gen_folio lrugen;
};

// include/linux/memcontrol.h
struct page_counter {
	atomic_long_t usage;
};

struct mem_cgroup_per_node {
	struct lruvec lruvec;
	// A matrix in C, [MAX_NR_ZONES][NR_LRU_LISTS], of which BTF keeps one
	// dimension.
	unsigned long lru_zone_size[1];
};

struct mem_cgroup {
	struct cgroup_subsys_state css;
	struct page_counter memory;
	struct mem_cgroup_per_node *nodeinfo[1];
};

struct signal_struct {
	short oom_score_adj;
};

struct task_struct {
	int pid;
	int tgid;
	char comm[16];
	struct css_set *cgroups;
	struct signal_struct *signal;
};

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_iter__cgroup {
	struct bpf_iter_meta *meta;
	struct cgroup *cgroup;
};

#pragma clang attribute pop

#endif
