// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
//
// The node's figures: vm_stat of every NUMA node's pgdat, as /proc/vmstat sums them.
// Part of sampler.bpf.c.

#ifndef EVICTD_NODE_H
#define EVICTD_NODE_H

#define MAX_NODES 64
#define MAX_ZONES 6

struct node {
	struct pglist_data *pgdat;
	__u64 id;
};

static struct node nodes[MAX_NODES];
static __u64 node_count;

static __always_inline int node_stat(struct pglist_data *pgdat, __u64 item, __u64 *sum)
{
	long pages = 0;
	void *stat = (void *)&pgdat->vm_stat;
	if (read_kernel(&pages, sizeof(pages), stat + item * sizeof(pages)))
		return -1;
	// What the CPUs hold back can drive a count below zero for a while
	// (include/linux/vmstat.h: node_page_state).
	if (pages > 0)
		*sum += pages * page_size;
	return 0;
}

static long sample_node(__u32 i, void *unused)
{
	if (i >= MAX_NODES)
		return 1;
	struct pglist_data *pgdat = nodes[i].pgdat;
	if (node_stat(pgdat, bpf_core_enum_value(enum node_stat_item, NR_ANON_MAPPED), &current.anon) ||
	    node_stat(pgdat, bpf_core_enum_value(enum node_stat_item, NR_FILE_PAGES), &current.file) ||
	    node_stat(pgdat, bpf_core_enum_value(enum node_stat_item, NR_INACTIVE_FILE), &current.inactive_file) ||
	    node_stat(pgdat, bpf_core_enum_value(enum node_stat_item, NR_ACTIVE_FILE), &current.active_file)) {
		current.valid &= ~VALID_NODE;
		return 1;
	}
	return 0;
}

static __always_inline void sample_nodes(void)
{
	current.anon = current.file = current.inactive_file = current.active_file = 0;
	if (node_count)
		current.valid |= VALID_NODE;
	bpf_loop(node_count, sample_node, NULL, 0);
	if (!(current.valid & VALID_NODE))
		totals.faults++;
}

struct search {
	struct cgroup_subsys_state *css;
	struct pglist_data *found;
};

// The kernel sets the node of an lruvec when it is first used
// (include/linux/memcontrol.h: mem_cgroup_lruvec), so a cgroup that has used no node yet
// names none; the root cgroup names one.
static long search_node(__u32 i, void *context)
{
	struct search *search = context;
	struct mem_cgroup *memcg = (void *)search->css - bpf_core_field_offset(struct mem_cgroup, css);
	struct mem_cgroup_per_node *info = NULL;

	if (i >= 64 || !(online_nodes & (1ULL << i)))
		return 0;
	void *at = (void *)&memcg->nodeinfo + i * sizeof(info);
	if (read_kernel(&info, sizeof(info), at) || !info)
		return 0;
	if (read_kernel(&search->found, sizeof(search->found), &info->lruvec.pgdat))
		return 0;
	return search->found != NULL;
}

static long search_css(__u32 i, void *context)
{
	struct search *search = context;
	bpf_loop(MAX_NODES, search_node, search, 0);
	if (search->found)
		return 1;
	if (read_kernel(&search->css, sizeof(search->css), &search->css->parent))
		return 1;
	return search->css == NULL;
}

// One node's list of zones to fall back to names every node with memory
// (mm/page_alloc.c: build_zonelists).
static long add_node(__u32 i, void *context)
{
	struct pglist_data *from = *(struct pglist_data **)context, *pgdat = NULL;
	struct zone *zone = NULL;
	int id = 0;
	struct zoneref *ref = (void *)&from->node_zonelists[0]._zonerefs + i * bpf_core_type_size(struct zoneref);

	if (read_kernel(&zone, sizeof(zone), &ref->zone) || !zone)
		return 1;
	if (read_kernel(&pgdat, sizeof(pgdat), &zone->zone_pgdat) ||
	    read_kernel(&id, sizeof(id), &pgdat->node_id))
		return 1;
	for (int n = 0; n < MAX_NODES; n++) {
		if (n >= node_count)
			break;
		if (nodes[n].pgdat == pgdat)
			return 0;
	}
	if (node_count >= MAX_NODES)
		return 1;
	nodes[node_count].pgdat = pgdat;
	nodes[node_count].id = id;
	node_count++;
	return 0;
}

#endif
