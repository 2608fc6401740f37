// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
//
// How the kernel's memory is read: by a helper, or, in the objects that are built
// with TYPED_READS, by loads that the verifier allows through a pointer with a type
// (kernel/bpf/verifier.c: BPF_PROBE_MEM, since 6.2 through bpf_rdonly_cast). The
// helper returns an error on a fault, where a load reads zero; but under
// lockdown=confidentiality the kernel refuses the helper and allows the loads.

#ifndef EVICTD_READ_H
#define EVICTD_READ_H

#ifdef TYPED_READS

extern void *bpf_rdonly_cast(const void *obj, __u32 btf_id) __ksym;

// struct page_counter serves because it has a field of one word.
static __always_inline __u64 read_word(const void *from)
{
	const void *at = from - bpf_core_field_offset(struct page_counter, usage.counter);
	struct page_counter *word = bpf_rdonly_cast(at, bpf_core_type_id_kernel(struct page_counter));
	return word->usage.counter;
}

// The most that is read at once: the generations of all types and zones.
#define MOST_WORDS 64

// read_kernel reads 2, 4, or a multiple of 8 bytes.
static __always_inline long read_kernel(void *to, __u64 size, const void *from)
{
	if (size == sizeof(__u16) || size == sizeof(__u32)) {
		__u64 word = read_word(from);
		if (size == sizeof(__u16))
			*(__u16 *)to = *(__u16 *)&word;
		else
			*(__u32 *)to = *(__u32 *)&word;
		return 0;
	}
#pragma unroll
	for (__u32 i = 0; i < MOST_WORDS; i++) {
		if ((i + 1) * sizeof(__u64) > size)
			break;
		((__u64 *)to)[i] = read_word(from + i * sizeof(__u64));
	}
	return 0;
}

#else
#define read_kernel bpf_probe_read_kernel
#endif

#endif
