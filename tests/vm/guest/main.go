// Command guest is the program inside a virtual machine of the tests. It is static and has two roles.
//
// As process 1 of the initial file system it loads the modules in /modules, mounts the disks (root, modules, payload,
// found by their serial numbers), writes itself and a systemd unit to /run, and executes the root's init.
//
// Started by that unit it executes the plan on the payload disk: it runs the commands in order, each in a systemd scope,
// sends events about them and the kernel to a virtio port, and powers the machine off. Commands can't affect it: its
// oom_score_adj is -1000, and it has its own slice.
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
		err = runPlan()
	}
	if err != nil {
		// When process 1 exits, the kernel panics, and the console has the reason above the panic.
		fmt.Fprintf(os.Stderr, "guest: %v\n", err)
		os.Exit(1)
	}
}
