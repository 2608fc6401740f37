package bpf

import (
	"fmt"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Commands of bpf(2), from include/uapi/linux/bpf.h: one that the library's call
// allocates for, and one that it has no call for with a cgroup.
const (
	cmdProgTestRun = 10
	cmdLinkCreate  = 28

	cgroupIterSelfOnly = 1
)

// testRunAttr is the part of union bpf_attr that BPF_PROG_TEST_RUN reads. The
// pointers are pointers so that they stay right when a stack moves.
type testRunAttr struct {
	progFD      uint32
	retval      uint32
	dataSizeIn  uint32
	dataSizeOut uint32
	dataIn      unsafe.Pointer
	dataOut     unsafe.Pointer
	repeat      uint32
	duration    uint32
	ctxSizeIn   uint32
	ctxSizeOut  uint32
	ctxIn       unsafe.Pointer
	ctxOut      unsafe.Pointer
	flags       uint32
	cpu         uint32
	batchSize   uint32
	_           uint32
}

// run runs a SEC("syscall") program once with a context, which may be nil, and
// returns what it returned. It does not allocate, nor when it fails.
func run(prog *ebpf.Program, context unsafe.Pointer, size uintptr) (uint32, error) {
	attr := testRunAttr{progFD: uint32(prog.FD()), ctxSizeIn: uint32(size), ctxIn: context}
	_, _, errno := unix.Syscall(unix.SYS_BPF, cmdProgTestRun, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	if errno != 0 {
		return 0, runError(errno)
	}
	return attr.retval, nil
}

// runError is the kernel's answer to run. Numbers below 256 become an error without
// memory for it (runtime/iface.go: convT64).
type runError unix.Errno

// Error implements error.
func (e runError) Error() string { return "run bpf program: " + unix.Errno(e).Error() }

// Unwrap returns the number.
func (e runError) Unwrap() error { return unix.Errno(e) }

// linkCgroupIter links an iterator program to the one cgroup of a directory.
func linkCgroupIter(prog *ebpf.Program, dir int) (int, error) {
	info := struct { // union bpf_iter_link_info
		order    uint32
		cgroupFD uint32
		cgroupID uint64
	}{order: cgroupIterSelfOnly, cgroupFD: uint32(dir)}
	attr := struct { // union bpf_attr
		progFD      uint32
		targetFD    uint32
		attachType  uint32
		flags       uint32
		iterInfo    unsafe.Pointer
		iterInfoLen uint32
		_           uint32
	}{
		progFD: uint32(prog.FD()), attachType: uint32(ebpf.AttachTraceIter),
		iterInfo: unsafe.Pointer(&info), iterInfoLen: uint32(unsafe.Sizeof(info)),
	}
	fd, _, errno := unix.Syscall(unix.SYS_BPF, cmdLinkCreate, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	if errno != 0 {
		return -1, fmt.Errorf("link cgroup iterator: %w", errno)
	}
	return int(fd), nil
}
