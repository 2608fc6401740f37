//go:build ignore
// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
//
// Finds the kernel's struct cgroup of a directory. A cgroup iterator (6.1,
// kernel/bpf/cgroup_iter.c) is linked to the directory and holds a reference on
// the cgroup while the link is open, also after rmdir(2). So the pointer that the program
// writes stays valid while user space keeps the link.

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "read.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

struct anchored {
	__u64 cgroup;
	__u64 id; // inode number of the directory
	__u64 memory; // 1: the memory controller is on in it
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct anchored);
} anchors SEC(".maps");

SEC("iter/cgroup")
int anchor(struct bpf_iter__cgroup *context)
{
	struct cgroup *cgroup = context->cgroup;
	struct cgroup_subsys_state *css = NULL;
	struct kernfs_node *kn = NULL;
	__u64 subsystem = bpf_core_enum_value(enum cgroup_subsys_id, memory_cgrp_id);
	struct anchored found = {};
	__u32 zero = 0;

	if (!cgroup) // the iteration's end
		return 0;
	found.cgroup = (__u64)cgroup;
	if (read_kernel(&kn, sizeof(kn), &cgroup->kn) ||
	    read_kernel(&found.id, sizeof(found.id), &kn->id) ||
	    read_kernel(&css, sizeof(css), (void *)&cgroup->subsys + subsystem * sizeof(css)))
		return 0;
	found.memory = css != NULL;
	bpf_map_update_elem(&anchors, &zero, &found, BPF_ANY);
	return 0;
}
