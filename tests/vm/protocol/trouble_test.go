package protocol

import "testing"

// Messages as Debian's 6.1 and 6.12 print them, with and without the console's timestamp.
func TestClassify(t *testing.T) {
	for _, tt := range []struct {
		message string
		want    Trouble
	}{
		{"Out of memory: Killed process 412 (stress-ng-vm) total-vm:4242596kB, anon-rss:3512320kB, file-rss:8kB, shmem-rss:0kB, UID:0 pgtables:6924kB oom_score_adj:0", KernelOOM},
		{"[   40.120394] Out of memory: Killed process 412 (hog) total-vm:4242596kB", KernelOOM},
		{"[   40.120394][ T1234] Out of memory: Killed process 412 (hog) total-vm:4242596kB", KernelOOM},
		{"Out of memory (oom_kill_allocating_task): Killed process 412 (hog)", KernelOOM},
		{"Memory cgroup out of memory: Killed process 530 (hog) total-vm:266240kB, anon-rss:261632kB", CgroupOOM},
		{"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/a,task_memcg=/a,task=hog,pid=530,uid=0", ""},
		{"hog invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0", ""},
		{"Kernel panic - not syncing: sysrq triggered crash", Panic},
		{"[    7.121212] Kernel panic - not syncing: Attempted to kill init! exitcode=0x00000100\r", Panic},
		{"[    7.939433] BUG: kernel NULL pointer dereference, address: 00000000000000a8", Oops},
		{"[   11.027468] Oops: double fault: 0000 [#1] PREEMPT SMP NOPTI", Oops},
		{"[    7.941930] Oops: Oops: 0000 [#1] PREEMPT SMP NOPTI", Oops},
		{"[   11.12] general protection fault, probably for non-canonical address 0xdf12c18bbffc4020: 0000 [#1] PREEMPT SMP NOPTI", Oops},
		{"kernel BUG at mm/memory.c:1234!", Oops},
		{"EXT4-fs error (device vda): ext4_validate_block_bitmap:390: comm hog: bg 0: bad block bitmap checksum", Oops},
		{"WARNING: CPU: 1 PID: 412 at mm/page_counter.c:62 page_counter_cancel+0x34/0x40", Warning},
		{"INFO: task hog:412 blocked for more than 120 seconds.", HungTask},
		{"watchdog: BUG: soft lockup - CPU#1 stuck for 26s! [hog:412]", Stall},
		{"BUG: workqueue lockup - pool cpus=0 node=0 flags=0x0 nice=0 stuck for 32s!", Stall},
		{"rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:", Stall},
		{"rcu: INFO: rcu_preempt self-detected stall on CPU", Stall},
		{"traps: hog[412] general protection fault ip:7f sp:7ff error:0", ""},
		{"NET: Registered PF_INET protocol family", ""},
		{"systemd[1]: hog.service: A process of this unit has been killed by the OOM killer.", ""},
		{"test says: Out of memory: Killed process 1", ""},
		{"rcu: Hierarchical SRCU implementation.", ""},
		{"", ""},
	} {
		if got := Classify(tt.message); got != tt.want {
			t.Errorf("Classify(%q) = %q; want %q", tt.message, got, tt.want)
		}
	}
}

func TestTroubleThatFails(t *testing.T) {
	for _, trouble := range troubles {
		if got, want := trouble.Fails(), trouble != CgroupOOM && trouble != Stall; got != want {
			t.Errorf("%s fails a command: %v; want %v", trouble, got, want)
		}
	}
	if Trouble("").Fails() {
		t.Error("no trouble fails a command")
	}
}

func FuzzClassify(f *testing.F) {
	f.Add("[   40.120394] Out of memory: Killed process 412 (hog) total-vm:4242596kB")
	f.Add("[ [ 1.0] [2.0] BUG: ")
	f.Fuzz(func(t *testing.T, message string) {
		if got := Classify(message + "\r"); got != Classify(message) {
			t.Errorf("Classify(%q) depends on a carriage return: %q", message, got)
		}
	})
}
