// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
//
// The list of the pods' cgroup and the cgroups below it, from surveys of the tree.
// Part of sampler.bpf.c.
//
// A removed cgroup stays in the kernel's tree as long as memory is charged to it,
// and a node that has run many pods has thousands of them. Their page cache counts as
// used, but it can only shrink, so a survey visits them at long intervals, in slices. A
// walk (walk.h) reads the listed cgroups, which are alive, and finds new ones by itself.
//
// A container can make tens of thousands of cgroups below its own. The list has a bounded
// number for each pod, so that one pod can't take the room of others.
// A cgroup that is not listed is treated like a removed one: surveys add what is on
// its LRU lists to the nearest listed cgroup above, which is partial then. The usage of
// that one stays exact, as the kernel charges it with all that is below.

#ifndef EVICTD_SURVEY_H
#define EVICTD_SURVEY_H

// No cgroup is listed at a depth of MAX_DEPTH - 1 or more. A power of two.
#define MAX_DEPTH 64
// The most steps of a slice.
#define MAX_STEPS (1 << 15)

// The kubelet puts containers three levels below the pods' cgroup (QoS class, pod,
// container), those of guaranteed pods two. So below a cgroup at POD_DEPTH there are
// the containers of one pod at most, and what they make. Of those, NESTED_MOST are
// listed, a quarter of that whenever there is too little room or time, and always
// CONTAINERS_LEAST more of the ones right below it.
#define POD_DEPTH 2
#define CONTAINERS_LEAST 64
#define NESTED_MOST 1024
#define NESTED_LOWERINGS 6 // to 0

// A slice of a survey takes at most walk_limit / SLICE_PART, and all slices together at most
// 1 / SURVEY_SHARE of the time.
#define SLICE_PART 4
#define SURVEY_SHARE 16
// Surveys are SURVEY_INTERVAL apart, or SURVEY_INTERVAL_CHANGED if the list may be outdated
// (list_outdated) or a threshold of the pods is near. If a crossing waits for a survey, or
// there is no list, all slices together take at most 1 / SURVEY_URGENT_SHARE of the time.
#define SURVEY_URGENT_SHARE 2
#define SURVEY_INTERVAL (10 * SECOND)
#define SURVEY_INTERVAL_CHANGED SECOND
#define SURVEY_OVERDUE (SURVEY_INTERVAL + SURVEY_INTERVAL_CHANGED)
// Walks read the clock after each so many cgroups, surveys after so many steps.
#define CLOCK_CHECK_INTERVAL 32

// One listed cgroup, alive when it was last read. The memory behind the pointer may belong
// to another cgroup by now, whose serial number differs: none is used twice. Sizes are pages.
struct listed {
	__u64 css; // struct cgroup_subsys_state *
	__u64 serial;
	__u64 id; // inode number of the directory
	__u64 parent; // index of the one above, which is always lower
	__u64 depth;
	__u64 pod; // index of its ancestor at POD_DEPTH, or its own
	__u64 nested; // at POD_DEPTH: how many below it are listed
	__u64 partial; // there are living cgroups below that are not listed
	__u64 newest; // serial number of its latest child
	__u64 gone;
	__u64 row; // index in the table of the current walk
	__u64 usage;
	__u64 below; // sum of its own lists and of the usage of its living children
	// The LRU lists of removed and unlisted cgroups below, as of the survey; of those that
	// were removed since, as of their last reading.
	struct lru removed;
	// usage - below at the first walk after the survey, and what cgroups that were removed
	// since are charged.
	__u64 rest;
	__u64 rest_known;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4); // resized by the loader to four times the rows
	__type(key, __u32);
	__type(value, struct listed);
} cgroups SEC(".maps");

// The half of the map that is in use; a survey writes the other.
static __u64 list_half, list_count;
// The pods' cgroup that the list is of, and its css; 0: there is no list.
static __u64 list_of, list_root;
// A survey is due although the last one is recent: cgroups have come or gone, removed ones
// have shrunk, unlisted ones may have grown, there was too little room, or a read has failed.
static __u64 list_outdated;
// How often NESTED_MOST has been divided by four, and whether cgroups below POD_DEPTH have
// been listed at all, without which a further division changes nothing.
static __u64 nested_lowered, nested_listed;

// One survey of the tree, in pre-order: visit a cgroup, descend to its first child, else
// climb until there is a next sibling.
struct survey {
	struct cgroup_subsys_state *root;
	struct cgroup_subsys_state *pos;
	__u64 serial; // of pos, when a slice has ended there
	struct cgroup_subsys_state *pod; // the latest at POD_DEPTH
	__u64 pod_serial;
	__u64 climbing;
	__u64 depth;
	__u64 unlisted; // depth of the topmost cgroup on the way down that is not listed; 0: none
	__u64 count;
	__u64 began; // the slice
	__u64 visited;
	__u64 took; // all slices
	__u64 slices;
	__u64 active;
	__u64 done;
	__u64 fault;
	__u64 row[MAX_DEPTH]; // index of the nearest listed cgroup at each depth on the way down
};

static struct survey survey;
static __u64 survey_ended, slice_ended, slice_time;
// A crossing waits for the survey.
static __u64 survey_urgent;
// The last survey is newer than the last walk.
static __u64 walk_due;

// A survey lists at most as many cgroups as there are rows. The rest of the room is for
// cgroups that are made before the next survey.
static __always_inline __u64 list_room(void)
{
	return 2 * max_rows;
}

static __always_inline __u64 nested_most(__u64 depth)
{
	__u64 most = nested_lowered < NESTED_LOWERINGS ? NESTED_MOST >> (2 * nested_lowered) : 0;
	return depth == POD_DEPTH + 1 ? most + CONTAINERS_LEAST : most;
}

static __always_inline struct listed *listed_at(__u64 half, __u64 i)
{
	__u32 index = half * list_room() + i;
	return bpf_map_lookup_elem(&cgroups, &index);
}

static __always_inline struct mem_cgroup *memcg_of(struct cgroup_subsys_state *css)
{
	return (void *)css - bpf_core_field_offset(struct mem_cgroup, css);
}

static __always_inline struct cgroup_subsys_state *sibling_css(struct list_head *entry)
{
	return (void *)entry - bpf_core_field_offset(struct cgroup_subsys_state, sibling);
}

static __always_inline long read_serial(__u64 *serial, struct cgroup_subsys_state *css)
{
	return read_kernel(serial, sizeof(*serial), &css->serial_nr);
}

// add_listed lists a cgroup. It returns 0, 1 if there is no room, or -1 if the cgroup can't be
// read. The first one is the pods' cgroup.
static __always_inline int add_listed(__u64 half, __u64 *count, __u64 room, struct cgroup_subsys_state *css, __u64 serial, __u64 above)
{
	struct cgroup *cgroup = NULL;
	struct kernfs_node *kn = NULL;
	__u64 id = 0, depth = 0, pod = *count;

	if (*count >= room)
		return 1;
	if (read_kernel(&cgroup, sizeof(cgroup), &css->cgroup) ||
	    read_kernel(&kn, sizeof(kn), &cgroup->kn) ||
	    read_kernel(&id, sizeof(id), &kn->id))
		return -1;
	if (*count) {
		struct listed *parent = listed_at(half, above);
		if (!parent)
			return -1;
		depth = parent->depth + 1;
		if (depth > POD_DEPTH) {
			pod = parent->pod;
			struct listed *its = listed_at(half, pod);
			if (!its)
				return -1;
			if (its->nested >= nested_most(depth) || depth >= MAX_DEPTH - 1)
				return 1;
			its->nested++;
			nested_listed = 1;
		}
	}
	struct listed *listed = listed_at(half, *count);
	if (!listed)
		return -1;
	__builtin_memset(listed, 0, sizeof(*listed));
	listed->css = (__u64)css;
	listed->serial = serial;
	listed->id = id;
	listed->parent = above;
	listed->depth = depth;
	listed->pod = pod;
	(*count)++;
	return 0;
}

// row_at returns where the index at a depth is stored. The verifier needs the mask, which the
// compiler would optimize away if it knew the value.
static __always_inline __u64 *row_at(__u64 depth)
{
	asm volatile("" : "+r"(depth));
	return &survey.row[depth & (MAX_DEPTH - 1)];
}

// visit lists a cgroup. The LRU lists of a removed cgroup, and of one for which there is no
// room, are added to the nearest listed ancestor.
GLOBAL_FUNC int visit(__u64 address)
{
	struct cgroup_subsys_state *css = (void *)address;
	__u64 half = !list_half, depth = survey.depth, serial = 0, above = 0;
	unsigned int flags = 0;

	if (read_serial(&serial, css) || read_kernel(&flags, sizeof(flags), &css->flags))
		return -1;
	if (survey.unlisted && depth <= survey.unlisted)
		survey.unlisted = 0;
	if (depth == POD_DEPTH) {
		survey.pod = css;
		survey.pod_serial = serial;
	}
	if (depth) {
		above = *row_at((survey.unlisted ? survey.unlisted : depth) - 1);
		struct listed *parent = listed_at(half, above);
		if (!parent)
			return -1;
		if (!survey.unlisted)
			parent->newest = serial;
		int removed = flags & CSS_DYING, failed = 1;
		if (!survey.unlisted && !removed)
			failed = add_listed(half, &survey.count, max_rows, css, serial, above);
		if (failed < 0)
			return failed;
		if (failed) {
			if (!removed)
				parent->partial = 1;
			if (!survey.unlisted)
				survey.unlisted = depth;
			if (read_lru((__u64)memcg_of(css)))
				return -1;
			add_sizes(&parent->removed, &lru);
		} else {
			above = survey.count - 1;
		}
	} else if (add_listed(half, &survey.count, max_rows, css, serial, 0)) {
		return -1;
	}
	if (depth < MAX_DEPTH)
		*row_at(depth) = above;
	return 0;
}

// slice_over returns whether the survey continues in a later tick: a long softirq delays
// everything else on its CPU.
static __always_inline int slice_over(void)
{
	return ++survey.visited % CLOCK_CHECK_INTERVAL == 0 && bpf_ktime_get_ns() - survey.began > walk_limit / SLICE_PART;
}

// step follows kernel/cgroup/cgroup.c: css_next_descendant_pre(). A softirq is an
// RCU read-side section, so what is reached from a live css stays until the tick
// ends, even if it is removed.
static long step(__u32 i, void *unused)
{
	struct cgroup_subsys_state *pos = survey.pos, *parent = NULL;
	struct list_head *next = NULL;

	if (!survey.climbing) {
		if (visit((__u64)pos))
			goto fault;
		if (read_kernel(&next, sizeof(next), &pos->children.next))
			goto fault;
		if (next != &pos->children) {
			survey.depth++;
			survey.pos = sibling_css(next);
			return slice_over();
		}
	}
	if (pos == survey.root) {
		survey.done = 1;
		return 1;
	}
	if (read_kernel(&parent, sizeof(parent), &pos->parent) ||
	    read_kernel(&next, sizeof(next), &pos->sibling.next))
		goto fault;
	survey.climbing = next == &parent->children;
	if (survey.climbing) {
		survey.depth--;
		survey.pos = parent;
	} else {
		survey.pos = sibling_css(next);
	}
	return slice_over();
fault:
	survey.fault = 1;
	return 1;
}

// in_tree returns whether a cgroup that had a serial number is still in the tree, and with it
// all its ancestors.
static __always_inline int in_tree(struct cgroup_subsys_state *css, __u64 then)
{
	__u64 serial = 0;
	unsigned int flags = 0;
	return !read_kernel(&flags, sizeof(flags), &css->flags) && !(flags & CSS_RELEASED) &&
	       !read_serial(&serial, css) && serial == then;
}

// resume returns whether a survey can continue where its last slice ended. If that cgroup is
// gone, the survey continues after its pod, which becomes partial: otherwise a container that
// makes and removes cgroups all the time would restart every survey, and none would end.
static __always_inline int resume(struct cgroup_subsys_state *css)
{
	if (!survey.active || survey.root != css)
		return 0;
	if (in_tree(survey.pos, survey.serial))
		return 1;
	if (survey.depth <= POD_DEPTH || !in_tree(survey.pod, survey.pod_serial))
		return 0;
	struct listed *listed = listed_at(!list_half, *row_at(POD_DEPTH));
	if (!listed)
		return 0;
	listed->partial = 1;
	survey.pos = survey.pod;
	survey.depth = POD_DEPTH;
	survey.climbing = 1;
	return 1;
}

// lower_nested makes the next survey list fewer cgroups of each pod. It returns whether that
// is possible.
static __always_inline int lower_nested(void)
{
	if (!nested_listed || nested_lowered >= NESTED_LOWERINGS)
		return 0;
	nested_lowered++;
	return 1;
}

// fit_nested adapts how many cgroups of each pod are listed to what a survey has found. The
// number rises only where a walk would stay short with four times as many.
static __always_inline void fit_nested(void)
{
	if (survey.count >= max_rows) {
		totals.truncated++;
		if (lower_nested())
			list_outdated = 1;
	} else if (nested_lowered && survey.count <= max_rows / 8 && totals.walk_time <= walk_limit / 8) {
		nested_lowered--;
	}
}

static __always_inline int have_list(struct cgroup_subsys_state *css)
{
	return list_of == config.pods_id && list_root == (__u64)css;
}

static __always_inline int survey_due(struct cgroup_subsys_state *css, int near)
{
	__u64 age = current.time - survey_ended;
	return survey.active || survey_urgent || !have_list(css) || age >= SURVEY_INTERVAL ||
	       ((list_outdated || near) && age >= SURVEY_INTERVAL_CHANGED);
}

static __always_inline int survey_overdue(void)
{
	return current.time - survey_ended >= SURVEY_OVERDUE;
}

// do_slice does one slice of a survey. After the last slice, walks read what it has listed.
GLOBAL_FUNC int do_slice(__u64 address)
{
	struct cgroup_subsys_state *css = (void *)address;
	__u64 began = bpf_ktime_get_ns();

	if (!resume(css)) {
		survey.root = survey.pos = css;
		survey.climbing = survey.depth = survey.unlisted = survey.count = survey.visited = survey.took = survey.slices = 0;
		list_outdated = 0; // changes from now on count for the next survey
	}
	survey.active = 1;
	survey.done = survey.fault = 0;
	survey.began = began;
	bpf_loop(MAX_STEPS, step, NULL, 0);
	slice_ended = bpf_ktime_get_ns();
	slice_time = slice_ended - began;
	survey.took += slice_time;
	survey.slices++;
	if (!survey.done && !survey.fault && !read_serial(&survey.serial, survey.pos))
		return 0;
	survey.active = survey_urgent = 0;
	survey_ended = slice_ended;
	if (!survey.done) {
		list_outdated = 1;
		totals.faults++;
		return 0;
	}
	list_half = !list_half;
	list_count = survey.count;
	list_of = config.pods_id;
	list_root = (__u64)css;
	walk_due = 1;
	fit_nested();
	totals.surveys++;
	totals.survey_time = survey.took;
	totals.survey_slices = survey.slices;
	return 0;
}

#endif
