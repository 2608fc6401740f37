// Package bpf watches memory from inside the kernel: a timer that samples what
// memory.available and allocatableMemory.available are made of and reports when a
// threshold is crossed, a walk that reads what every cgroup of the pods uses, and
// tracepoints that tell of reclaim, of the kernel's OOM killer and of forks.
//
// It keeps no policy. It compares numbers with numbers given to it and reports;
// whether a crossing means anything is its caller's to confirm and decide. It
// writes no log, counts no metric of its own and starts no goroutine. A figure
// that could not be read is marked as not valid and never a zero.
//
// Everything about memory is reported through one [Ring], whose descriptor the
// caller waits on in an epoll of its own; [Forks] has a descriptor for itself. Reading records, the latest sample and the table of
// cgroups takes no system call and allocates nothing.
//
// Each of [OpenSampler], [OpenReclaim], [OpenOOM] and [OpenForks] may fail where the others
// work; the error then wraps [ErrUnavailable] and says what is missing. All of it
// ends with the process, however that ends: nothing is pinned.
//
// Times are of CLOCK_MONOTONIC since boot, as Go's own time.Time keeps beside the
// wall clock. Sizes are bytes. Cgroups are named by the inode number of their
// directory.
//
// It needs CAP_BPF and CAP_PERFMON, the kernel's BTF and Linux 6.1; README.md has
// the details of each program.
package bpf

// The types are those of records.h, the only ones that both sides know. Each source
// that reads the kernel's memory is built twice, see read.h.
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
