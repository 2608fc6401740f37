// Command guest is the inside of a virtual machine of the tests: one static program that is there twice.
//
// As process 1 of the initial file system it loads the modules that came along, mounts the disks (root, modules,
// payload, known by their serial numbers), leaves itself with a unit in /run, and hands over to the root's init.
//
// As that unit it carries out the plan on the payload disk: it runs the commands one after the other, each in a
// scope of systemd's, tells of them and of the kernel on a virtio port, and switches the machine off. It is out of
// reach of what the commands do: never a victim of the kernel's OOM killer, and in a slice of its own.
package main

import (
	"fmt"
	"os"
)

func main() {
	var err error
	switch {
	case os.Getpid() == 1:
		err = startRoot()
	default:
		err = carryOut()
	}
	if err != nil {
		// As process 1 the end of this is the end of the kernel, which prints a panic below the reason.
		fmt.Fprintf(os.Stderr, "guest: %v\n", err)
		os.Exit(1)
	}
}
