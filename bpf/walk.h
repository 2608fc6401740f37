// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
//
// The figures of the pods' cgroup: a walk reads the cgroups that survey.h lists into
// the rows of a table. Part of sampler.bpf.c.

#ifndef EVICTD_WALK_H
#define EVICTD_WALK_H

// Walks take at most 1 / WALK_SHARE of the time, urgent ones 1 / WALK_URGENT_SHARE. Far from
// any threshold the file figures are at most WALK_IDLE old.
#define WALK_SHARE 16
#define WALK_URGENT_SHARE 4
#define WALK_IDLE SECOND
// After a walk that took too long, or a survey that failed while there was no list, the next
// walk or survey is tried after this back-off, which doubles.
#define WALK_BACKOFF_FIRST (SECOND / 8)
#define WALK_BACKOFF_LONGEST (64 * SECOND)
// A survey is due when the removed cgroups below one have shrunk, or the unlisted ones may
// have grown, by more than this many bytes.
#define SURVEY_AFTER_BYTES (16ULL << 20)
// fold_removed leaves out a cgroup with this many removed ancestors. Its file cache counts as
// used until the next survey.
#define MAX_REMOVED_ANCESTORS 8
// The most cgroups that are ever listed.
#define MAX_LISTED (1 << 18)

// One walk over the listed cgroups.
struct walk {
	__u64 half; // of the table
	__u64 rows;
	__u64 began;
	__u64 visited;
	__u64 late; // it gave up after walk_limit
	__u64 fault;
	__u64 rows_full; // there are more cgroups than rows
	__u64 any_removed; // or any partial one
	__u64 usage; // of the pods' cgroup, pages
	struct lru sum;
	// Page cache of removed and unlisted cgroups that is assumed freed since the survey,
	// and active page cache of theirs that may be inactive by now. Pages.
	__u64 lost;
	__u64 aging;
	// By how much the usage of partial cgroups has grown since the survey, pages. It may be
	// page cache, and counts as other memory until the next survey.
	__u64 grown;
	// The state of add_new_children, which goes from the latest child back.
	struct cgroup_subsys_state *child;
	struct list_head *end;
	__u64 parent;
	__u64 newest;
	__u64 all_added;
	__u64 unlisted; // there was no room for some children
};

static struct walk walk;
static __u64 walk_ended; // time
static __u64 walk_order; // the last order to walk that was executed
static __u64 gone_id; // the pods' cgroup whose removal has been reported
// Whether the pods cross a threshold is not known before the next walk: they do by the file
// figures of the last one, which may be too old, or a survey has ended since.
static __u64 pods_doubtful;
// A walk or a survey is due that was not possible in this tick. The next tick comes as soon
// as possible.
static __u64 walk_owed;
// How long after walk_ended neither a walk nor a survey is tried: the last walk took too long,
// or a survey failed while there was no list. 0: no back-off.
static __u64 walk_backoff;

static __always_inline void back_off(void)
{
	if (!walk_backoff)
		walk_backoff = WALK_BACKOFF_FIRST;
	else if (walk_backoff < WALK_BACKOFF_LONGEST)
		walk_backoff *= 2;
}

static __always_inline struct row *table_row(__u64 i)
{
	__u32 index = walk.half * max_rows + i;
	return i < max_rows ? bpf_map_lookup_elem(&rows, &index) : NULL;
}

static __always_inline void add_to_row(__u64 i, struct lru *more)
{
	struct row *row = table_row(i);
	if (!row)
		return;
	row->inactive_file += more->inactive_file * page_size;
	row->active_file += more->active_file * page_size;
	row->anon += more->anon * page_size;
	row->unevictable += more->unevictable * page_size;
}

static __always_inline void mark_partial(__u64 i)
{
	struct row *row = table_row(i);
	if (row)
		row->partial = 1;
}

// write_row writes the row of a cgroup, or adds its LRU lists to the parent's row if there is
// none left.
static __always_inline void write_row(struct listed *listed, __u64 above)
{
	struct row *row = table_row(walk.rows);
	if (!row) {
		listed->row = above;
		mark_partial(above);
		add_to_row(above, &lru);
		walk.rows_full = 1;
		return;
	}
	__builtin_memset(row, 0, sizeof(*row));
	row->id = listed->id;
	row->parent = above;
	row->usage = listed->usage * page_size;
	row->partial = listed->partial;
	listed->row = walk.rows++;
	add_to_row(listed->row, &lru);
}

// fold_removed adds the LRU lists of a cgroup that was removed after the survey to its nearest
// living ancestor, whose row is written already.
GLOBAL_FUNC int fold_removed(__u32 of)
{
	struct listed *listed = listed_at(list_half, of);
	if (!listed)
		return 0;
	__u64 above = listed->parent, left = listed->usage;

	listed->gone = list_outdated = 1;
	// Cgroups that the survey found removed below it may have shrunk since.
	if (lru.active_file > left)
		lru.active_file = left;
	left -= lru.active_file;
	if (lru.inactive_file > left)
		lru.inactive_file = left;
	for (int i = 0; i < MAX_REMOVED_ANCESTORS; i++) {
		struct listed *ancestor = listed_at(list_half, above);
		if (!ancestor)
			return 0;
		if (ancestor->gone) {
			above = ancestor->parent;
			continue;
		}
		add_sizes(&ancestor->removed, &lru);
		if (!i) // the direct parent; else the usage of the cgroups between includes it
			ancestor->rest += listed->usage;
		add_to_row(ancestor->row, &lru);
		add_sizes(&walk.sum, &lru);
		walk.any_removed = 1;
		return 0;
	}
	return 0;
}

// add_child lists a new child. The kernel appends new children (kernel/cgroup/cgroup.c:
// init_and_link_css). read_listed notices one that has been removed already.
static long add_child(__u32 i, void *unused)
{
	struct cgroup_subsys_state *child = walk.child;
	struct list_head *previous = NULL;
	__u64 serial = 0;

	if (read_serial(&serial, child) || !serial)
		return 1;
	if (serial <= walk.newest) {
		walk.all_added = 1;
		return 1;
	}
	int failed = add_listed(list_half, &list_count, list_room(), child, serial, walk.parent);
	if (failed) {
		// If there is no room (1), there is none for the others either. A read that failed
		// (-1) is tried again.
		walk.all_added = walk.unlisted = failed > 0;
		return 1;
	}
	// A child that was just taken out of the list has no previous one (list_del_rcu).
	if (read_kernel(&previous, sizeof(previous), &child->sibling.prev) || !previous)
		return 1;
	walk.all_added = previous == walk.end;
	walk.child = sibling_css(previous);
	return walk.all_added;
}

// add_new_children lists the children that are newer than those listed before.
GLOBAL_FUNC int add_new_children(__u32 of)
{
	struct listed *listed = listed_at(list_half, of);
	struct list_head *last = NULL;
	__u64 serial = 0;

	if (!listed)
		return 0;
	struct cgroup_subsys_state *css = (void *)listed->css;

	walk.end = &css->children;
	if (read_kernel(&last, sizeof(last), &css->children.prev) || last == walk.end)
		return 0;
	walk.child = sibling_css(last);
	if (read_serial(&serial, walk.child) || serial <= listed->newest)
		return 0;
	walk.newest = listed->newest;
	walk.parent = of;
	walk.all_added = walk.unlisted = 0;
	list_outdated = 1;
	__u64 before = list_count;
	bpf_loop(MAX_LISTED, add_child, NULL, 0);
	if (walk.all_added) {
		listed->newest = serial;
		// All children of a removed cgroup are removed, too, and it has no row.
		if (walk.unlisted && !listed->gone) {
			listed->partial = walk.any_removed = 1;
			mark_partial(listed->row);
		}
	} else { // the next walk tries again
		list_count = before;
		walk.fault = 1;
	}
	return 0;
}

static __always_inline __u64 usage_of(struct cgroup_subsys_state *css)
{
	long usage = 0;
	if (read_kernel(&usage, sizeof(usage), &memcg_of(css)->memory.usage)) {
		walk.fault = 1;
		return 0;
	}
	return usage > 0 ? usage : 0;
}

// read_listed reads one cgroup into its row, and lists its new children. A removed cgroup, which
// has no row, is read once more for its parent.
static long read_listed(__u32 i, void *unused)
{
	if (i >= list_count)
		return 1;
	struct listed *listed = listed_at(list_half, i);
	if (!listed) {
		walk.fault = 1;
		return 1;
	}
	if (listed->gone)
		return 0;
	if (++walk.visited % CLOCK_CHECK_INTERVAL == 0 && bpf_ktime_get_ns() - walk.began > walk_limit) {
		walk.late = 1;
		return 1;
	}
	struct cgroup_subsys_state *css = (void *)listed->css;
	unsigned int flags = 0;
	__u64 serial = 0;
	// Freed memory keeps its content for a while. A css that is not released yet (kernel/
	// cgroup/cgroup.c: css_release_work_fn) stays until this tick ends.
	if (read_kernel(&flags, sizeof(flags), &css->flags) || flags & CSS_RELEASED ||
	    read_serial(&serial, css) || serial != listed->serial) {
		listed->gone = list_outdated = 1; // no memory is charged to it any more
		if (!i) {
			list_of = 0; // survey again
			walk.fault = 1;
		}
		return 0;
	}
	if (read_lru((__u64)memcg_of(css))) {
		walk.fault = 1;
		return 1;
	}
	listed->usage = usage_of(css);
	if (!i)
		walk.usage = listed->usage;
	listed->below = lru.inactive_file + lru.active_file + lru.anon + lru.unevictable;
	add_sizes(&lru, &listed->removed);
	if (flags & CSS_DYING) {
		fold_removed(i);
		add_new_children(i);
		return 0;
	}
	add_sizes(&walk.sum, &lru);
	walk.any_removed |= listed->partial | listed->removed.inactive_file | listed->removed.active_file;
	struct listed *above = listed_at(list_half, listed->parent);
	if (above && i)
		above->below += listed->usage;
	write_row(listed, above && i ? above->row : 0);
	add_new_children(i);
	return 0;
}

// subtract_lost subtracts what removed cgroups have lost since the survey from their page
// cache: the usage of their ancestor, less its own LRU lists and the usage of its children, has
// fallen by it. Unlisted living cgroups are treated alike, but they can grow, too.
static long subtract_lost(__u32 i, void *unused)
{
	if (i >= list_count)
		return 1;
	struct listed *listed = listed_at(list_half, i);
	if (!listed)
		return 1;
	__u64 inactive = listed->removed.inactive_file, active = listed->removed.active_file;
	if (listed->gone || !(listed->partial | inactive | active))
		return 0;
	if (excess(survey_ended, current.time) >= SURVEY_INTERVAL_CHANGED)
		walk.aging += active;
	// The usage is read again, since the children were read in between: what they charged
	// or uncharged in that time must count neither as removed cgroups' nor as lost.
	__u64 then = listed->usage, now = usage_of((void *)listed->css);
	if (!listed->rest_known) {
		listed->rest = excess(listed->below, now < then ? now : then);
		if (listed->rest < inactive + active)
			listed->rest = inactive + active;
		listed->rest_known = 1;
	}
	__u64 rest = excess(listed->below, now > then ? now : then), lost = excess(rest, listed->rest);
	if (listed->partial) {
		__u64 grown = excess(listed->rest, rest);
		walk.grown += grown;
		if (grown * page_size > SURVEY_AFTER_BYTES)
			list_outdated = 1;
	}
	if (!lost)
		return 0;
	if (lost * page_size > SURVEY_AFTER_BYTES)
		list_outdated = 1;
	__u64 lost_inactive = lost < inactive ? lost : inactive;
	__u64 lost_active = excess(lost_inactive, lost);
	if (lost_active > active)
		lost_active = active;
	walk.lost += lost_inactive + lost_active;
	walk.sum.inactive_file = excess(lost_inactive, walk.sum.inactive_file);
	walk.sum.active_file = excess(lost_active, walk.sum.active_file);
	struct row *row = table_row(listed->row);
	if (row) {
		row->inactive_file = excess(lost_inactive * page_size, row->inactive_file);
		row->active_file = excess(lost_active * page_size, row->active_file);
	}
	return 0;
}

// pods_css returns the css of the pods' cgroup, or NULL if the cgroup has been removed. User
// space keeps a reference to the cgroup, but not to its css, which each tick looks up.
static __always_inline struct cgroup_subsys_state *pods_css(void)
{
	struct cgroup *cgroup = (void *)config.pods;
	struct cgroup_subsys_state *css = NULL;
	struct kernfs_node *kn = NULL;
	unsigned int flags = 0;
	__u64 id = 0;
	__u64 subsystem = bpf_core_enum_value(enum cgroup_subsys_id, memory_cgrp_id);

	if (!cgroup)
		return NULL;
	if (read_kernel(&kn, sizeof(kn), &cgroup->kn) ||
	    read_kernel(&id, sizeof(id), &kn->id) || id != config.pods_id)
		return NULL;
	void *at = (void *)&cgroup->subsys + subsystem * sizeof(css);
	if (read_kernel(&css, sizeof(css), at) || !css)
		return NULL;
	if (read_kernel(&flags, sizeof(flags), &css->flags) || flags & CSS_DYING)
		return NULL;
	return css;
}

// do_walk reads all listed cgroups into a table, and lists those that are new.
GLOBAL_FUNC int do_walk(void)
{
	__u32 zero = 0;
	struct table *table = bpf_map_lookup_elem(&tables, &zero);
	if (!table)
		return 0;
	__u64 began = bpf_ktime_get_ns();
	__u64 generation = table->begun + 1, half = generation % 2;

	__builtin_memset(&walk, 0, sizeof(walk));
	walk.began = began;
	walk.half = half;
	walk_due = 0;
	store_ordered(&table->begun, generation);
	bpf_loop(MAX_LISTED, read_listed, NULL, 0);
	if (walk.any_removed && !walk.late && !walk.fault)
		bpf_loop(MAX_LISTED, subtract_lost, NULL, 0);
	walk_ended = bpf_ktime_get_ns();
	totals.walks++;
	totals.walk_time = walk_ended - began;
	if (walk.fault) {
		totals.faults++;
		list_outdated = 1;
	}
	if (walk.late || walk.rows_full)
		totals.truncated++;
	if (!walk.late)
		walk_backoff = 0;
	else if (lower_nested())
		list_of = 0; // until a survey has listed fewer
	else
		back_off();
	if (walk.late || walk.fault) {
		current.pods_time = 0; // the sums are incomplete
	} else {
		current.pods_time = began;
		current.pods_walk_usage = walk.usage * page_size;
		current.pods_inactive_file = walk.sum.inactive_file * page_size;
		current.pods_active_file = walk.sum.active_file * page_size;
	}
	if (walk.fault)
		return 0;
	table->count[half] = walk.rows;
	table->time[half] = began;
	table->truncated[half] = walk.late;
	store_ordered(&table->done, generation);
	return 0;
}

static __always_inline void report_gone(void)
{
	if (!config.pods || gone_id == config.pods_id)
		return;
	struct gone *record = bpf_ringbuf_reserve(&events, sizeof(*record), 0);
	if (!record) {
		totals.lost++;
		return;
	}
	record->kind = KIND_GONE;
	record->pad = 0;
	record->time = current.time;
	record->cgroup = config.pods_id;
	bpf_ringbuf_submit(record, BPF_RB_FORCE_WAKEUP);
	gone_id = config.pods_id;
}

#endif
