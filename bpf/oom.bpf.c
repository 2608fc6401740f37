//go:build ignore
// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
//
// The victims of the kernel's OOM killer: mm/oom_kill.c: mark_oom_victim() fires mark_victim
// for the node and for a cgroup's limit alike.
//
// Its prototype was (int pid) and is (struct task_struct *, uid_t) since 6.9, also
// in Debian's 6.1. User space looks up btf_trace_mark_victim in the kernel's BTF and sets
// victim_is_task.

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "read.h"
#include "records.h"
#include "shared.h"
#include "task.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

const volatile __u64 victim_is_task = 1;

// A type that no map uses gets into BTF, and so into Go, by a variable of that type.
struct victim *type_of_victim __attribute__((unused));

static __always_inline struct victim *reserve(void)
{
	__u32 zero = 0;
	struct pressure *pressure = bpf_map_lookup_elem(&pressures, &zero);
	if (!pressure)
		return NULL;
	struct victim *record = bpf_ringbuf_reserve(&events, sizeof(*record), 0);
	if (!record) {
		__sync_fetch_and_add(&pressure->victims_lost, 1);
		return NULL;
	}
	__sync_fetch_and_add(&pressure->victims, 1);
	__builtin_memset(record, 0, sizeof(*record));
	record->kind = KIND_VICTIM;
	record->time = bpf_ktime_get_ns();
	return record;
}

SEC("raw_tp/mark_victim")
int mark_victim(struct bpf_raw_tracepoint_args *context)
{
	struct victim *record = reserve();
	if (!record)
		return 0;
	if (victim_is_task) {
		struct task_struct *task = (void *)context->args[0];
		struct signal_struct *signal = NULL;
		short adj = 0;
		read_kernel(&record->pid, sizeof(record->pid), &task->pid);
		read_kernel(&record->tgid, sizeof(record->tgid), &task->tgid);
		read_kernel(record->comm, sizeof(record->comm), &task->comm);
		if (!read_kernel(&signal, sizeof(signal), &task->signal) &&
		    !read_kernel(&adj, sizeof(adj), &signal->oom_score_adj))
			record->oom_score_adj = adj;
		record->cgroup = cgroup_of(task);
	} else {
		record->pid = context->args[0];
	}
	bpf_ringbuf_submit(record, BPF_RB_FORCE_WAKEUP);
	return 0;
}

struct victim_args {
	__u64 common;
	__s32 pid;
};

// The classic tracepoint has the pid first with either prototype.
SEC("tracepoint/oom/mark_victim")
int mark_victim_classic(struct victim_args *context)
{
	struct victim *record = reserve();
	if (!record)
		return 0;
	record->pid = context->pid;
	bpf_ringbuf_submit(record, BPF_RB_FORCE_WAKEUP);
	return 0;
}
