package bpf

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

// ErrUnavailable means that this kernel, or the privileges of this process, don't
// allow the operation. A retry does not help; the caller uses another lane. The error
// that wraps it has the reason.
var ErrUnavailable = errors.New("not available here")

// ErrNoTick means that the sampler has not ticked yet, ErrNoTable that it has not
// walked the pods' cgroups yet.
var (
	ErrNoTick  = errors.New("the sampler has not ticked yet")
	ErrNoTable = errors.New("the pods' cgroups have not been walked yet")
)

// Errors of the functions that the hot path calls. They are allocated at start,
// because the hot path runs when memory is short and must not allocate.
var (
	errWalkLate    = fmt.Errorf("walk cgroups: %w", os.ErrDeadlineExceeded)
	errWalkClosed  = fmt.Errorf("walk cgroups: %w", os.ErrClosed)
	errRowsClosed  = fmt.Errorf("read table: %w", os.ErrClosed)
	errRowsOverrun = errors.New("read table: overwritten by newer walks during each attempt")
	errReadClosed  = fmt.Errorf("read sample: %w", os.ErrClosed)
	errReadBusy    = errors.New("read sample: changed by a tick during each attempt")
	errKickClosed  = fmt.Errorf("kick sampler: %w", os.ErrClosed)
	errNoTimer     = errors.New("the kernel could not start the timer")
	errRearmClosed = fmt.Errorf("rearm threshold: %w", os.ErrClosed)
)

// unavailable wraps an error of the kernel or of the loader for an object that needs the
// kernel's BTF. It names the cause, and wraps [ErrUnavailable] unless a retry may help.
func unavailable(what string, err error) error {
	// BTF is checked first: without it, the loader reports that BPF is not supported.
	if !errors.Is(err, ErrUnavailable) && noBTF() {
		return fmt.Errorf("%s: %w: the kernel has no BTF (CONFIG_DEBUG_INFO_BTF, /sys/kernel/btf/vmlinux): %w", what, ErrUnavailable, err)
	}
	return refused(what, err)
}

// refused does the same as unavailable for an object that does not need the kernel's BTF.
func refused(what string, err error) error {
	var rejected *ebpf.VerifierError
	switch {
	case errors.Is(err, ErrUnavailable):
		return fmt.Errorf("%s: %w", what, err)
	case errors.Is(err, unix.ENOMEM), errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.EINTR):
		return fmt.Errorf("%s: %w", what, err) // a retry may help
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%s: %w: needs CAP_BPF and CAP_PERFMON: %w", what, ErrUnavailable, err)
	case errors.As(err, &rejected):
		return fmt.Errorf("%s: %w: the kernel's verifier refuses the program, as it does before Linux 6.2 under lockdown=confidentiality: %w", what, ErrUnavailable, err)
	}
	return fmt.Errorf("%s: %w: %w", what, ErrUnavailable, err)
}

func noBTF() bool {
	_, err := btf.LoadKernelSpec()
	return err != nil
}
