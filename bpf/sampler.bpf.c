//go:build ignore
// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
//
// A timer that reads what memory.available and allocatableMemory.available are
// made of, and writes one record when a threshold given to it is crossed.
//
// kernel/bpf/helpers.c: bpf_timer_cb() runs in the hrtimer softirq, which
// neither a busy CPU nor a stalled task holds up. Timers need 5.15, bpf_loop()
// 5.17. Programs that trace may have no timer, so it is a SEC("syscall") program
// that starts it, once, through BPF_PROG_TEST_RUN; nothing is attached. The timer
// ends with the last descriptor of its map: that map is never pinned.

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "read.h"
#include "records.h"
#include "shared.h"
#include "task.h"

#define USEC 1000ULL
#define MSEC (1000 * USEC)
#define SECOND (1000 * MSEC)

char LICENSE[] SEC("license") = "Dual MIT/GPL";

const volatile __u64 page_size = 4096;
// Bit n: node n is online.
const volatile __u64 online_nodes = 1;
// Rows in each half of the table.
const volatile __u64 max_rows = 1;
// How long a walk may take, in nanoseconds, before it gives up.
const volatile __u64 walk_limit = 5000000;

// A type that no map uses gets into BTF, and so into Go, by a variable of that type.
struct gone *type_of_gone __attribute__((unused));

struct clock {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct clock);
} clocks SEC(".maps");

MAPPED(controls, struct control, 1);
MAPPED(orders, struct order, 1);
MAPPED(latests, struct latest, 1);
MAPPED(tables, struct table, 1);
MAPPED(rows, struct row, 2); // resized by the loader

// Only the timer's callback uses the variables here and in the headers below, and it never
// runs twice at once: an hrtimer that is started while its callback runs stays on the same
// CPU's base (kernel/time/hrtimer.c: switch_hrtimer_base).
static struct control config;
static struct sample current;
static struct stats totals;

// excess returns by how much value exceeds base; 0 if it does not.
static __always_inline __u64 excess(__u64 base, __u64 value)
{
	return value > base ? value - base : 0;
}

// Memory ordering: BPF has no acquire load, but an atomic operation that fetches
// is a full barrier on every architecture.
static __always_inline __u64 load_ordered(__u64 *word)
{
	return __sync_fetch_and_add(word, 0);
}

static __always_inline void store_ordered(__u64 *word, __u64 value)
{
	__sync_lock_test_and_set(word, value);
}

#include "node.h"
#include "lru.h"
#include "survey.h"
#include "growth.h"
#include "walk.h"
#include "watch.h"

// take_control copies what user space asks for. While user space writes it, the previous copy
// serves for one more tick. The cgroup that the copy names is still referenced, or was when
// this tick began: user space drops the reference after the write, and the kernel frees the
// cgroup an RCU grace period later.
static __always_inline void take_control(void)
{
	static struct control fresh;
	__u32 zero = 0;
	struct control *asked = bpf_map_lookup_elem(&controls, &zero);
	if (!asked)
		return;
	__u64 seq = load_ordered(&asked->seq);
	if (seq % 2 || seq == config.seq)
		return;
	__builtin_memcpy(&fresh, asked, sizeof(fresh));
	if (load_ordered(&asked->seq) != seq)
		return;
	fresh.seq = seq;
	__u64 generation = config.generation, pods = config.pods_id;
	__builtin_memcpy(&config, &fresh, sizeof(config));
	if (generation != config.generation)
		forget_thresholds();
	if (pods != config.pods_id)
		forget_pods();
	if (!totals.rate)
		totals.rate = config.rate_start;
}

static __always_inline void publish(void)
{
	__u32 zero = 0;
	struct latest *latest = bpf_map_lookup_elem(&latests, &zero);
	if (!latest)
		return;
	__u64 seq = latest->seq;
	store_ordered(&latest->seq, seq + 1);
	__builtin_memcpy(&latest->sample, &current, sizeof(current));
	__builtin_memcpy(&latest->stats, &totals, sizeof(totals));
	store_ordered(&latest->seq, seq + 2);
}

static int tick(void *map, int *key, struct clock *clock)
{
	__u64 now = bpf_ktime_get_ns();
	__u32 zero = 0;
	struct order *order = bpf_map_lookup_elem(&orders, &zero);
	if (!order)
		return 0;

	take_control();
	current.time = now;
	current.tick++;
	current.valid = 0;
	sample_nodes();
	sample_pods(order);
	take_references();
	update_rate(now);
	__u64 period = clamp_period(watch(), now);
	totals.period = period;
	__u64 took = bpf_ktime_get_ns() - now;
	totals.run_time += took;
	if (took > totals.longest)
		totals.longest = took;
	publish();
	bpf_timer_start(&clock->timer, period, 0);
	return 0;
}

enum {
	START_OK = 0,
	START_NO_MEMCG = 1,
	START_NO_NODE = 2,
	START_NO_TIMER = 3,
};

// start finds the nodes and starts the timer. It is run once.
SEC("syscall")
int start(void *context)
{
	__u32 zero = 0;
	struct clock *clock = bpf_map_lookup_elem(&clocks, &zero);
	struct search search = { .css = css_of((void *)bpf_get_current_task()) };

	if (!clock)
		return START_NO_TIMER;
	if (!search.css)
		return START_NO_MEMCG;
	bpf_loop(MAX_DEPTH, search_css, &search, 0);
	if (!search.found)
		return START_NO_NODE;
	bpf_loop(MAX_NODES * MAX_ZONES, add_node, &search.found, 0);
	if (!node_count)
		return START_NO_NODE;
	totals.nodes = node_count;
	if (bpf_timer_init(&clock->timer, &clocks, CLOCK_MONOTONIC) ||
	    bpf_timer_set_callback(&clock->timer, tick) ||
	    bpf_timer_start(&clock->timer, 0, 0))
		return START_NO_TIMER;
	return START_OK;
}

// kick makes the next tick happen now.
SEC("syscall")
int kick(void *context)
{
	__u32 zero = 0;
	struct clock *clock = bpf_map_lookup_elem(&clocks, &zero);
	if (!clock)
		return START_NO_TIMER;
	return bpf_timer_start(&clock->timer, 0, 0) ? START_NO_TIMER : START_OK;
}

// inject writes a record as if the sampler had seen the crossing, so that everything behind
// the ring can be tested without pressure.
SEC("syscall")
int inject(struct crossing *context)
{
	struct crossing *record = bpf_ringbuf_reserve(&events, sizeof(*record), 0);
	if (!record)
		return 1;
	__builtin_memcpy(record, context, sizeof(*record));
	bpf_ringbuf_submit(record, BPF_RB_FORCE_WAKEUP);
	return 0;
}
