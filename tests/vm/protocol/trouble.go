package protocol

import (
	"regexp"
	"strings"
)

// Trouble is a kind of problem of a machine's kernel or disk.
type Trouble string

// The kinds of problems. The kernel's messages are those of 6.1 and 6.12.
const (
	// KernelOOM is a kill by the kernel's OOM killer because the whole machine is out of memory (mm/oom_kill.c,
	// __oom_kill_process). evictd must prevent it.
	KernelOOM Trouble = "kernel OOM kill"
	// CgroupOOM is the same at a memory limit. Tests provoke it, so it is reported and does not fail a command.
	CgroupOOM Trouble = "cgroup OOM kill"
	// Panic is a kernel panic (kernel/panic.c).
	Panic Trouble = "kernel panic"
	// Oops is a fault of the kernel itself (arch/x86/kernel/dumpstack.c, lib/bug.c).
	Oops Trouble = "kernel oops"
	// Warning is a WARN_ON (kernel/panic.c, __warn).
	Warning Trouble = "kernel warning"
	// HungTask is a task that did not run for two minutes (kernel/hung_task.c).
	HungTask Trouble = "hung task"
	// Stall is a processor that did not schedule (kernel/watchdog.c, kernel/rcu/tree_stall.h). That happens to an
	// emulated one on a busy host, so it is reported and does not fail a command.
	Stall Trouble = "stalled processor"
	// DiskFull is a full root disk. The runner detects it; the kernel prints nothing.
	DiskFull Trouble = "full disk"
)

var troubles = []Trouble{KernelOOM, CgroupOOM, Panic, Oops, Warning, HungTask, Stall, DiskFull}

// Fails reports whether the trouble fails a running command that does not expect it.
func (t Trouble) Fails() bool { return t != "" && t != CgroupOOM && t != Stall }

// timestamp matches the prefix of a message on the console (CONFIG_PRINTK_TIME), including the begin of another line
// into which the message was printed.
var timestamp = regexp.MustCompile(`^.{0,80}?\[ *[0-9]+\.[0-9]+\](\[ *[TC][0-9]+\])? `)

// signs are the beginnings of the kernel's messages about troubles. The first match counts.
var signs = []struct {
	begin   string
	contain string
	trouble Trouble
}{
	// Out of memory: Killed process 412 (hog) total-vm:4194304kB, anon-rss:3512320kB, …
	{begin: "Out of memory: Killed process ", trouble: KernelOOM},
	{begin: "Out of memory (oom_kill_allocating_task): Killed process ", trouble: KernelOOM},
	// Memory cgroup out of memory: Killed process 530 (hog) total-vm:…
	{begin: "Memory cgroup out of memory: Killed process ", trouble: CgroupOOM},
	// Kernel panic - not syncing: sysrq triggered crash
	{begin: "Kernel panic - not syncing: ", trouble: Panic},
	// watchdog: BUG: soft lockup - CPU#1 stuck for 26s! [hog:412]
	{begin: "watchdog: BUG: soft lockup", trouble: Stall},
	// rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:
	{begin: "rcu: INFO: rcu_", trouble: Stall},
	// BUG: kernel NULL pointer dereference, address: 00000000000000a8
	{begin: "BUG: workqueue lockup", trouble: Stall},
	{begin: "BUG: ", trouble: Oops},
	// kernel BUG at mm/memory.c:1234!
	{begin: "kernel BUG at ", trouble: Oops},
	// Oops: 0002 [#1] PREEMPT SMP NOPTI; 6.12 prints Oops: Oops: 0000 [#1] …
	{begin: "Oops: ", trouble: Oops},
	// general protection fault, probably for non-canonical address 0xdead…: 0000 [#1] PREEMPT SMP
	{begin: "general protection fault", contain: "[#", trouble: Oops},
	// WARNING: CPU: 0 PID: 412 at mm/page_counter.c:62 page_counter_cancel+0x34/0x40
	{begin: "WARNING: CPU: ", trouble: Warning},
	// INFO: task hog:412 blocked for more than 120 seconds.
	{begin: "INFO: task ", contain: " blocked for more than ", trouble: HungTask},
	// EXT4-fs error (device vda): ext4_validate_block_bitmap:390: comm hog: …
	{begin: "EXT4-fs error ", trouble: Oops},
}

// Classify returns the trouble that a kernel message reports, "" for none. The message may have the console's timestamp.
func Classify(message string) Trouble {
	message = strings.TrimSuffix(message, "\r")
	if loc := timestamp.FindStringIndex(message); loc != nil {
		message = message[loc[1]:]
	}
	for _, s := range signs {
		if strings.HasPrefix(message, s.begin) && strings.Contains(message, s.contain) {
			return s.trouble
		}
	}
	return ""
}
