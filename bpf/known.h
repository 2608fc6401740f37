// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
//
// Which cgroups there are below the pods' one, from a survey of the tree. Part of
// sampler.bpf.c.
//
// A removed cgroup stays in the kernel's tree as long as memory is charged to it,
// and a node that has seen many pods has thousands of them. Their page cache counts,
// but all in all can only shrink, so a survey visits them now and then, in slices;
// a walk (pods.h) goes over those that are alive, and finds the new ones by itself.

#ifndef EVICTD_KNOWN_H
#define EVICTD_KNOWN_H

#define MAX_DEPTH 64
#define MAX_STEPS (1 << 15)

// A slice of a survey is at most this part of walk_limit, and slices take one part
// of that many of the time.
#define SLICE_PART 4
#define SURVEY_SHARE 16
// A survey is this long good, and where cgroups have come or gone, removed ones have
// shrunk or a threshold of the pods is near, so long at least. One that a crossing
// waits for takes a larger part of the time.
#define SURVEY_URGENT_SHARE 2
#define SURVEY_EACH (10 * SECOND)
#define SURVEY_AGAIN SECOND
#define SURVEY_OVERDUE (SURVEY_EACH + SURVEY_AGAIN)
// Surveys and walks look at the clock each time that they have visited so many.
#define LOOKS_EACH 32

// One cgroup that is alive, or was when it was seen last. The memory behind the
// pointer may be another cgroup's by now: serial numbers are never used twice.
// Sizes are pages.
struct known {
	__u64 css; // struct cgroup_subsys_state *
	__u64 serial;
	__u64 id; // inode number of the directory
	__u64 parent; // index of the one above, which stands before this one
	__u64 newest; // serial number of its latest child
	__u64 gone;
	__u64 row; // index in the table of the current walk
	__u64 usage;
	__u64 below; // what it has on its own lists, and its living children use
	struct lru removed; // what removed cgroups below had on their lists
	__u64 rest; // usage beyond that, then
	__u64 rest_known;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4); // resized by the loader to four times the rows
	__type(key, __u32);
	__type(value, struct known);
} cgroups SEC(".maps");

// Half of those in use, the other is being made.
static __u64 known_half, known_count;
// The cgroup that they are below, and its memory state; 0 is none.
static __u64 known_of, known_root;
// A survey is due although the last one is not old.
static __u64 known_outdated;

// One survey of the tree, in pre-order. Its parts stand in the order of the steps:
// visit a cgroup, descend to its first child, else climb until there is a next
// sibling.
struct survey {
	struct cgroup_subsys_state *root;
	struct cgroup_subsys_state *pos;
	__u64 serial; // of pos, when a slice has ended there
	__u64 climbing;
	__u64 depth;
	__u64 removed; // depth of the topmost removed cgroup on the way down; 0: none
	__u64 count;
	__u64 began; // the slice
	__u64 visited;
	__u64 took; // all slices
	__u64 slices;
	__u64 active;
	__u64 done;
	__u64 fault;
	__u64 full; // there are more cgroups than room
	__u64 row[MAX_DEPTH]; // index at each depth on the way down
};

static struct survey survey;
static __u64 survey_ended, slice_ended, slice_time;
// A crossing waits for the survey.
static __u64 survey_urgent;
// The last survey is newer than the last walk.
static __u64 walk_due;

static __always_inline __u64 known_room(void)
{
	return 2 * max_rows;
}

static __always_inline struct known *known_at(__u64 half, __u64 i)
{
	__u32 index = half * known_room() + i;
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

// add_known adds a cgroup and returns 0, 1 where there is no room, or -1.
static __always_inline int add_known(__u64 half, __u64 *count, struct cgroup_subsys_state *css, __u64 serial, __u64 parent)
{
	struct cgroup *cgroup = NULL;
	struct kernfs_node *kn = NULL;
	__u64 id = 0;

	if (*count >= known_room())
		return 1;
	if (read_kernel(&cgroup, sizeof(cgroup), &css->cgroup) ||
	    read_kernel(&kn, sizeof(kn), &cgroup->kn) ||
	    read_kernel(&id, sizeof(id), &kn->id))
		return -1;
	struct known *known = known_at(half, *count);
	if (!known)
		return -1;
	__builtin_memset(known, 0, sizeof(*known));
	known->css = (__u64)css;
	known->serial = serial;
	known->id = id;
	known->parent = parent;
	(*count)++;
	return 0;
}

// row_at returns the place of the index at a depth. The verifier follows the mask,
// which the compiler would leave out if it knew the value.
static __always_inline __u64 *row_at(__u64 depth)
{
	asm volatile("" : "+r"(depth));
	return &survey.row[depth & (MAX_DEPTH - 1)];
}

// visit takes up a cgroup that is alive, and adds what a removed one has to the one
// above that is.
APART int visit(__u64 address)
{
	struct cgroup_subsys_state *css = (void *)address;
	__u64 half = !known_half, depth = survey.depth, serial = 0, above = 0;
	unsigned int flags = 0;

	if (read_serial(&serial, css) || read_kernel(&flags, sizeof(flags), &css->flags))
		return -1;
	if (survey.removed && depth <= survey.removed)
		survey.removed = 0;
	if (depth) {
		above = *row_at(depth - 1);
		struct known *parent = known_at(half, above);
		if (!parent)
			return -1;
		if (!survey.removed)
			parent->newest = serial;
		if (survey.removed || flags & CSS_DYING) {
			if (!survey.removed)
				survey.removed = depth;
			*row_at(depth) = above;
			if (read_lru((__u64)memcg_of(css)))
				return -1;
			add_sizes(&parent->removed, &lru);
			return 0;
		}
	}
	*row_at(depth) = survey.count;
	int failed = add_known(half, &survey.count, css, serial, above);
	if (failed > 0)
		survey.full = 1;
	return failed;
}

// slice_over says whether the survey is to go on in a later tick: what a softirq
// holds up waits for all of it.
static __always_inline int slice_over(void)
{
	return ++survey.visited % LOOKS_EACH == 0 && bpf_ktime_get_ns() - survey.began > walk_limit / SLICE_PART;
}

// step follows kernel/cgroup/cgroup.c: css_next_descendant_pre(). A softirq is an
// RCU read-side section, so what is reached from a live css stays until the tick
// is over, whatever is removed meanwhile.
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
			if (++survey.depth >= MAX_DEPTH) {
				survey.full = 1;
				goto fault;
			}
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

// resume says whether a survey can go on where its last slice ended: where that
// cgroup is still in the tree, and so all those above it.
static __always_inline int resume(struct cgroup_subsys_state *css)
{
	__u64 serial = 0;
	unsigned int flags = 0;
	return survey.active && survey.root == css && !read_kernel(&flags, sizeof(flags), &survey.pos->flags) &&
	       !(flags & CSS_RELEASED) && !read_serial(&serial, survey.pos) && serial == survey.serial;
}

static __always_inline int is_known(struct cgroup_subsys_state *css)
{
	return known_of == config.pods_id && known_root == (__u64)css;
}

static __always_inline int survey_due(struct cgroup_subsys_state *css, int near)
{
	__u64 age = current.time - survey_ended;
	return survey.active || survey_urgent || !is_known(css) || age >= SURVEY_EACH ||
	       ((known_outdated || near) && age >= SURVEY_AGAIN);
}

static __always_inline int survey_overdue(void)
{
	return current.time - survey_ended >= SURVEY_OVERDUE;
}

// do_slice does one slice of a survey. When that was the last, walks go over what
// it found.
APART int do_slice(__u64 address)
{
	struct cgroup_subsys_state *css = (void *)address;
	__u64 began = bpf_ktime_get_ns();

	if (!resume(css)) {
		survey.root = survey.pos = css;
		survey.climbing = survey.depth = survey.removed = survey.count = survey.visited = survey.took = survey.slices = 0;
		known_outdated = 0; // what happens from now on counts for the next one
	}
	survey.active = 1;
	survey.done = survey.fault = survey.full = 0;
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
		known_outdated = 1;
		if (survey.full) {
			totals.truncated++;
			known_of = current.pods_time = 0;
		} else {
			totals.faults++;
		}
		return 0;
	}
	known_half = !known_half;
	known_count = survey.count;
	known_of = config.pods_id;
	known_root = (__u64)css;
	walk_due = 1;
	totals.surveys++;
	totals.survey_time = survey.took;
	totals.survey_slices = survey.slices;
	return 0;
}

#endif
