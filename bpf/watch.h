// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
//
// Thresholds: what is left above each, when it is crossed, and how long the timer
// may sleep until one can be. Part of sampler.bpf.c.

#ifndef EVICTD_WATCH_H
#define EVICTD_WATCH_H

// No period is shorter, whatever the control says.
#define LEAST_PERIOD (50 * USEC)
// Counters move by batches (mm/memcontrol.c: MEMCG_CHARGE_BATCH, mm/vmstat.c:
// stat_threshold): over less time than this a slope is noise.
#define SLOPE_WINDOW MSEC
// One threshold is raised no more often than this.
#define RAISE_INTERVAL (10 * MSEC)
// For AFTER_CROSSING after a crossing the period is at most AFTER_CROSSING_PERIOD: a recovery
// that lasts only a moment must be seen, or it hides the next crossing.
#define AFTER_CROSSING SECOND
#define AFTER_CROSSING_PERIOD MSEC

// How long a crossing waits for a survey.
#define UNCERTAIN_LONGEST (100 * MSEC)

// A slope is measured from the older of two points, which is at least SLOPE_WINDOW old.
// A figure that was not known then is 0.
struct point {
	__u64 time;
	__u64 working_set;
	__u64 usage;
};

static __u64 uncertain_since;
static struct point older, newer;
static __u64 decay_time;

static __always_inline void forget_thresholds(void)
{
	__u32 zero = 0;
	struct order *order = bpf_map_lookup_elem(&orders, &zero);
	if (!order)
		return;
	for (int i = 0; i < MAX_THRESHOLDS; i++) {
		__builtin_memset(&watched[i], 0, sizeof(watched[i]));
		watched[i].rearm = order->rearm[i];
	}
}

static __always_inline void forget_pods(void)
{
	current.pods_time = 0;
	walk_ended = walk_backoff = survey_ended = slice_time = uncertain_since = 0;
	survey.active = survey_urgent = walk_due = list_of = list_outdated = walk.lost = walk.aging = walk.grown = nested_lowered = nested_listed = 0;
	totals.walk_time = 0;
	older.usage = newer.usage = 0;
	forget_pods_references();
	for (int i = 0; i < MAX_THRESHOLDS; i++)
		if (config.thresholds[i].source == SOURCE_PODS)
			watched[i].crossed = watched[i].pending = watched[i].waiting = 0;
}

static __always_inline __u64 free_of(struct threshold *threshold)
{
	__u64 used, reclaimable, cache;
	if (threshold->source == SOURCE_NODE) {
		used = current.anon + current.file;
		reclaimable = current.inactive_file;
		cache = current.active_file;
	} else {
		used = current.pods_usage;
		reclaimable = current.pods_inactive_file;
		cache = current.pods_active_file;
	}
	// A mask and no branch, which the verifier would follow for each threshold.
	reclaimable += cache & threshold->cache_mask;
	return excess(excess(reclaimable, used), threshold->capacity);
}

static __always_inline int have_figures(struct threshold *threshold)
{
	return current.valid & (threshold->source == SOURCE_NODE ? VALID_NODE : VALID_PODS);
}

static __always_inline int just_crossed(struct watched *state)
{
	return state->crossed && (state->pending || current.time - state->sent < AFTER_CROSSING);
}

enum {
	// The usage crosses no threshold, even with its margin, if no page cache is subtracted,
	// or only one whose crossing is older than AFTER_CROSSING.
	WALK_NOT_NEEDED,
	// The usage crosses a threshold unless page cache is subtracted, or a crossing waits.
	WALK_SOON,
	// The usage and the file figures of the last walk cross a threshold, or answer a
	// crossing that waits.
	WALK_NOW,
};

// need_of returns which walk the threshold at an index needs. It is a global function, as
// is watch_threshold: inlined, the verifier follows all combinations of the thresholds'
// states.
GLOBAL_FUNC int need_of(__u32 i)
{
	if (i >= MAX_THRESHOLDS)
		return WALK_NOT_NEEDED;
	struct threshold *threshold = &config.thresholds[i];
	struct watched *state = &watched[i];
	if (threshold->source != SOURCE_PODS)
		return WALK_NOT_NEEDED;
	if (state->crossed && state->waiting) {
		find_until_answer(i);
		return until_answer ? WALK_SOON : WALK_NOW;
	}
	if (state->crossed && !just_crossed(state))
		return WALK_NOT_NEEDED;
	if (!state->crossed && free_of(threshold) < threshold->available)
		return WALK_NOW;
	if (excess(current.pods_usage, threshold->capacity) < threshold->available + threshold->margin)
		return WALK_SOON;
	return WALK_NOT_NEEDED;
}

static __always_inline int need_of_walk(void)
{
	int need = WALK_NOT_NEEDED;
	for (int i = 0; i < MAX_THRESHOLDS; i++) {
		if (i >= config.count)
			break;
		int one = need_of(i);
		if (one == WALK_NOW)
			return WALK_NOW;
		if (one == WALK_SOON)
			need = WALK_SOON;
	}
	return need;
}

// rows_due returns whether a new table is due.
static __always_inline int rows_due(struct table *table, struct order *order)
{
	__u64 last = table->time[table->done % 2];
	return load_ordered(&order->walk) != walk_order ||
	       (config.walk_period && current.time - last >= config.walk_period);
}

// uncertain_at has found a threshold whose crossing a survey may refute.
static __u64 found_uncertain;

// uncertain_at sets found_uncertain if the threshold at an index is crossed, or its wait
// answered, only by estimates: memory that removed cgroups lost is subtracted from inactive
// page cache, their active page cache may be inactive by now, and the growth of unlisted
// cgroups may be page cache.
GLOBAL_FUNC int uncertain_at(__u32 i)
{
	if (i >= MAX_THRESHOLDS)
		return 0;
	struct threshold *threshold = &config.thresholds[i];
	struct watched *state = &watched[i];
	__u64 grown = walk.grown * page_size, slack = (walk.lost + walk.aging) * page_size + grown;

	if (threshold->source != SOURCE_PODS || free_of(threshold) >= threshold->available)
		return 0;
	if (state->crossed) {
		if (state->waiting && grown && grown >= state->left)
			found_uncertain = 1;
	} else if (free_of(threshold) + slack >= threshold->available) {
		found_uncertain = 1;
	}
	return 0;
}

// uncertain returns whether a survey may refute a crossing that the last walk found.
static __always_inline int uncertain(void)
{
	found_uncertain = 0;
	for (int i = 0; i < MAX_THRESHOLDS; i++) {
		if (!(walk.lost | walk.aging | walk.grown) || i >= config.count)
			break;
		uncertain_at(i);
	}
	if (!found_uncertain)
		uncertain_since = 0;
	else if (!uncertain_since)
		uncertain_since = current.time;
	return found_uncertain && current.time - uncertain_since < UNCERTAIN_LONGEST;
}

// read_pods_usage reads the usage of the pods' cgroup and returns whether it could.
static __always_inline int read_pods_usage(struct cgroup_subsys_state *css)
{
	long usage = 0;
	if (read_kernel(&usage, sizeof(usage), &memcg_of(css)->memory.usage)) {
		totals.faults++;
		return 0;
	}
	current.pods_usage = usage > 0 ? usage * page_size : 0;
	return 1;
}

// sample_pods reads the usage, which is exact, in every tick, and walks for the
// file figures when a threshold depends on them or they are old. A walk also writes the
// table, which ranking reads after a crossing. The cost of walks and surveys is bounded,
// since they run in a softirq.
static __always_inline void sample_pods(struct order *order)
{
	__u32 zero = 0;
	struct table *table = bpf_map_lookup_elem(&tables, &zero);
	if (!table)
		return;
	pods_doubtful = walk_owed = 0;
	struct cgroup_subsys_state *css = pods_css();
	if (!css) {
		report_gone();
		current.pods_time = current.pods_usage = current.pods_inactive_file = current.pods_active_file = 0;
		return;
	}
	if (!read_pods_usage(css))
		return;

	__u64 asked = load_ordered(&order->walk), idle = current.time - walk_ended;
	int ordered = rows_due(table, order), need = need_of_walk();
	int due = need == WALK_SOON || idle >= WALK_IDLE || !current.pods_time;
	if (walk_backoff && idle < walk_backoff) {
		current.valid |= PODS_TRUNCATED;
		return;
	}
	int listed = have_list(css), urgent = survey_urgent || !listed;
	// A slice is postponed while a walk is waited for, until the survey is overdue.
	int waits = !urgent && !survey_overdue() && (ordered || need == WALK_NOW);
	if (survey_due(css, need != WALK_NOT_NEEDED) && !waits &&
	    current.time - slice_ended >= (urgent ? SURVEY_URGENT_SHARE : SURVEY_SHARE) * slice_time) {
		do_slice((__u64)css);
		listed = have_list(css);
		if (!listed && !survey.active) {
			walk_ended = slice_ended;
			back_off();
		}
		if (!read_pods_usage(css))
			return;
	}
	if (listed && idle >= WALK_URGENT_SHARE * totals.walk_time &&
	    (ordered || walk_due || need == WALK_NOW || (due && idle >= WALK_SHARE * totals.walk_time))) {
		do_walk();
		if (ordered && walk.fault)
			walk_owed = 1;
		else if (ordered)
			walk_order = asked;
	} else {
		walk_owed = ordered || (listed && walk_due);
		pods_doubtful = need == WALK_NOW || walk_due;
	}
	if (current.pods_time && !walk_due && uncertain()) {
		survey_urgent = walk_owed = 1;
		current.valid |= PODS_UNCERTAIN;
	} else if (current.pods_time) {
		current.valid |= VALID_PODS;
	}
	if (!current.pods_time && walk_backoff)
		current.valid |= PODS_TRUNCATED;
}

static __always_inline __s64 slope(__u64 from, __u64 to, __u64 usec)
{
	if (!from || !to)
		return 0;
	if (to >= from)
		return (to - from) * 1000 / usec * 1000;
	return -(__s64)((from - to) * 1000 / usec * 1000);
}

// update_rate sets the rate that periods are computed from to the fastest slope seen: it
// rises at once and falls by half in twelve minutes, since a machine that has filled memory
// that fast can do so again.
static __always_inline void update_rate(__u64 now)
{
	struct point point = { .time = now };
	if (current.valid & VALID_NODE)
		point.working_set = excess(current.inactive_file, current.anon + current.file);
	if (current.valid & VALID_PODS)
		point.usage = current.pods_usage;
	if (now - newer.time >= SLOPE_WINDOW) {
		older = newer;
		newer = point;
	}
	if (older.time) {
		__u64 usec = (now - older.time) / USEC;
		current.slope = slope(older.working_set, point.working_set, usec);
		current.pods_slope = slope(older.usage, point.usage, usec);
		__s64 fastest = current.slope > current.pods_slope ? current.slope : current.pods_slope;
		if (fastest > (__s64)config.rate_ceiling)
			fastest = config.rate_ceiling;
		if (fastest > (__s64)totals.rate)
			totals.rate = fastest;
	}
	if (now - decay_time >= SECOND) {
		decay_time = now;
		totals.rate -= excess(config.rate_floor, totals.rate) >> 10;
	}
}

static __always_inline void raise(struct threshold *threshold, struct watched *state, __u64 available)
{
	if (state->sent && current.time - state->sent < RAISE_INTERVAL)
		return;
	struct crossing *record = bpf_ringbuf_reserve(&events, sizeof(*record), 0);
	if (!record) { // the next tick tries again
		if (state->pending == 1)
			totals.lost++;
		state->pending = 2;
		return;
	}
	record->kind = KIND_CROSSING;
	record->source = threshold->source;
	record->key = threshold->key;
	record->seen = state->seen;
	record->sent = bpf_ktime_get_ns();
	record->last_above = state->last_above;
	record->available = available;
	record->threshold = threshold->available;
	record->period = totals.period;
	record->waiting = state->waiting;
	record->reference = state->reference;
	record->at = state->at;
	record->recent = state->recent;
	record->now = state->now;
	__builtin_memcpy(&record->sample, &current, sizeof(current));
	bpf_ringbuf_submit(record, BPF_RB_FORCE_WAKEUP);
	state->pending = 0;
	state->sent = current.time;
	totals.raised++;
}

// How long the timer may sleep: the least of all thresholds.
static __u64 watch_period;

// watch_threshold compares the threshold at an index, raises, and lowers the period.
GLOBAL_FUNC int watch_threshold(__u32 i)
{
	__u32 zero = 0;
	__u64 rate = totals.rate / 1000000; // bytes per microsecond
	struct order *order = bpf_map_lookup_elem(&orders, &zero);
	if (!order || i >= MAX_THRESHOLDS)
		return 0;
	struct threshold *threshold = &config.thresholds[i];
	struct watched *state = &watched[i];
	__u64 asked = load_ordered(&order->rearm[i]);

	if (asked != state->rearm) {
		state->rearm = asked;
		state->crossed = state->pending = state->waiting = 0;
	}
	if (!have_figures(threshold))
		return 0;
	if (threshold->source == SOURCE_PODS && pods_doubtful && !state->crossed) {
		watch_period = 0; // as soon as a walk may be
		return 0;
	}
	__u64 available = free_of(threshold);
	if (state->waiting && available >= threshold->available) {
		// No longer met: the wait is over, without the margin that ends a crossing
		// which was answered.
		state->crossed = state->pending = state->waiting = 0;
		take_reference_soon(threshold->source);
	}
	if (state->crossed) {
		if (available >= threshold->available + threshold->margin) {
			state->crossed = state->pending = state->waiting = 0;
			take_reference_soon(threshold->source);
		} else if (state->waiting) {
			follow_crossing(i);
		}
	} else if (available < threshold->available) {
		state->crossed = state->pending = 1;
		state->seen = current.time;
		note_crossing(i);
	}
	if (state->pending)
		raise(threshold, state, available);
	if (available >= threshold->available)
		state->last_above = current.time;

	__u64 next = config.ceiling;
	if (!state->crossed) {
		next = excess(threshold->available, available) * 1000 / (2 * rate + 1);
	} else if (state->waiting) {
		find_until_answer(i);
		next = until_answer * 1000 / (2 * rate + 1);
	} else if (just_crossed(state)) {
		next = AFTER_CROSSING_PERIOD;
	}
	if (next < watch_period)
		watch_period = next;
	return 0;
}

// watch compares, raises and returns the period until the next tick.
static __always_inline __u64 watch(void)
{
	watch_period = config.ceiling;
	for (int i = 0; i < MAX_THRESHOLDS; i++) {
		if (i >= config.count)
			break;
		watch_threshold(i);
	}
	return watch_period;
}

static __always_inline __u64 clamp_period(__u64 period, __u64 now)
{
	__u32 zero = 0;
	struct pressure *pressure = bpf_map_lookup_elem(&pressures, &zero);
	if (walk_owed || (pressure && now < pressure->urgent_until))
		period = config.floor;
	if (period > config.ceiling)
		period = config.ceiling;
	if (period < config.floor)
		period = config.floor;
	return period < LEAST_PERIOD ? LEAST_PERIOD : period;
}

#endif
