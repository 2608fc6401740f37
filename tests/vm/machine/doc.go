// Package machine runs a virtual machine under QEMU and reports its result.
//
// The machine is emulated (TCG): it needs no /dev/kvm, and is slow. It has two processors, a console, a port for
// events, and three disks. None of the disk images is changed: writes to the root disk go to an unlinked temporary
// file. QEMU is killed when this process exits for any reason.
//
// A run ends when the guest sends Done, with an Error (its kinds are ErrHung, ErrPanicked and ErrDied), or with the
// context. A machine that sends no event for Limits.Silence counts as hung.
package machine
