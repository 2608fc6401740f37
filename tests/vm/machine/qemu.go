package machine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/evictd/evictd/tests/vm/protocol"
)

// everyMachine has the kernel arguments of all machines.
var everyMachine = []string{
	"console=ttyS0",
	"psi=1",                               // off by default in Debian's kernels
	"panic=-1",                            // reboot immediately, with -no-reboot: exit
	"oops=panic",                          // results after an oops are not reliable
	"systemd.show_status=0", "loglevel=6", // the console is slow
	"mitigations=off", // the emulated processor is slow too
}

// arguments returns QEMU's arguments for a machine with its console on descriptor 3, events on 4 and monitor on 5.
func (c Config) arguments() []string {
	return append(c.common("systemd.getty_auto=no"),
		"-add-fd", "fd=3,set=3", "-chardev", "file,id=console,path=/dev/fdset/3,append=on",
		"-add-fd", "fd=4,set=4", "-chardev", "file,id=events,path=/dev/fdset/4,append=on",
		"-device", "virtio-serial-pci", "-device", "virtserialport,chardev=events,name="+protocol.PortName,
		"-serial", "chardev:console",
		"-chardev", "socket,id=monitor,fd=5", "-mon", "chardev=monitor,mode=control")
}

// shellArguments returns QEMU's arguments for a machine with its console on the terminal. ^A c switches to the monitor.
func (c Config) shellArguments() []string {
	return append(c.common(),
		"-chardev", "stdio,id=console,mux=on,signal=off", "-serial", "chardev:console", "-mon", "chardev=console")
}

// common returns the arguments of both. Kernel arguments in c.Append come last and so override the others.
func (c Config) common(kernel ...string) []string {
	memory := c.Memory
	if memory == 0 {
		memory = DefaultMemory
	}
	kernel = slices.Concat(everyMachine, kernel, c.Append)
	return slices.Concat(c.QEMUArgs, []string{
		"-accel", "tcg,thread=multi",
		// Without cmpxchg16b: QEMU 7.2 sets wrong flags for it, which crashes the allocator of Linux 6.12 within seconds.
		"-cpu", "max,cx16=off",
		"-smp", "2", "-m", fmt.Sprint(memory), "-no-reboot", "-display", "none", "-nodefaults", "-no-user-config",
		"-kernel", c.Kernel, "-initrd", c.Initrd, "-append", strings.Join(kernel, " "),
	}, disk("root", c.Root, "snapshot=on"), disk("modules", c.Modules, "readonly=on"), disk("payload", c.Payload, "readonly=on"))
}

// disk returns the arguments of a drive, which the guest finds by its serial number. Commas in file names are doubled.
func disk(name, file, option string) []string {
	return []string{
		"-drive", fmt.Sprintf("if=none,id=%s,format=raw,file=%s,%s", name, strings.ReplaceAll(file, ",", ",,"), option),
		"-device", fmt.Sprintf("virtio-blk-pci,drive=%s,serial=%s", name, name),
	}
}
