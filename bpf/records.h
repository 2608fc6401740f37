// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
//
// What passes between the programs and user space. Times are nanoseconds of
// CLOCK_MONOTONIC, sizes bytes. No struct has a hole, so that Go and C agree.

#ifndef EVICTD_RECORDS_H
#define EVICTD_RECORDS_H

#define MAX_THRESHOLDS 16 // a power of two

// An array that user space maps into its memory.
#define MAPPED(name, type_, entries)                                           \
	struct {                                                               \
		__uint(type, BPF_MAP_TYPE_ARRAY);                              \
		__uint(max_entries, entries);                                  \
		__uint(map_flags, BPF_F_MMAPABLE);                             \
		__type(key, __u32);                                            \
		__type(value, type_);                                          \
	} name SEC(".maps")

enum kind {
	KIND_CROSSING = 1,
	KIND_GONE = 2,
	KIND_VICTIM = 3,
};

enum source {
	SOURCE_NODE = 0,
	SOURCE_PODS = 1,
};

enum valid {
	VALID_NODE = 1 << 0,
	VALID_PODS = 1 << 1,
	// The last walk gave up, or a survey failed while there was no list: there is no sum.
	PODS_TRUNCATED = 1 << 2,
	PODS_UNCERTAIN = 1 << 3, // whether a threshold is crossed is not known before a survey
};

// What one tick read.
struct sample {
	__u64 time;
	__u64 tick;
	__u64 anon;
	__u64 file;
	__u64 inactive_file;
	__u64 active_file;
	__s64 slope; // of the working set, bytes per second
	__u64 pods_time; // of the walk that the pods' file figures are from
	__u64 pods_usage;
	__u64 pods_walk_usage; // at the walk that the file figures are from
	__u64 pods_inactive_file;
	__u64 pods_active_file;
	__s64 pods_slope; // of the usage
	__u64 valid; // enum valid
};

// What was in use at one time: file cache, and all other memory.
struct memory_point {
	__u64 time; // 0: none
	__u64 other; // all but file cache
	__u64 file_cache; // active file pages
};

struct crossing {
	__u32 kind;
	__u32 source;
	__u64 key;
	__u64 seen;
	__u64 sent;
	__u64 last_above; // 0: never since it was armed
	__u64 available;
	__u64 threshold;
	__u64 period; // that led to the tick which saw it
	__u64 waiting; // file cache caused it; a second record follows when it is answered
	struct memory_point reference;
	struct memory_point at;
	struct memory_point recent;
	struct memory_point now;
	struct sample sample;
};

struct gone {
	__u32 kind;
	__u32 pad;
	__u64 time;
	__u64 cgroup;
};

struct victim {
	__u32 kind;
	__s32 pid;
	__s32 tgid; // 0: the kernel's tracepoint names no more than the pid
	__s32 oom_score_adj;
	__u64 time;
	__u64 cgroup; // 0: not known
	__u8 comm[16];
};

struct threshold {
	__u64 key;
	__u64 capacity;
	__u64 available;
	__u64 margin;
	__u64 source;
	__u64 cache_mask; // all ones: active file pages count as free
	__u64 growth_floor; // bytes; 0: a crossing never waits
};

// What user space asks for. If seq is odd, or has changed after the read, the copy is torn.
struct control {
	__u64 seq;
	__u64 generation; // of the thresholds
	__u64 count;
	__u64 floor;
	__u64 ceiling;
	__u64 rate_start;
	__u64 rate_floor;
	__u64 rate_ceiling;
	__u64 walk_period; // the age of the table at which a walk is due; 0: WALK_IDLE is
	__u64 pods; // struct cgroup *
	__u64 pods_id;
	struct threshold thresholds[MAX_THRESHOLDS];
};

// Requests of user space that are one word each.
struct order {
	__u64 walk; // a walk is due whenever this has changed
	__u64 rearm[MAX_THRESHOLDS]; // likewise for one threshold
};

struct stats {
	__u64 period;
	__u64 rate;
	__u64 raised;
	__u64 lost;
	__u64 run_time;
	__u64 longest;
	__u64 walks;
	__u64 walk_time; // the last walk's
	__u64 surveys;
	__u64 survey_time; // the last survey's, all slices
	__u64 survey_slices;
	__u64 truncated; // walks and surveys that were incomplete
	__u64 faults;
	__u64 nodes;
};

// The latest tick, under a sequence as in struct control.
struct latest {
	__u64 seq;
	struct sample sample;
	struct stats stats;
};

// The table of the latest walk. Rows of generation g are in half g % 2. A walk
// says that it has begun before it writes its first row.
struct table {
	__u64 begun;
	__u64 done;
	__u64 count[2];
	__u64 time[2];
	__u64 truncated[2]; // the walk took too long
};

struct row {
	__u64 id; // inode number of the cgroup's directory
	__u64 parent; // index of the parent's row; its own for the first
	__u64 usage; // with everything below
	// On the LRU lists of this cgroup alone.
	__u64 inactive_file;
	__u64 active_file;
	__u64 anon;
	__u64 unevictable;
	__u64 partial; // living cgroups below have no row
};

// What the programs on reclaim and OOM count, and until when the sampler keeps its shortest
// period.
struct pressure {
	__u64 urgent_until;
	__u64 urgent_from;
	__u64 kswapd_wakes;
	__u64 kswapd_sleeps;
	__u64 direct_begins;
	__u64 direct_ends;
	__u64 direct_time;
	__u64 throttles;
	__u64 throttle_time;
	__u64 victims;
	__u64 victims_lost;
};

// Tasks as they come and go.
struct tasks {
	__u64 count; // signed: of tasks since the programs were attached
	__u64 limit; // the count that wakes user space up, while armed is 1
	__u64 armed;
	__u64 raised;
};

struct stall {
	__u64 count;
	__u64 time;
	__u64 longest;
	__u64 last; // end of the latest
};

#endif
