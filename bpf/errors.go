package bpf

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

// ErrUnavailable says that this kernel, or the privileges of this process, don't
// allow what was asked for. Asking again does not help; the next best lane does.
// The error that wraps it says why.
var ErrUnavailable = errors.New("not available here")

// ErrNoTick says that the sampler has not ticked yet, ErrNoTable that it has not
// walked the pods' cgroups.
var (
	ErrNoTick  = errors.New("the sampler has not ticked yet")
	ErrNoTable = errors.New("the pods' cgroups have not been walked yet")
)

// The other errors of what a thread in a hurry calls: made beforehand, as they are
// met when there is no memory to be had.
var (
	errWalkLate    = fmt.Errorf("walk cgroups: %w", os.ErrDeadlineExceeded)
	errWalkClosed  = fmt.Errorf("walk cgroups: %w", os.ErrClosed)
	errRowsClosed  = fmt.Errorf("read table: %w", os.ErrClosed)
	errRowsOutrun  = errors.New("read table: walks are faster than its reader")
	errReadClosed  = fmt.Errorf("read sample: %w", os.ErrClosed)
	errReadBusy    = errors.New("read sample: the sampler is in the middle of a tick")
	errKickClosed  = fmt.Errorf("kick sampler: %w", os.ErrClosed)
	errNoTimer     = errors.New("the kernel starts no timer")
	errRearmClosed = fmt.Errorf("rearm threshold: %w", os.ErrClosed)
)

// unavailable wraps what the kernel or the loader answered.
func unavailable(what string, err error) error {
	// First, since the loader's answer to a missing file is that BPF is not supported.
	if !errors.Is(err, ErrUnavailable) && noBTF() {
		return fmt.Errorf("%s: %w: the kernel has no BTF (CONFIG_DEBUG_INFO_BTF, /sys/kernel/btf/vmlinux): %w", what, ErrUnavailable, err)
	}
	return refused(what, err)
}

// refused is unavailable for an object that needs no BTF of the kernel's.
func refused(what string, err error) error {
	var rejected *ebpf.VerifierError
	switch {
	case errors.Is(err, ErrUnavailable):
		return fmt.Errorf("%s: %w", what, err)
	case errors.Is(err, unix.ENOMEM), errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.EINTR):
		return fmt.Errorf("%s: %w", what, err) // it may be had another time
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%s: %w: it takes CAP_BPF and CAP_PERFMON: %w", what, ErrUnavailable, err)
	case errors.As(err, &rejected):
		return fmt.Errorf("%s: %w: the kernel's verifier refuses the program, as it does before Linux 6.2 under lockdown=confidentiality: %w", what, ErrUnavailable, err)
	}
	return fmt.Errorf("%s: %w: %w", what, ErrUnavailable, err)
}

func noBTF() bool {
	_, err := btf.LoadKernelSpec()
	return err != nil
}
