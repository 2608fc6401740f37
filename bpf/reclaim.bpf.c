//go:build ignore
// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
//
// The kernel's reclaim of the node's memory: how often kswapd works, for how long
// the tasks of which cgroup stall in direct reclaim (include/trace/events/vmscan.h,
// fired by mm/vmscan.c). Reclaim within one cgroup's limit has tracepoints of its
// own and is not counted. All of them are in 6.1; throttled is since 5.16.
//
// A raw tracepoint passes the arguments as they are and needs no tracefs. Where it is not
// available, the classic one passes what is read here in the order of TP_STRUCT__entry.

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "read.h"
#include "records.h"
#include "shared.h"
#include "task.h"

#define SECOND 1000000000ULL
#define USEC 1000ULL
// When reclaim begins the sampler keeps its shortest period for URGENT_TIME, at most once in
// URGENT_INTERVAL: a node whose cache is full reclaims all the time, far from any threshold.
#define URGENT_TIME (SECOND / 10)
#define URGENT_INTERVAL SECOND

#define MAX_CGROUPS 4096
#define MAX_STALLED 4096

char LICENSE[] SEC("license") = "Dual MIT/GPL";

// When each thread began its direct reclaim.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_STALLED);
	__type(key, __u64);
	__type(value, __u64);
} begun SEC(".maps");

// By the inode number of the memory cgroup's directory.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_CGROUPS);
	__type(key, __u64);
	__type(value, struct stall);
} stalls SEC(".maps");

static __always_inline struct pressure *pressure(void)
{
	__u32 zero = 0;
	return bpf_map_lookup_elem(&pressures, &zero);
}

static __always_inline void shorten_period(struct pressure *pressure, __u64 now)
{
	if (now - pressure->urgent_from < URGENT_INTERVAL)
		return;
	pressure->urgent_from = now;
	pressure->urgent_until = now + URGENT_TIME;
}

static __always_inline int on_kswapd_wake(void)
{
	struct pressure *p = pressure();
	if (!p)
		return 0;
	__sync_fetch_and_add(&p->kswapd_wakes, 1);
	shorten_period(p, bpf_ktime_get_ns());
	return 0;
}

static __always_inline int on_kswapd_sleep(void)
{
	struct pressure *p = pressure();
	if (p)
		__sync_fetch_and_add(&p->kswapd_sleeps, 1);
	return 0;
}

static __always_inline int on_direct_begin(void)
{
	struct pressure *p = pressure();
	__u64 thread = bpf_get_current_pid_tgid(), now = bpf_ktime_get_ns();
	if (!p)
		return 0;
	__sync_fetch_and_add(&p->direct_begins, 1);
	bpf_map_update_elem(&begun, &thread, &now, BPF_ANY);
	shorten_period(p, now);
	return 0;
}

static __always_inline void add_stall(__u64 time, __u64 now)
{
	__u64 id = cgroup_of((void *)bpf_get_current_task());
	struct stall *stall = bpf_map_lookup_elem(&stalls, &id);
	if (!stall) {
		struct stall fresh = {};
		bpf_map_update_elem(&stalls, &id, &fresh, BPF_NOEXIST);
		stall = bpf_map_lookup_elem(&stalls, &id);
		if (!stall)
			return;
	}
	__sync_fetch_and_add(&stall->count, 1);
	__sync_fetch_and_add(&stall->time, time);
	if (time > stall->longest) // of two at once, one may be missed
		stall->longest = time;
	stall->last = now;
}

static __always_inline int on_direct_end(void)
{
	struct pressure *p = pressure();
	__u64 thread = bpf_get_current_pid_tgid(), now = bpf_ktime_get_ns();
	__u64 *since = bpf_map_lookup_elem(&begun, &thread);
	if (!p || !since)
		return 0;
	__u64 time = now - *since;
	bpf_map_delete_elem(&begun, &thread);
	__sync_fetch_and_add(&p->direct_ends, 1);
	__sync_fetch_and_add(&p->direct_time, time);
	add_stall(time, now);
	return 0;
}

static __always_inline int on_throttled(__s32 usec_delayed)
{
	struct pressure *p = pressure();
	if (!p)
		return 0;
	__sync_fetch_and_add(&p->throttles, 1);
	if (usec_delayed > 0)
		__sync_fetch_and_add(&p->throttle_time, usec_delayed * USEC);
	return 0;
}

SEC("raw_tp/mm_vmscan_kswapd_wake")
int kswapd_wake(void *context)
{
	return on_kswapd_wake();
}

SEC("raw_tp/mm_vmscan_kswapd_sleep")
int kswapd_sleep(void *context)
{
	return on_kswapd_sleep();
}

SEC("raw_tp/mm_vmscan_direct_reclaim_begin")
int direct_begin(void *context)
{
	return on_direct_begin();
}

SEC("raw_tp/mm_vmscan_direct_reclaim_end")
int direct_end(void *context)
{
	return on_direct_end();
}

// (int nid, int usec_timeout, int usec_delayed, int reason)
SEC("raw_tp/mm_vmscan_throttled")
int throttled(struct bpf_raw_tracepoint_args *context)
{
	return on_throttled(context->args[2]);
}

SEC("tracepoint/vmscan/mm_vmscan_kswapd_wake")
int kswapd_wake_classic(void *context)
{
	return on_kswapd_wake();
}

SEC("tracepoint/vmscan/mm_vmscan_kswapd_sleep")
int kswapd_sleep_classic(void *context)
{
	return on_kswapd_sleep();
}

SEC("tracepoint/vmscan/mm_vmscan_direct_reclaim_begin")
int direct_begin_classic(void *context)
{
	return on_direct_begin();
}

SEC("tracepoint/vmscan/mm_vmscan_direct_reclaim_end")
int direct_end_classic(void *context)
{
	return on_direct_end();
}

struct throttled_args {
	__u64 common;
	__s32 nid;
	__s32 usec_timeout;
	__s32 usec_delayed;
	__s32 reason;
};

SEC("tracepoint/vmscan/mm_vmscan_throttled")
int throttled_classic(struct throttled_args *context)
{
	return on_throttled(context->usec_delayed);
}
