// Package machine runs a virtual machine under QEMU and tells what became of it.
//
// The machine is emulated (TCG): it needs no /dev/kvm, and is slow. It has two processors, a console, a port for
// events, and three disks, of which none is written to: what the guest writes to its root goes to a file without a
// name. QEMU dies with this process, however that one ends.
//
// A machine ends in one of three ways: by telling that it is done, in trouble (an Error, whose kinds are ErrHung,
// ErrPanicked and ErrDied), or because the context does. It is never waited for in vain: a machine that is silent
// for too long hangs.
package machine
