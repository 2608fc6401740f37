package machine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/evictd/evictd/tests/vm/protocol"
)

// everyMachine are the kernel arguments of all machines.
var everyMachine = []string{
	"console=ttyS0",
	"psi=1",                               // Debian builds it in and leaves it off
	"panic=-1",                            // restart at once, which -no-reboot makes the end
	"oops=panic",                          // a kernel that has gone wrong proves nothing any more
	"systemd.show_status=0", "loglevel=6", // the console is slow
	"mitigations=off", // so is the processor, and nobody to protect
}

// arguments are QEMU's for a machine whose console and events go to descriptors 3 and 4, and whose monitor is 5.
func (c Config) arguments() []string {
	return append(c.common("systemd.getty_auto=no"),
		"-add-fd", "fd=3,set=3", "-chardev", "file,id=console,path=/dev/fdset/3,append=on",
		"-add-fd", "fd=4,set=4", "-chardev", "file,id=events,path=/dev/fdset/4,append=on",
		"-device", "virtio-serial-pci", "-device", "virtserialport,chardev=events,name="+protocol.PortName,
		"-serial", "chardev:console",
		"-chardev", "socket,id=monitor,fd=5", "-mon", "chardev=monitor,mode=control")
}

// shellArguments are QEMU's for a machine whose console is the terminal, with QEMU's own prompt behind ^A c.
func (c Config) shellArguments() []string {
	return append(c.common(),
		"-chardev", "stdio,id=console,mux=on,signal=off", "-serial", "chardev:console", "-mon", "chardev=console")
}

// common is what they have in common. Arguments of the kernel that c has count more than those given here.
func (c Config) common(kernel ...string) []string {
	memory := c.Memory
	if memory == 0 {
		memory = DefaultMemory
	}
	kernel = slices.Concat(everyMachine, kernel, c.Append)
	return slices.Concat(c.QEMUArgs, []string{
		"-accel", "tcg,thread=multi",
		// Without cmpxchg16b: that of QEMU 7.2 leaves flags behind which break the allocator of Linux 6.12 within
		// seconds, and with it everything.
		"-cpu", "max,cx16=off",
		"-smp", "2", "-m", fmt.Sprint(memory), "-no-reboot", "-display", "none", "-nodefaults", "-no-user-config",
		"-kernel", c.Kernel, "-initrd", c.Initrd, "-append", strings.Join(kernel, " "),
	}, disk("root", c.Root, "snapshot=on"), disk("modules", c.Modules, "readonly=on"), disk("payload", c.Payload, "readonly=on"))
}

// disk is a drive that the guest knows by its serial number. Commas separate options, and are doubled in names.
func disk(name, file, option string) []string {
	return []string{
		"-drive", fmt.Sprintf("if=none,id=%s,format=raw,file=%s,%s", name, strings.ReplaceAll(file, ",", ",,"), option),
		"-device", fmt.Sprintf("virtio-blk-pci,drive=%s,serial=%s", name, name),
	}
}
