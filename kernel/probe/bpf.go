package probe

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
)

// ringBuffer creates a BPF ring buffer (Linux 5.8) and closes it. A process that may
// not do that may not load BPF programs either.
func ringBuffer() Feature {
	const name = "bpf ring buffer"
	// The part of union bpf_attr that BPF_MAP_CREATE reads for a map without keys
	// (include/uapi/linux/bpf.h).
	attr := struct {
		mapType, keySize, valueSize, maxEntries, flags uint32
	}{mapType: unix.BPF_MAP_TYPE_RINGBUF, maxEntries: uint32(os.Getpagesize())}
	fd, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_MAP_CREATE, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	switch {
	case errno == 0:
		unix.Close(int(fd))
		return yes(name, "")
	case errno == unix.ENOSYS:
		return no(name, errno.Error(), "a kernel with CONFIG_BPF_SYSCALL")
	case errno == unix.EINVAL:
		return no(name, errno.Error(), "Linux 5.8")
	case errors.Is(errno, unix.EPERM), errors.Is(errno, unix.EACCES):
		return no(name, errno.Error(), "CAP_BPF, and a seccomp filter that allows bpf(2)")
	}
	return unknown(name, fmt.Errorf("create bpf ring buffer: %w", errno))
}

// lockdown probes whether BPF programs may read kernel memory, as tracing programs
// do. Lockdown in confidentiality mode disables the helpers for that, but not typed
// loads through bpf_rdonly_cast (Linux 6.2).
func lockdown(proc, sys kernel.FS) Feature {
	const name = "bpf tracing"
	content, err := os.ReadFile(sys.Path("kernel", "security", "lockdown"))
	if err != nil { // missing if the kernel has no lockdown, or if securityfs is not mounted
		return unknown(name, fmt.Errorf("read lockdown: %w", err))
	}
	// security/lockdown/lockdown.c: lockdown_read:
	//
	//	none [integrity] confidentiality
	level := "lockdown: " + strings.TrimSpace(string(content))
	if !strings.Contains(level, "[confidentiality]") {
		return yes(name, level)
	}
	const cast = "bpf_rdonly_cast"
	switch found, err := hasSymbol(proc, cast); {
	case err != nil:
		return unknown(name, err)
	case found:
		return yes(name, level+", by "+cast)
	}
	return no(name, level, "Linux 6.2, or a kernel without lockdown in confidentiality mode")
}

// hasSymbol reports whether <proc>/kallsyms lists a symbol:
//
//	0000000000000000 T bpf_rdonly_cast
func hasSymbol(proc kernel.FS, symbol string) (bool, error) {
	f, err := os.Open(proc.Path("kallsyms"))
	if err != nil {
		return false, fmt.Errorf("read kernel symbols: %w", err)
	}
	defer f.Close()
	lines, empty := bufio.NewScanner(f), true
	for lines.Scan() {
		empty = false
		if fields := strings.Fields(lines.Text()); len(fields) >= 3 && fields[2] == symbol {
			return true, nil
		}
	}
	if err := lines.Err(); err != nil {
		return false, fmt.Errorf("read kernel symbols: %w", err)
	}
	if empty { // as with systemd's ProtectKernelTunables=
		return false, errors.New("read kernel symbols: the list is empty")
	}
	return false, nil
}
