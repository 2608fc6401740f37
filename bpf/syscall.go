package bpf

import (
	"fmt"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Commands of bpf(2), from include/uapi/linux/bpf.h. cilium/ebpf allocates for
// BPF_PROG_TEST_RUN, and can't create a link of an iterator over a cgroup.
const (
	cmdProgTestRun = 10
	cmdLinkCreate  = 28

	cgroupIterSelfOnly = 1
)

// testRunAttr is the part of union bpf_attr that BPF_PROG_TEST_RUN reads. Its pointers
// have pointer types, so that Go updates them when it moves a stack.
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

// run runs a SEC("syscall") program once with a context, which may be nil, and returns
// the program's return value. It does not allocate, even if it fails.
func run(prog *ebpf.Program, context unsafe.Pointer, size uintptr) (uint32, error) {
	attr := testRunAttr{progFD: uint32(prog.FD()), ctxSizeIn: uint32(size), ctxIn: context}
	_, _, errno := unix.Syscall(unix.SYS_BPF, cmdProgTestRun, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	if errno != 0 {
		return 0, runError(errno)
	}
	return attr.retval, nil
}

// runError is the errno of run. Go converts values below 256 to an interface without
// allocating (runtime/iface.go: convT64).
type runError unix.Errno

// Error implements error.
func (e runError) Error() string { return "run bpf program: " + unix.Errno(e).Error() }

// Unwrap returns the errno.
func (e runError) Unwrap() error { return unix.Errno(e) }

// linkCgroupIter creates a link of an iterator program to the cgroup of a directory and
// returns its descriptor.
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
