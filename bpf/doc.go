// Package bpf loads BPF programs that watch memory and tasks from inside the
// kernel: a timer that samples the inputs of memory.available and
// allocatableMemory.available and reports when a threshold is crossed, a walk that
// reads the usage of every cgroup of the pods, and programs on the tracepoints of
// reclaim, of the kernel's OOM killer and of tasks.
//
// The package has no policy. The programs compare figures with thresholds that the
// caller gives; the caller confirms a crossing and decides what to do. The package
// writes no log, exports no metric and starts no goroutine. A figure that could not
// be read is marked as not valid; it is never reported as zero.
//
// Everything about memory is reported through one [Ring], whose descriptor the
// caller adds to its own epoll instance. [Forks] has its own descriptor. Reading
// records, the latest sample and the table of cgroups takes no system call and
// allocates nothing.
//
// Each of [OpenSampler], [OpenReclaim], [OpenOOM] and [OpenForks] may fail where the
// others work. The error wraps [ErrUnavailable] if this kernel or this process can't
// run the programs, and names what is missing. Nothing is pinned: the kernel removes
// all programs when the process ends, even if it is killed.
//
// Times are of CLOCK_MONOTONIC. Sizes are bytes. A cgroup is identified by the inode
// number of its directory.
//
// The package needs CAP_BPF, CAP_PERFMON, the kernel's BTF and Linux 6.1. README.md
// describes each program.
package bpf

// The types are those of records.h, which the programs and user space share. Each
// source that reads the kernel's memory is built twice, see read.h.
//
//go:generate go tool bpf2go -cc clang-16 -strip llvm-strip-16 -target bpfel -type crossing -type memory_point -type gone -type control -type order -type sample -type stats -type threshold -type latest -type table -type row -type pressure sampler sampler.bpf.c -- -O2 -Wall -Werror -mcpu=v3
//go:generate go tool bpf2go -cc clang-16 -strip llvm-strip-16 -target bpfel -type anchored anchor anchor.bpf.c -- -O2 -Wall -Werror -mcpu=v3
//go:generate go tool bpf2go -cc clang-16 -strip llvm-strip-16 -target bpfel -type stall reclaim reclaim.bpf.c -- -O2 -Wall -Werror -mcpu=v3
//go:generate go tool bpf2go -cc clang-16 -strip llvm-strip-16 -target bpfel -type victim oom oom.bpf.c -- -O2 -Wall -Werror -mcpu=v3
//go:generate go tool bpf2go -cc clang-16 -strip llvm-strip-16 -target bpfel -type tasks forks forks.bpf.c -- -O2 -Wall -Werror -mcpu=v3
//go:generate go tool bpf2go -cc clang-16 -strip llvm-strip-16 -target bpfel -no-global-types samplerTyped sampler.bpf.c -- -O2 -Wall -Werror -mcpu=v3 -DTYPED_READS
//go:generate go tool bpf2go -cc clang-16 -strip llvm-strip-16 -target bpfel -no-global-types anchorTyped anchor.bpf.c -- -O2 -Wall -Werror -mcpu=v3 -DTYPED_READS
//go:generate go tool bpf2go -cc clang-16 -strip llvm-strip-16 -target bpfel -no-global-types reclaimTyped reclaim.bpf.c -- -O2 -Wall -Werror -mcpu=v3 -DTYPED_READS
//go:generate go tool bpf2go -cc clang-16 -strip llvm-strip-16 -target bpfel -no-global-types oomTyped oom.bpf.c -- -O2 -Wall -Werror -mcpu=v3 -DTYPED_READS
