package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/tests/trace"
)

func TestUsage(t *testing.T) {
	for _, tt := range []struct {
		args   []string
		want   int
		stderr string
	}{
		{[]string{"-help"}, exitOK, "-bursts"},
		{[]string{"-no-such-flag"}, exitUsage, "no-such-flag"},
		{[]string{"-only", "burst"}, exitUsage, `no step "burst"`},
		{[]string{"-bursts", "0"}, exitUsage, "below 1"},
		{[]string{"now"}, exitUsage, "unexpected arguments"},
		{[]string{"-name", ""}, exitUsage, "-name is empty"},
		{[]string{"-render"}, exitUsage, "need -results"},
		{[]string{"-merge", "log"}, exitUsage, "need -results"},
		{[]string{"-only", "idle", "-evictd", "/nowhere/evictd"}, exitFailure, "make build"},
	} {
		var stdout, stderr strings.Builder
		if got := run(tt.args, &stdout, &stderr); got != tt.want || !strings.Contains(stderr.String(), tt.stderr) {
			t.Errorf("run(%q) = %d with stderr %q; want %d and %q", tt.args, got, stderr.String(), tt.want, tt.stderr)
		}
	}
}

func TestSelectSteps(t *testing.T) {
	for _, tt := range []struct {
		list string
		vm   bool
		want string
	}{
		{"", false, "decision affinity idle cgroups bursts survival percentiles conditions cluster footprint fence controller delay bombs"},
		{"", true, "vm cold"},
		{"bursts,idle", false, "idle bursts"},
		{"vm", false, "vm"},
	} {
		chosen, err := selectSteps(tt.list, tt.vm)
		var names []string
		for _, s := range chosen {
			names = append(names, s.name)
		}
		if got := strings.Join(names, " "); got != tt.want || err != nil {
			t.Errorf("selectSteps(%q, %t) = %s, %v; want %s", tt.list, tt.vm, got, err, tt.want)
		}
	}
}

func TestQuantile(t *testing.T) {
	hundred := make([]int64, 100)
	for i := range hundred {
		hundred[i] = int64(100 - i)
	}
	for _, tt := range []struct {
		values []int64
		q      float64
		want   int64
	}{
		{[]int64{7}, 0.5, 7},
		{[]int64{3, 1, 2}, 0.5, 2},
		{[]int64{4, 1, 3, 2}, 0.5, 2},
		{[]int64{4, 1, 3, 2}, 0.99, 4},
		{[]int64{4, 1, 3, 2}, 1, 4},
		{[]int64{4, 1, 3, 2}, 0, 1},
		{hundred, 0.99, 99},
		{hundred, 0.9, 90},
	} {
		if got := quantile(tt.values, tt.q); got != tt.want {
			t.Errorf("quantile(%v, %v) = %d; want %d", tt.values, tt.q, got, tt.want)
		}
	}
}

func TestSamplerResult(t *testing.T) {
	const threshold = 100
	for _, tt := range []struct {
		name    string
		samples []sample
		want    samplerResult
	}{
		{"never below", []sample{{1, 200}, {2, 100}}, samplerResult{above: sample{2, 100}, gap: 1}},
		{"equal is not below", []sample{{1, 100}, {3, 99}}, samplerResult{above: sample{1, 100}, below: sample{3, 99}, lowest: 99, gap: 2}},
		{"recovers", []sample{{1, 200}, {2, 90}, {3, 80}, {9, 100}, {10, 300}}, samplerResult{above: sample{1, 200}, below: sample{2, 90}, lowest: 80, recovered: 9, gap: 6}},
		{"falls again", []sample{{1, 200}, {2, 90}, {3, 150}, {4, 70}, {5, 120}}, samplerResult{above: sample{1, 200}, below: sample{2, 90}, lowest: 70, recovered: 5, gap: 1}},
		{"a gap before the crossing does not count", []sample{{50, 200}, {51, 200}, {52, 90}, {53, 110}}, samplerResult{above: sample{51, 200}, below: sample{52, 90}, lowest: 90, recovered: 53, gap: 1}},
		{"a gap after the recovery does not count", []sample{{1, 200}, {2, 90}, {3, 110}, {99, 300}}, samplerResult{above: sample{1, 200}, below: sample{2, 90}, lowest: 90, recovered: 3, gap: 1}},
	} {
		var got samplerResult
		var last time.Duration
		for _, s := range tt.samples {
			got.add(s, s.at-last, threshold)
			last = s.at
		}
		if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(samplerResult{}, sample{})); diff != "" {
			t.Errorf("%s: add(%v) differs (-want +got):\n%s", tt.name, tt.samples, diff)
		}
	}
}

func TestCrossed(t *testing.T) {
	for _, tt := range []struct {
		above, below sample
		want         time.Duration
	}{
		{sample{100, 120}, sample{200, 80}, 150},
		{sample{100, 100}, sample{200, 80}, 100}, // the sample above is exactly at the threshold
		{sample{100, 190}, sample{200, 90}, 190},
		{sample{}, sample{200, 90}, 200}, // no sample above
	} {
		seen := samplerResult{above: tt.above, below: tt.below}
		if got := seen.crossedAt(100); got != tt.want {
			t.Errorf("crossedAt(100) between %v and %v = %d; want %d", tt.above, tt.below, got, tt.want)
		}
	}
}

func TestEvaluate(t *testing.T) {
	v := &victim{workload: workload{drop: 100 * mebibyte}, pids: []int{10, 11}, started: time.Second}
	other := &victim{pids: []int{20}}
	const threshold = 1000 * mebibyte
	seen := samplerResult{
		above: sample{2 * time.Second, threshold + mebibyte}, below: sample{2*time.Second + 200, threshold - mebibyte},
		recovered: 2*time.Second + 900, lowest: threshold - 4*mebibyte,
	}
	reserveReached, neverBelow := seen, samplerResult{above: seen.above}
	reserveReached.killedVictim = true
	noRecovery := seen
	noRecovery.recovered = 0
	const at, crossedAt = 2*time.Second + 400, 2*time.Second + 100
	for _, tt := range []struct {
		name  string
		seen  samplerResult
		kills []trace.Kill
		gone  bool
		want  crossing
		ok    bool
	}{
		{
			"by the contender", seen, []trace.Kill{{At: at - 350, PID: 9}, {At: at, PID: 11}, {At: at + 5, PID: 10}}, true,
			crossing{by: byContender, crossed: crossedAt, killed: 300, back: 800, uncertainty: 200, overshoot: 4 * mebibyte, rate: 109051860}, true,
		},
		{
			"before the crossing", seen, []trace.Kill{{At: at - 350, PID: 10}}, true,
			crossing{by: byContender, crossed: crossedAt, killed: -50, back: 800, uncertainty: 200, overshoot: 4 * mebibyte, rate: 109051898}, true,
		},
		{"before any sample was below", neverBelow, []trace.Kill{{At: at, PID: 10}}, true, crossing{by: byEarly, uncertainty: -2 * time.Second}, true},
		{
			"with a bystander", seen, []trace.Kill{{At: at, PID: 20}, {At: at, PID: 10}}, true,
			crossing{by: byContender, crossed: crossedAt, killed: 300, back: 800, uncertainty: 200, overshoot: 4 * mebibyte, rate: 109051860, bystandersKilled: 1}, true,
		},
		{"by the kernel", seen, []trace.Kill{{At: at, PID: 10, Kernel: true}, {At: at + 9, PID: 10}}, true, crossing{by: byKernel, uncertainty: 200}, true},
		{"by the sampler", reserveReached, []trace.Kill{{At: at, PID: 10}}, true, crossing{by: bySampler, uncertainty: 200}, true},
		{"not killed", seen, nil, false, crossing{by: byNone, uncertainty: 200}, true},
		{"no SIGKILL to the victim", seen, []trace.Kill{{At: at, PID: 12}}, true, crossing{uncertainty: 200}, false},
		{"no recovery", noRecovery, []trace.Kill{{At: at, PID: 10}}, true, crossing{by: byContender, crossed: crossedAt, killed: 300, uncertainty: 200}, false},
	} {
		got, err := evaluate(v, &tt.seen, threshold, tt.kills, tt.gone, []*victim{other})
		if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(crossing{}, recordTimes{})); diff != "" || (err == nil) != tt.ok {
			t.Errorf("%s: evaluate() = %v; want ok %t (-want +got):\n%s", tt.name, err, tt.ok, diff)
		}
	}
}

func TestStatusField(t *testing.T) {
	const status = "Name:\tVmRSS: 1\nVmRSS:\t   39244 kB\nThreads:\t14\n"
	for _, tt := range []struct {
		key  string
		want int64
		ok   bool
	}{
		{"VmRSS:", 39244, true},
		{"Threads:", 14, true},
		{"RssAnon:", 0, false},
	} {
		got, err := statusField([]byte(status), tt.key)
		if got != tt.want || (err == nil) != tt.ok {
			t.Errorf("statusField(status, %q) = %d, %v; want %d, ok %t", tt.key, got, err, tt.want, tt.ok)
		}
	}
}

func TestCalibrate(t *testing.T) {
	const start = "earlyoom v1.7\nmem total: 24105 MiB, swap total:    0 MiB\n"
	for _, tt := range []struct {
		name, said string
		scale      float64
		ok         bool
	}{
		{"of all memory", start + "mem avail: 23483 of 24105 MiB (97.42%), swap free:    0 of    0 MiB ( 0.00%)\n", 1, true},
		{"of user memory", strings.Replace(start, "24105", "20000", 1) + "mem avail:  9000 of 10000 MiB (90.00%)\n", 0.5, true},
		{"no report", start, 1, false},
		{"no memory", start + "mem avail:     0 of     0 MiB\n", 1, false},
		{"another program", "hello\n", 1, false},
	} {
		e := earlyoomContender{scale: 1}
		err := e.calibrate([]byte(tt.said))
		if e.scale != tt.scale || (err == nil) != tt.ok {
			t.Errorf("%s: calibrate(%q) = %v, scale %v; want ok %t, scale %v", tt.name, tt.said, err, e.scale, tt.ok, tt.scale)
		}
	}
}

func TestPlanLeavesTheReserve(t *testing.T) {
	for _, available := range []int64{0, 4 * gibibyte, 6 * gibibyte, 8 * gibibyte, 24 * gibibyte, 512 * gibibyte} {
		drop, takes, err := planFor(available)
		if ok := available >= 8*gibibyte; (err == nil) != ok {
			t.Errorf("planFor(%d) = %d, %d, %v; want ok %t", available, drop, takes, err, ok)
		}
		if err == nil && (available-takes < reserve+gibibyte || drop <= slowPart || takes <= drop) {
			t.Errorf("planFor(%d) = %d, %d; want a victim that crosses the threshold and leaves %d", available, drop, takes, int64(reserve+gibibyte))
		}
		if want := int64(3 * gibibyte); available >= 16*gibibyte && drop != want {
			t.Errorf("planFor(%d) = %d; want %d", available, drop, want)
		}
	}
}

func TestCgroupMount(t *testing.T) {
	const hybrid = "31 25 0:27 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n" +
		"36 31 0:29 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n" +
		"37 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n" +
		"38 31 0:31 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n" +
		"39 31 0:32 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
	for _, tt := range []struct{ controllers, want string }{
		{"memory", "/sys/fs/cgroup/memory"},
		{"cpu,cpuacct", "/sys/fs/cgroup/cpu,cpuacct"},
		{"name=systemd", "/sys/fs/cgroup/systemd"},
		{"", "/sys/fs/cgroup/unified"},
		{"rdma", ""},
	} {
		if got := cgroupMount(hybrid, tt.controllers); got != tt.want {
			t.Errorf("cgroupMount(hybrid, %q) = %q; want %q", tt.controllers, got, tt.want)
		}
	}
}
