// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
//
// What caused a crossing: file cache, or other memory. A crossing that file cache
// brought waits until other memory grows, at most CACHE_WAIT; agent/signal/growth.go
// has the rule, and a test compares the two. Part of sampler.bpf.c.

#ifndef EVICTD_GROWTH_H
#define EVICTD_GROWTH_H

// How long a crossing that file cache caused may wait.
#define CACHE_WAIT (10 * SECOND)
// A reference is the least use of this time, and is compared with once it is this old.
#define REFERENCE_AGE SECOND
#define REFERENCES 16 // one each REFERENCE_AGE covers more than CACHE_WAIT; a power of two

// The state of a threshold. It stays crossed until its margin is available again.
struct watched {
	__u64 crossed; // 1: below the threshold since seen
	__u64 pending; // no record has been written yet; 2: there was no room for one
	__u64 seen; // time of the tick that saw the crossing
	__u64 sent; // time of the last record; 0: none, or raised again at once
	__u64 last_above; // time of the last tick above the threshold
	__u64 rearm; // the last order to raise again that was executed
	__u64 waiting; // file cache caused the crossing
	__u64 left; // bytes that other memory can grow before the crossing is answered
	// What the crossing is compared with: the point before it, its own, the latest
	// of REFERENCE_AGE or more, and the latest.
	struct memory_point reference;
	struct memory_point at;
	struct memory_point recent;
	struct memory_point now;
};

static struct watched watched[MAX_THRESHOLDS];

// The sampler's own references of a source: the latest that could be read, however old. A
// crossing after a time without figures is compared with them.
struct references {
	struct memory_point points[REFERENCES];
	__u64 next; // the oldest of them, which the next one replaces
	__u64 time; // when the REFERENCE_AGE of the latest began
};

static struct references references[2];

static __always_inline struct references *references_of(__u64 source)
{
	return &references[source == SOURCE_PODS];
}

// reference_at returns the reference that a search has found: its index plus one.
static __always_inline struct memory_point *reference_at(__u64 found, __u64 source)
{
	// A mask, which the verifier follows where the compiler moves a comparison.
	return &references_of(source)->points[(found - 1) & (REFERENCES - 1)];
}

// take_point reads what is in use now. The pods' usage and file figures come from one walk:
// between walks their file cache is not known.
static __always_inline void take_point(__u64 source, struct memory_point *point)
{
	__u64 used, inactive, active;
	if (source == SOURCE_NODE) {
		point->time = current.valid & VALID_NODE ? current.time : 0;
		used = current.anon + current.file;
		inactive = current.inactive_file;
		active = current.active_file;
	} else {
		point->time = current.valid & VALID_PODS ? current.pods_time : 0;
		used = current.pods_walk_usage;
		inactive = current.pods_inactive_file;
		active = current.pods_active_file;
	}
	__u64 working_set = excess(inactive, used);
	point->file_cache = active < working_set ? active : working_set;
	point->other = working_set - point->file_cache;
}

// take_reference stores the point with the least other memory of each REFERENCE_AGE: growth
// is measured neither from the memory of a process that exits within that time, nor from
// that of a victim, of which exit_mmap() has freed only part when the crossing ends. If
// nothing can be read, as while the pods are not walked, the next tick tries again.
static __always_inline void take_reference(__u64 source)
{
	struct references *its = references_of(source);
	struct memory_point point;

	take_point(source, &point);
	if (!point.time)
		return;
	if (its->time && current.time - its->time < REFERENCE_AGE) {
		struct memory_point *latest = &its->points[(its->next - 1) & (REFERENCES - 1)];
		if (point.other < latest->other)
			*latest = point;
		return;
	}
	its->points[its->next++ & (REFERENCES - 1)] = point;
	its->time = current.time;
}

static __always_inline void take_references(void)
{
	take_reference(SOURCE_NODE);
	take_reference(SOURCE_PODS);
}

// take_reference_soon is called at the end of a crossing: a reference from before it says
// little about the next one.
static __always_inline void take_reference_soon(__u64 source)
{
	struct references *its = references_of(source);
	if (current.time - its->time >= SECOND / 10) // else the latest serves: the ring is small
		its->time = 0;
}

static __always_inline void forget_pods_references(void)
{
	struct references *its = references_of(SOURCE_PODS);
	for (int i = 0; i < REFERENCES; i++)
		its->points[i].time = 0;
	its->time = 0;
}

static __always_inline __s64 other_growth(struct memory_point *from, struct memory_point *to)
{
	return to->other - from->other;
}

static __always_inline __s64 cache_growth(struct memory_point *from, struct memory_point *to)
{
	return to->file_cache - from->file_cache;
}

// other_grew returns whether other memory has grown by the floor or more, and by more than
// file cache. It returns 0 if there is no reference.
static __always_inline int other_grew(struct memory_point *from, struct memory_point *to, __u64 floor)
{
	return from->time && other_growth(from, to) >= (__s64)floor && other_growth(from, to) > cache_growth(from, to);
}

// growth_left returns how many bytes other memory must still grow to have grown.
static __always_inline __u64 growth_left(struct memory_point *from, struct memory_point *to, __u64 floor)
{
	__s64 least = cache_growth(from, to) + 1;
	if (least < (__s64)floor)
		least = floor;
	least -= other_growth(from, to);
	return least > 0 ? least : 0;
}

static __always_inline __u64 available_at(struct threshold *threshold, struct memory_point *point)
{
	return excess(point->other + point->file_cache, threshold->capacity);
}

// The results of a search through the references: an index plus one, 0 for none. They are
// global because the verifier would follow all combinations of local variables.
static __u64 found_latest, found_oldest, found_stale, found_recent;
static __u64 searched; // index of the threshold

static long search_reference(__u32 i, void *unused)
{
	struct threshold *threshold = &config.thresholds[searched & (MAX_THRESHOLDS - 1)];
	struct watched *state = &watched[searched & (MAX_THRESHOLDS - 1)];
	__u64 found = ((references_of(threshold->source)->next + i) & (REFERENCES - 1)) + 1;
	struct memory_point *point = reference_at(found, threshold->source);

	if (!point->time || point->time > state->now.time)
		return 0;
	__u64 age = state->now.time - point->time;
	if (age >= REFERENCE_AGE)
		found_recent = found;
	if (available_at(threshold, point) < threshold->available)
		return 0; // it is no reference: the threshold was crossed already
	if (age > CACHE_WAIT) {
		found_stale = found;
		return 0;
	}
	if (!found_oldest)
		found_oldest = found;
	if (age >= REFERENCE_AGE)
		found_latest = found;
	return 0;
}

// search_references finds the references that the threshold at an index is compared with.
static __always_inline void search_references(__u32 i)
{
	searched = i;
	found_latest = found_oldest = found_stale = found_recent = 0;
	bpf_loop(REFERENCES, search_reference, NULL, 0);
}

// set_point sets a point to the reference that was found; its time is 0 if there is none.
static __always_inline void set_point(struct memory_point *to, __u64 found, __u64 source)
{
	*to = *reference_at(found, source);
	if (!found)
		to->time = 0;
}

// cache_suffices returns whether the threshold would not be crossed if all active file
// cache were free.
static __always_inline int cache_suffices(struct threshold *threshold, struct watched *state)
{
	return excess(state->now.other, threshold->capacity) >= threshold->available;
}

// note_crossing records the points of a crossing of the threshold at an index, and decides
// whether file cache caused it.
GLOBAL_FUNC int note_crossing(__u32 i)
{
	if (i >= MAX_THRESHOLDS)
		return 0;
	struct threshold *threshold = &config.thresholds[i];
	struct watched *state = &watched[i];

	take_point(threshold->source, &state->now);
	state->at = state->now;
	state->recent.time = 0;
	// The reference is one by which the threshold was not crossed: of those of the last
	// CACHE_WAIT the latest that is REFERENCE_AGE old, else the oldest; if there is none,
	// the latest before that time.
	search_references(i);
	__u64 found = found_latest ? found_latest : found_oldest ? found_oldest : found_stale;
	set_point(&state->reference, found, threshold->source);
	state->waiting = threshold->growth_floor && cache_suffices(threshold, state) &&
			 !other_grew(&state->reference, &state->at, threshold->growth_floor);
	state->left = growth_left(&state->at, &state->now, threshold->growth_floor);
	return 0;
}

// follow_crossing ends the wait of a crossing that is answered by now, else updates how much
// memory is left.
GLOBAL_FUNC int follow_crossing(__u32 i)
{
	if (i >= MAX_THRESHOLDS)
		return 0;
	struct threshold *threshold = &config.thresholds[i];
	struct watched *state = &watched[i];
	__u64 floor = threshold->growth_floor;

	take_point(threshold->source, &state->now);
	search_references(i);
	set_point(&state->recent, found_recent, threshold->source);
	if (cache_suffices(threshold, state) && !other_grew(&state->at, &state->now, floor) &&
	    !other_grew(&state->recent, &state->now, floor) && current.time - state->seen < CACHE_WAIT) {
		__u64 left = growth_left(&state->at, &state->now, floor);
		__u64 recent = growth_left(&state->recent, &state->now, floor);
		// Until other memory alone crosses the threshold.
		__u64 above = excess(threshold->available, excess(state->now.other, threshold->capacity));
		if (state->recent.time && recent < left)
			left = recent;
		state->left = above < left ? above : left;
		return 0;
	}
	state->waiting = 0;
	state->pending = 1;
	state->sent = 0; // it has been raised once, as waiting
	return 0;
}

// Bytes that can be used before a crossing that waits is answered.
static __u64 until_answer;

// find_until_answer sets until_answer for the threshold at an index. All that the pods have
// used since their last walk may be other memory.
GLOBAL_FUNC int find_until_answer(__u32 i)
{
	if (i >= MAX_THRESHOLDS)
		return 0;
	until_answer = watched[i].left;
	if (config.thresholds[i].source == SOURCE_PODS)
		until_answer = excess(excess(current.pods_walk_usage, current.pods_usage), until_answer);
	return 0;
}

#endif
