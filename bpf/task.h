// SPDX-License-Identifier: (MIT OR GPL-2.0-only)

#ifndef EVICTD_TASK_H
#define EVICTD_TASK_H

// css_of returns a task's state in the memory controller, which is that of the
// next cgroup above it where the controller is on.
static __always_inline struct cgroup_subsys_state *css_of(struct task_struct *task)
{
	struct cgroup_subsys_state *css = NULL;
	struct css_set *set = NULL;
	__u64 subsystem = bpf_core_enum_value(enum cgroup_subsys_id, memory_cgrp_id);

	if (read_kernel(&set, sizeof(set), &task->cgroups) ||
	    read_kernel(&css, sizeof(css), (void *)&set->subsys + subsystem * sizeof(css)))
		return NULL;
	return css;
}

// cgroup_of returns the inode number of the directory of a task's memory cgroup,
// 0 if there is none.
static __always_inline __u64 cgroup_of(struct task_struct *task)
{
	struct cgroup_subsys_state *css = css_of(task);
	struct cgroup *cgroup = NULL;
	struct kernfs_node *kn = NULL;
	__u64 id = 0;

	if (!css || read_kernel(&cgroup, sizeof(cgroup), &css->cgroup) ||
	    read_kernel(&kn, sizeof(kn), &cgroup->kn) ||
	    read_kernel(&id, sizeof(id), &kn->id))
		return 0;
	return id;
}

#endif
