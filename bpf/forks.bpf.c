//go:build ignore
// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
//
// Counts tasks, up to a constant: one more for each that is made (kernel/fork.c:
// copy_process() fires task_newtask, also for threads and kernel threads), one less when
// the kernel frees one (kernel/exit.c: delayed_put_task_struct() fires sched_process_free,
// an RCU grace period after its pid became free). User space sets the count that wakes it.
//
// It reads no kernel memory, so it needs neither BTF nor the helper that a locked-down kernel
// refuses.

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "records.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

MAPPED(counts, struct tasks, 1);

// At most one record at a time: only an armed count writes one.
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4 << 10); // resized by the loader: at least a page
} alarms SEC(".maps");

static __always_inline int on_fork(void)
{
	__u32 zero = 0;
	struct tasks *t = bpf_map_lookup_elem(&counts, &zero);
	if (!t)
		return 0;
	__s64 count = __sync_fetch_and_add(&t->count, 1) + 1;
	if (!t->armed || count - (__s64)t->limit < 0)
		return 0;
	// Several CPUs may be here at once; one of them raises.
	if (!__sync_val_compare_and_swap(&t->armed, 1, 0))
		return 0;
	__u64 *record = bpf_ringbuf_reserve(&alarms, sizeof(*record), 0);
	if (!record) { // the last one is still being read
		t->armed = 1;
		return 0;
	}
	*record = bpf_ktime_get_ns();
	__sync_fetch_and_add(&t->raised, 1);
	bpf_ringbuf_submit(record, BPF_RB_FORCE_WAKEUP);
	return 0;
}

static __always_inline int on_free(void)
{
	__u32 zero = 0;
	struct tasks *t = bpf_map_lookup_elem(&counts, &zero);
	if (t)
		__sync_fetch_and_add(&t->count, -1);
	return 0;
}

SEC("raw_tp/task_newtask")
int forked(void *context)
{
	return on_fork();
}

SEC("raw_tp/sched_process_free")
int freed(void *context)
{
	return on_free();
}

SEC("tracepoint/task/task_newtask")
int forked_classic(void *context)
{
	return on_fork();
}

SEC("tracepoint/sched/sched_process_free")
int freed_classic(void *context)
{
	return on_free();
}
