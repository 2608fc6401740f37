package protocol

import (
	"regexp"
	"strings"
)

// Trouble is what may befall a machine while a command runs.
type Trouble string

// The troubles, and what the kernel prints of them (6.1 and 6.12).
const (
	// KernelOOM is a kill by the kernel because the whole machine had no memory left (mm/oom_kill.c,
	// __oom_kill_process). evictd is there so that this does not happen.
	KernelOOM Trouble = "kernel OOM kill"
	// CgroupOOM is the same within a memory limit, which tests provoke: it is told, and fails nothing.
	CgroupOOM Trouble = "cgroup OOM kill"
	// Panic is the end of the kernel (kernel/panic.c).
	Panic Trouble = "kernel panic"
	// Oops is a fault of the kernel itself (arch/x86/kernel/dumpstack.c, lib/bug.c).
	Oops Trouble = "kernel oops"
	// Warning is a WARN_ON (kernel/panic.c, __warn).
	Warning Trouble = "kernel warning"
	// HungTask is a task that did not run for two minutes (kernel/hung_task.c).
	HungTask Trouble = "hung task"
	// Stall is a processor that did not come to schedule (kernel/watchdog.c, kernel/rcu/tree_stall.h). An emulated
	// one does that on a busy host: it is told, and fails nothing.
	Stall Trouble = "stalled processor"
	// DiskFull is a root disk without room. The runner sees it; the kernel prints nothing.
	DiskFull Trouble = "full disk"
)

var troubles = []Trouble{KernelOOM, CgroupOOM, Panic, Oops, Warning, HungTask, Stall, DiskFull}

// Fails says that the trouble fails the command that it befalls, if that did not expect it.
func (t Trouble) Fails() bool { return t != "" && t != CgroupOOM && t != Stall }

// timestamp is what the console has before each message (CONFIG_PRINTK_TIME), and, where a message was printed into
// another line, anything before it.
var timestamp = regexp.MustCompile(`^.{0,80}?\[ *[0-9]+\.[0-9]+\](\[ *[TC][0-9]+\])? `)

// signs are how messages that tell of trouble begin. The first that fits counts.
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

// Classify says what trouble a message of the kernel tells of, with or without the console's timestamp; "" is none.
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
