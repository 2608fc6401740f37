package bpf

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func openReclaim(t *testing.T, ring *Ring) *Reclaim {
	t.Helper()
	r, err := OpenReclaim(ring)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Errorf("Close() = %v; want nil", err)
		}
	})
	return r
}

// mountTracefs mounts tracefs, which classic tracepoints need, until the test ends.
func mountTracefs(t *testing.T) {
	t.Helper()
	const dir = "/sys/kernel/tracing"
	if _, err := os.Stat(dir + "/events/oom/mark_victim/id"); err == nil {
		return
	}
	if err := unix.Mount("tracefs", dir, "tracefs", 0, ""); err != nil {
		t.Skip("needs tracefs: mount: ", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount tracefs: %v", err)
		}
	})
}

// runHook runs a program with the arguments of its tracepoint, on this thread.
func runHook(t *testing.T, h *attachedObject, name string, args ...uint64) {
	t.Helper()
	context := make([]uint64, 4)
	copy(context, args)
	if _, err := h.collection.Programs[name].Run(&ebpf.RunOptions{Context: context}); err != nil {
		t.Fatalf("run %s: %v", name, err)
	}
}

// ownCgroup returns the inode number of this process's memory cgroup.
func ownCgroup(t *testing.T) uint64 {
	t.Helper()
	tree, v1 := memoryTree(t)
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if v1 == slices.Contains(strings.Split(parts[1], ","), "memory") {
			return cgroup{filepath.Join(tree, parts[2]), v1}.id(t)
		}
	}
	t.Fatalf("/proc/self/cgroup has no memory cgroup: %s", b)
	return 0
}

// TestReclaim repeats its pass if more was counted than it did, because the kernel's own reclaim counts, too: a wrong count
// is wrong in each pass.
func TestReclaim(t *testing.T) {
	ring, s := openSampler(t, Options{})
	r := openReclaim(t, ring)
	if r.Attachment() != AttachRaw {
		t.Errorf("Attachment() = %s; want %s", r.Attachment(), AttachRaw)
	}
	runtime.LockOSThread() // a stall begins and ends in one thread
	defer runtime.UnlockOSThread()
	own := ownCgroup(t)
	const passes = 20
	for pass := 1; ; pass++ {
		wrong := reclaimPass(t, r, s, own)
		if wrong == "" {
			return
		}
		if pass == passes {
			t.Fatalf("the last of %d passes: %s", passes, wrong)
		}
	}
}

// reclaimPass runs the programs and returns what is wrong with what they have counted.
func reclaimPass(t *testing.T, r *Reclaim, s *Sampler, own uint64) (wrong string) {
	t.Helper()
	start, before := reclaimed(t, r, own)
	for range 2 {
		runHook(t, r.attached, reclaimProgDirectBegin, 0, 0)
		tickNow(t, s)
		runHook(t, r.attached, reclaimProgDirectEnd, 32)
	}
	runHook(t, r.attached, reclaimProgDirectEnd, 32) // its begin was not recorded
	runHook(t, r.attached, reclaimProgKswapdWake, 0, 0, 0)
	runHook(t, r.attached, reclaimProgKswapdSleep, 0)
	runHook(t, r.attached, reclaimProgThrottled, 0, 1000, 300, 2)
	runHook(t, r.attached, reclaimProgThrottled, 0, 1000, ^uint64(0), 2) // the clock went backwards

	got, stall := reclaimed(t, r, own)
	stalled := got.DirectTime - start.DirectTime
	want := ReclaimCounts{
		KswapdWakes: start.KswapdWakes + 1, KswapdSleeps: start.KswapdSleeps + 1,
		DirectBegins: start.DirectBegins + 2, DirectEnds: start.DirectEnds + 2, DirectTime: start.DirectTime + stalled,
		Throttles: start.Throttles + 2, ThrottleTime: start.ThrottleTime + 300*time.Microsecond,
	}
	if got.KswapdWakes < want.KswapdWakes || got.KswapdSleeps < want.KswapdSleeps || got.DirectBegins < want.DirectBegins ||
		got.DirectEnds < want.DirectEnds || got.Throttles < want.Throttles || got.ThrottleTime < want.ThrottleTime || stall.Count < before.Count+2 {
		t.Fatalf("counts %+v, stall %+v after %+v, %+v; want at least %+v and 2 more", got, stall, start, before, want)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		return "Counts() differs (-want +got):\n" + diff
	}
	if stall.Count != before.Count+2 || stall.Time != before.Time+stalled || stall.Longest <= 0 || stall.Longest >= stall.Time || stall.Last <= before.Last {
		return fmt.Sprintf("stall %+v after %+v; want 2 more in %s", stall, before, stalled)
	}
	return ""
}

// reclaimed returns the counts, and the stalls of a cgroup.
func reclaimed(t *testing.T, r *Reclaim, own uint64) (counts ReclaimCounts, stall Stall) {
	t.Helper()
	counts, err := r.Counts()
	if err != nil {
		t.Fatal(err)
	}
	stalls, err := r.Stalls(nil)
	if err != nil {
		t.Fatal(err)
	}
	if i := slices.IndexFunc(stalls, func(stall Stall) bool { return stall.Cgroup == own }); i >= 0 {
		stall = stalls[i]
	}
	return counts, stall
}

// After reclaim began, the period is the minimum for some time only.
func TestReclaimShortensPeriod(t *testing.T) {
	ring, s := openSampler(t, Options{})
	r := openReclaim(t, ring)
	period := func() time.Duration { return time.Duration(tickNow(t, s).Stats.Period) }
	eventually(t, "the maximum period at first", func() bool { return period() == 50*time.Millisecond })
	eventually(t, "the minimum period after kswapd woke", func() bool { // once a second at most, and the kernel's may be first
		runHook(t, r.attached, reclaimProgKswapdWake, 0, 0, 0)
		return period() == 200*time.Microsecond
	})
	eventually(t, "the maximum period", func() bool {
		runHook(t, r.attached, reclaimProgDirectBegin, 0, 0) // one after the other
		return period() == 50*time.Millisecond
	})
}

func TestReclaimClassic(t *testing.T) {
	mountTracefs(t)
	ring, _ := openSampler(t, Options{})
	spec, err := loadReclaim()
	if err != nil {
		t.Fatal(err)
	}
	h, err := attach(spec, ring, reclaimHooks, AttachClassic)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Close(); err != nil {
		t.Errorf("Close() = %v; want nil", err)
	}
}

// oomKill makes the kernel's OOM killer kill a process and returns the record.
func oomKill(t *testing.T, ring *Ring) (victim Victim, pid int, in cgroup) {
	t.Helper()
	in = makeCgroup(t)
	hog := startHog(t, in)
	in.limit(t, 64*mib)
	hog.send("grow %d", 256*mib)
	pid = hog.cmd.Process.Pid
	for {
		record := nextRecord(t, ring)
		if record.Kind != KindVictim {
			t.Fatalf("Next() = %+v; want a victim", record)
		}
		if record.Victim.PID == pid || record.Victim.TGID == pid {
			return record.Victim, pid, in
		}
	}
}

// openOOM skips the test if the kernel allows neither kind of attachment: the raw one needs
// BTF and, under lockdown, Linux 6.2, the classic one tracefs.
func openOOM(t *testing.T, ring *Ring) *OOM {
	t.Helper()
	o, err := OpenOOM(ring)
	if err != nil {
		if _, notThere := os.Stat("/sys/kernel/tracing/events/oom/mark_victim/id"); notThere != nil && errors.Is(err, ErrUnavailable) {
			t.Skip(err)
		}
		t.Fatal(err)
	}
	t.Cleanup(func() { o.Close() })
	return o
}

func TestOOM(t *testing.T) {
	ring := openRing(t)
	o := openOOM(t, ring)
	got, pid, in := oomKill(t, ring)
	comm, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	// The hog is started through /proc/self/exe, so its name is exe.
	want := Victim{Time: got.Time, PID: pid, TGID: pid, Comm: "exe", Cgroup: in.id(t), OOMScoreAdj: got.OOMScoreAdj}
	if _, err := btf.LoadKernelSpec(); err != nil {
		want = Victim{Time: got.Time, PID: pid}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("victim of %s differs (-want +got):\n%s", bytes.TrimSpace(comm), diff)
	}
	if got.Time <= 0 {
		t.Errorf("time = %s; want one", got.Time)
	}
	if counts, err := o.Counts(); err != nil || counts.Victims == 0 || counts.Lost != 0 {
		t.Errorf("Counts() = %+v, %v; want victims, none lost", counts, err)
	}
	for range 2 {
		if err := o.Close(); err != nil {
			t.Errorf("Close() = %v; want nil", err)
		}
	}
}

func TestOOMClassic(t *testing.T) {
	mountTracefs(t)
	ring := openRing(t)
	spec, err := loadOom()
	if err != nil {
		t.Fatal(err)
	}
	h, err := attach(spec, ring, oomHooks, AttachClassic)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	got, pid, _ := oomKill(t, ring)
	if diff := cmp.Diff(Victim{Time: got.Time, PID: pid}, got); diff != "" {
		t.Errorf("victim differs (-want +got):\n%s", diff)
	}
}

// If the tracepoint's argument is a PID, as in older kernels, a victim has only that.
func TestOOMByPID(t *testing.T) {
	if _, err := btf.LoadKernelSpec(); err != nil {
		t.Skip("needs BTF: ", err)
	}
	ring := openRing(t)
	spec, err := loadOom()
	if err != nil {
		t.Fatal(err)
	}
	if err := spec.Variables[oomVarVictimIsTask].Set(uint64(0)); err != nil {
		t.Fatal(err)
	}
	h, err := attach(spec, ring, oomHooks, AttachRaw)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	runHook(t, h, oomProgMarkVictim, 4711)
	for {
		got := nextRecord(t, ring).Victim
		if got.PID != 4711 {
			continue // another process of the machine
		}
		if diff := cmp.Diff(Victim{Time: got.Time, PID: 4711}, got); diff != "" {
			t.Errorf("victim differs (-want +got):\n%s", diff)
		}
		return
	}
}

func TestOOMLost(t *testing.T) {
	ring, s := openSampler(t, Options{})
	o := openOOM(t, ring)
	for s.Inject(Crossing{}) == nil {
	}
	for range 64 { // there may be room for some, since a victim is smaller than a crossing
		runHook(t, o.attached, oomProgMarkVictim, 0)
	}
	if counts, err := o.Counts(); err != nil || counts.Lost == 0 {
		t.Errorf("Counts() = %+v, %v; want some lost", counts, err)
	}
}
