package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// daemon is a control.Source with fixed data.
type daemon struct {
	status      control.Status
	explanation control.Explanation
	err         error
	shutdowns   []control.Shutdown // returned in order, the last one repeatedly
}

func (d *daemon) Shutdown() control.Shutdown {
	s := d.shutdowns[0]
	if len(d.shutdowns) > 1 {
		d.shutdowns = d.shutdowns[1:]
	}
	return s
}

func (d *daemon) BeginShutdown(context.Context) error { return d.err }

func (d *daemon) CancelShutdown(context.Context) error { return d.err }

func (d *daemon) Reload(context.Context) error { return d.err }

func (d *daemon) Status() control.Status { return d.status }

func (d *daemon) Explain(signal.Signal) (control.Explanation, error) { return d.explanation, d.err }

// serve serves a control socket until the test ends.
func serve(t *testing.T, d *daemon) (socket string) {
	t.Helper()
	socket = filepath.Join(socketDir(t), "evictd.sock")
	l, err := control.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- control.New(d, slog.New(slog.DiscardHandler)).Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return socket
}

// socketDir returns a directory with a short path: the path of a socket has at most
// 107 bytes.
func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "evictctl-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// call runs evictctl.
func call(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(args, &out, &errs)
	return code, out.String(), errs.String()
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs (-want +got):\n%s", name, diff)
	}
}

func number[T any](n T) *T { return &n }

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

const gib = int64(1) << 30

// fullDaemon returns a daemon with data in every part of its status.
func fullDaemon() *daemon {
	memory := control.SignalStatus{
		Signal: signal.MemoryAvailable, Status: control.Observed,
		Available: number(gib / 2), Capacity: number(24 * gib), AgeSeconds: number(0.0123),
		Thresholds: control.List[control.ThresholdStatus]{
			{Value: "1Gi", Quantity: number(gib), MinReclaim: number[int64](0), Met: true, Since: now.Add(-1500 * time.Millisecond), Past: true},
			{Value: "10%", Quantity: number(24 * gib / 10), Soft: true, GraceSeconds: 90, MinReclaim: number[int64](0), Met: true, Since: now.Add(-12 * time.Second)},
		},
	}
	return &daemon{
		status: control.Status{
			Shutdown: control.Shutdown{Phase: "idle", Inhibited: true},
			Version:  "v0.1.0", Ready: true, PID: 812, Started: now.Add(-26 * time.Hour), At: now,
			Mode: control.Mode{DryRun: true, Why: control.List[string]{"no AgentConfiguration was given", "a kubelet owns this node"}},
			Node: control.Node{Name: "node-1", ProcFS: "/proc", CgroupFS: "/sys/fs/cgroup", CgroupVersion: "hybrid"},
			Signals: control.List[control.SignalStatus]{
				memory,
				{Signal: signal.AllocatableMemoryAvailable, Status: control.NotObserved, Thresholds: control.List[control.ThresholdStatus]{{Value: "1Gi", Quantity: number(gib), Derived: true}}},
				{Signal: signal.NodeFsAvailable, Status: control.Unreadable, AgeSeconds: number(90.0), Error: "statfs /var/lib: i/o error", Thresholds: control.List[control.ThresholdStatus]{{Value: "10%"}}},
				{Signal: signal.NodeFsInodesFree, Status: control.NotObserved},
				{Signal: signal.PIDAvailable, Status: control.Observed, Available: number[int64](32000), Capacity: number[int64](32768), AgeSeconds: number(1.0)},
			},
			Conditions: control.List[signal.Condition]{signal.DiskPressure, signal.MemoryPressure},
			Runtime:    control.Runtime{Endpoint: "unix:///run/containerd/containerd.sock", Name: "containerd", Version: "1.6.20", Error: "connection refused", LastSync: now.Add(-75 * time.Second)},
			Kubernetes: &control.Kubernetes{
				Connected: true, Watching: true, Software: "v0.1.0", Node: "node-1", Pods: 11, Used: 10, AgeSeconds: number(2.5),
				Orders: &control.Orders{
					Pending: 22, Unanswered: 12, UnansweredSeconds: number(75.0), Forbidden: 1, Begun: 31, Revived: 2, Rejected: 3, TimedOut: 4, Undone: 5,
					Fences: 21, FencesUnlifted: 8, FencesFailed: 9, FencesChanged: 6, FencesLifted: 7,
					Oldest: control.List[control.Order]{
						{Pod: "default/done", UID: "2", Stage: "ended", Since: now.Add(-2 * time.Minute), Answer: "reported", Final: true},
						{Pod: "default/db-0", UID: "3", Stage: "waiting", Since: now.Add(-75 * time.Second), Answer: "marked", Exclusive: "StatefulSet"},
						{Pod: "default/web", UID: "4", Stage: "ended", Since: now.Add(-3 * time.Second), Answer: "delayed", Why: "connection refused"},
					},
				},
				NodeObject: &control.NodeObject{
					Decided: true, UnwrittenSeconds: number(2.0), Why: "connection refused",
					Conditions: control.List[control.NodeCondition]{
						{Type: "EvictdMemoryPressure", Taint: "evictd.io/memory-pressure", Status: "True", Since: now.Add(-2 * time.Second), Written: "False"},
						{Type: "EvictdDiskPressure", Taint: "evictd.io/disk-pressure", Status: "False", Since: now.Add(-time.Hour), Written: "False"},
					},
				},
				Kubelet: control.KubeletConfiguration{
					Known: true, AgeSeconds: number(62.0), Left: control.List[string]{"imagefs.available"},
					Differences: control.List[control.KubeletDifference]{{Field: "evictionHard.imagefs.available"}, {Field: "cgroupRoot"}},
				},
			},
			Lanes:  control.List[control.Lane]{{Name: "bpf", State: "unavailable", Why: "no BTF"}, {Name: "memcg", State: "degraded", Missed: 1, Reopened: 3, Raised: 7, Why: "polling saw it"}, {Name: "poll", Up: true, State: "up", Raised: 12, PeriodSeconds: number(0.05)}},
			Layout: "imagefs",
			Filesystems: control.List[control.Filesystem]{
				{Name: "nodefs", Path: "/var/lib/kubelet", Mountpoint: "/", Type: "ext4", Device: "254:0", ReadOnly: true, AvailableBytes: number(10 * gib), SizeBytes: number(100 * gib), InodesFree: number[int64](123456), Inodes: number[int64](6553600), AgeSeconds: number(0.4), PeriodSeconds: 1.5},
				{Name: "imagefs", Path: "/var/lib/containerd", Mountpoint: "/var/lib/containerd", Type: "btrfs", Device: "0:45", AvailableBytes: number(gib), SizeBytes: number(50 * gib), AgeSeconds: number(75.0), PeriodSeconds: 1, Error: "statfs of /var/lib/containerd has not returned for 1m15s"},
				{Name: "containerfs", Error: "path not known: the container runtime was not queried yet"},
			},
			Reclaims: control.List[control.Reclaim]{
				{At: now.Add(-3 * time.Minute), Kind: evict.ReclaimImages, Reason: "pressure", Signal: signal.NodeFsAvailable, Removed: control.List[string]{"docker.io/library/a:1", "b:2"}, Deficit: 3 * gib / 2, Freed: gib, TookSeconds: 2.5},
				{At: now.Add(-2 * time.Minute), Kind: evict.ReclaimContainers, Reason: "pressure", Signal: signal.NodeFsInodesFree, DryRun: true, Note: "a kubelet runs here"},
			},
			Pods:    control.Pods{Count: 12, Eligible: 9},
			Victims: control.List[evict.Victim]{{Pod: "default/hog", Cause: "memory.available", Status: evict.Stuck, Decided: now.Add(-3 * time.Second), Expected: 3 * gib, Lowest: 2 * gib}},
			Futile:  control.List[evict.Futility]{{Signal: signal.MemoryAvailable, Deficit: 2 * gib, Coverage: gib / 4, Until: now.Add(8 * time.Second)}},
			Records: control.List[evict.Record]{
				{
					Pod: "default/old", Cause: "memory.available", Hard: true, Decided: now.Add(-time.Hour), Result: evict.ResultKilled, Freed: 3 * gib,
					CrossingSeen: now.Add(-time.Hour), SignalSent: now.Add(-time.Hour + 912*time.Microsecond), LastGone: now.Add(-time.Hour + 48*time.Millisecond),
					ReportAnswer: "reported", Reported: now.Add(-time.Hour + 61*time.Millisecond),
				},
				{Pod: "default/disk", Cause: evict.CausePodLimit, Decided: now.Add(-time.Minute), Result: evict.ResultFailed, Error: "stop pod sandbox: deadline exceeded"},
				{Pod: "default/\x1b[2Jtrick\tname", Cause: "pid.available", Hard: true, Decided: now, Result: evict.ResultDryRun, Futile: true},
			},
			Config:   control.Config{Files: control.List[string]{"/etc/evictd/config.yaml"}, LoadedAt: now.Add(-time.Hour), LastReloadError: "config.yaml:3: dryRun: not a boolean"},
			Warnings: control.List[string]{"no pod is eligible for eviction"},
		},
		explanation: control.Explanation{
			At: now, Signal: signal.MemoryAvailable, Observation: memory,
			Ranking: control.List[control.Candidate]{
				{Ranked: evict.Ranked{Pod: "default/hog", UID: "1", OverRequest: true, Usage: 3 * gib, Expected: 2 * gib}, QoS: evict.BestEffort, Why: "uses 3Gi and has no request, priority 0"},
				{
					Ranked: evict.Ranked{Pod: "default/web", UID: "2", Usage: gib, Request: 2 * gib, Expected: gib}, QoS: evict.Burstable, RequestOrigin: "estimated from oom_score_adj",
					Reclaim:            &control.ReclaimStalls{Count: 34, Seconds: 1.25, LongestSeconds: 0.3},
					IgnoredAnnotations: control.List[string]{"evictd.io/priority"}, Why: "uses 1Gi, within its request of 2Gi, priority 0; after default/hog, which exceeds its request",
				},
			},
			Exempt: control.List[evict.Exempt]{{Pod: "kube-system/proxy", Reason: evict.ReasonCritical}, {Pod: "db/main", Reason: evict.ReasonProtected, Detail: "the namespace is protected"}},
			ForeignContainers: control.List[control.ForeignContainer]{
				{Cgroup: "/docker/0ca0", Processes: 4, MemoryBytes: number(gib), Command: "postgres\u202e\nroot"},
				{Cgroup: "/lxc/a", Processes: 1},
			},
			Memory: &control.UncountedMemory{UnaccountedBytes: number(gib / 3), SwapTotalBytes: number(2 * gib), SwapFreeBytes: number(gib)},
			Notes:  control.List[string]{"dry run: nothing is evicted"},
		},
	}
}

func TestDaemonText(t *testing.T) {
	socket := serve(t, fullDaemon())
	for _, tt := range []struct {
		args   []string
		golden string
	}{
		{[]string{"status"}, "status.txt"},
		{[]string{"explain"}, "explain.txt"},
	} {
		code, out, errs := call(append(tt.args, "--control-socket", socket)...)
		if code != exitOK || errs != "" {
			t.Errorf("%v exits %d with %q; want %d", tt.args, code, errs, exitOK)
		}
		golden(t, tt.golden, out)
		for line := range strings.Lines(out) {
			if utf8.RuneCountInString(strings.TrimSuffix(line, "\n")) > 80 {
				t.Errorf("%v prints a line of more than 80 columns: %s", tt.args, line)
			}
		}
	}
}

// TestStatusNotReady checks that status prints what is missing, and fails.
func TestStatusNotReady(t *testing.T) {
	const missing = "runtime: list pods of unix:///run/containerd/containerd.sock: connection refused"
	socket := serve(t, &daemon{status: control.Status{Missing: control.List[string]{missing, "observation: the first observation is not complete yet"}}})
	for _, format := range []string{"text", "json"} {
		code, out, errs := call("status", "-o", format, "--control-socket", socket)
		if want := "evictctl: evictd is not ready: " + missing + "; observation: the first observation is not complete yet\n"; code != exitFailure || errs != want {
			t.Errorf("status -o %s exits %d with %q; want %d and %q", format, code, errs, exitFailure, want)
		}
		if !strings.Contains(strings.Join(strings.Fields(out), " "), "connection refused") {
			t.Errorf("status -o %s prints\n%s; want what is missing", format, out)
		}
	}
}

// TestDryRunText checks that the reading and the amount that dry run adds are shown
// separately, and that a threshold met by the reading alone is not "ok".
func TestDryRunText(t *testing.T) {
	memory := control.SignalStatus{
		Signal: signal.MemoryAvailable, Status: control.Observed, Available: number(gib / 2), Capacity: number(24 * gib),
		DryRunAdds: 2 * gib, Thresholds: control.List[control.ThresholdStatus]{{Value: "1Gi", Quantity: number(gib)}},
	}
	socket := serve(t, &daemon{
		status: control.Status{
			Ready: true, Mode: control.Mode{DryRun: true}, Signals: control.List[control.SignalStatus]{memory},
			DryRunVictims: control.List[control.DryRunVictim]{{Pod: "default/hog", Cause: "memory.available"}},
		},
		explanation: control.Explanation{Signal: signal.MemoryAvailable, Observation: memory},
	})
	for _, tt := range []struct {
		command string
		want    []string
	}{
		{"status", []string{" 512Mi ", " add 2Gi", "default/hog would have been evicted"}},
		{"explain", []string{"512Mi of 24Gi available", "add 2Gi", "dry run"}},
	} {
		_, out, _ := call(tt.command, "--control-socket", socket)
		for _, want := range tt.want {
			if !strings.Contains(strings.Join(strings.Fields(out), " ")+" ", want) {
				t.Errorf("%s in dry run prints\n%s; want %q in it", tt.command, out, want)
			}
		}
	}
}

// TestIdleDaemonText checks that empty tables have no heading.
func TestIdleDaemonText(t *testing.T) {
	socket := serve(t, &daemon{
		status: control.Status{
			Version: "v0.1.0", Ready: true, PID: 1, Started: now.Add(-time.Second), At: now,
			Runtime: control.Runtime{DeclaredAbsent: true}, Node: control.Node{Name: "n", ProcFS: "/proc", CgroupFS: "/sys/fs/cgroup", CgroupVersion: "v2"},
			Shutdown: control.Shutdown{Phase: "idle", Why: control.List[string]{"neither is configured"}},
		},
		explanation: control.Explanation{Signal: signal.PIDAvailable, Observation: control.SignalStatus{Status: control.NotObserved}},
	})
	_, status, _ := call("status", "--control-socket", socket)
	golden(t, "status-idle.txt", status)
	_, explanation, _ := call("explain", "--signal", "pid.available", "--control-socket", socket)
	golden(t, "explain-idle.txt", explanation)
}

func TestDaemonJSON(t *testing.T) {
	d := fullDaemon()
	socket := serve(t, d)
	var status control.Status
	code, out, errs := call("status", "-o", "json", "--control-socket", socket)
	if err := json.Unmarshal([]byte(out), &status); code != exitOK || errs != "" || err != nil {
		t.Fatalf("status -o json exits %d with %q, %v", code, errs, err)
	}
	if diff := cmp.Diff(d.status.Records, status.Records, cmp.AllowUnexported(evict.Ranked{})); diff != "" {
		t.Errorf("status -o json: records differ (-want +got):\n%s", diff)
	}
	var explanation control.Explanation
	code, out, errs = call("explain", "-o", "json", "--control-socket", socket)
	if err := json.Unmarshal([]byte(out), &explanation); code != exitOK || errs != "" || err != nil {
		t.Fatalf("explain -o json exits %d with %q, %v", code, errs, err)
	}
	if diff := cmp.Diff(d.explanation.ForeignContainers, explanation.ForeignContainers); diff != "" {
		t.Errorf("explain -o json: notOurs differs (-want +got):\n%s", diff)
	}
}

func TestReload(t *testing.T) {
	d := fullDaemon()
	d.status.Config = control.Config{
		Files: control.List[string]{"/etc/evictd/config.yaml", "/var/lib/kubelet/config.yaml"}, LoadedAt: now,
		Changed:      control.List[control.ConfigChange]{{Field: "maxVictims", Before: "3", After: "5"}, {Field: "evictionHard.pid.available", Before: "10%"}},
		NeedsRestart: control.List[string]{"notification"},
	}
	socket := serve(t, d)
	code, out, errs := call("reload", "--control-socket", socket)
	if code != exitOK || errs != "" {
		t.Errorf("reload exits %d with %q; want %d", code, errs, exitOK)
	}
	golden(t, "reload.txt", out)
	if _, out, _ := call("status", "--control-socket", socket); !strings.Contains(out, "only after a restart: notification") {
		t.Errorf("status prints\n%s; want the fields that need a restart", out)
	}
	d.err = errors.New("config.yaml:5: evictionHrad: unknown field\nconfig.yaml:6: dryRun: not a boolean")
	code, out, errs = call("reload", "--control-socket", socket)
	if code != exitFailure || out != "" || errs != "evictctl: evictd refused the request: "+d.err.Error()+"\n" {
		t.Errorf("reload of an invalid file exits %d with %q, %q; want %d and all errors", code, out, errs, exitFailure)
	}
}

func TestProbe(t *testing.T) {
	probe := func(socket string) (answer struct {
		Features    []struct{ Name, Supported string }
		Daemon      *probedDaemon
		DaemonError string
	}) {
		t.Helper()
		code, out, errs := call("probe", "-o", "json", "--control-socket", socket)
		if err := json.Unmarshal([]byte(out), &answer); code != exitOK || errs != "" || err != nil {
			t.Fatalf("probe exits %d with %q, %v", code, errs, err)
		}
		if len(answer.Features) == 0 || answer.Features[0].Name == "" || answer.Features[0].Supported == "" {
			t.Errorf("probe prints %s; want features", out)
		}
		return answer
	}
	none := filepath.Join(socketDir(t), "none")
	if answer := probe(none); answer.Daemon != nil || !strings.Contains(answer.DaemonError, "evictd is not running") {
		t.Errorf("probe without evictd = %+v, %q; want that it is not running", answer.Daemon, answer.DaemonError)
	}
	socket := serve(t, fullDaemon())
	if answer := probe(socket); answer.Daemon == nil || answer.Daemon.Runtime.Version != "1.6.20" || answer.DaemonError != "" {
		t.Errorf("probe with evictd = %+v, %q; want its runtime", answer.Daemon, answer.DaemonError)
	}
	for _, tt := range []struct{ socket, want string }{
		{none, "mode, runtime and lanes are unknown: evictd is not running: "},
		{socket, "runtime: containerd 1.6.20 at unix:///run/containerd/containerd.sock, not connected"},
	} {
		code, out, errs := call("probe", "--control-socket", tt.socket)
		oneLine := strings.Join(strings.Fields(out), " ")
		if code != exitOK || errs != "" || !strings.Contains(oneLine, tt.want) || !strings.Contains(out, "\nFEATURE ") {
			t.Errorf("probe exits %d with %q and prints\n%s; want %q and the features", code, errs, out, tt.want)
		}
	}
}

// TestProbeOfEmptyTree checks that empty filesystems are reported and no error.
func TestProbeOfEmptyTree(t *testing.T) {
	empty := t.TempDir()
	code, out, errs := call("probe", "--path.procfs", empty, "--path.sysfs", empty, "--path.cgroupfs", empty, "--control-socket", filepath.Join(empty, "none"))
	if code != exitOK || errs != "" || !strings.Contains(out, "FEATURE") {
		t.Errorf("probe of an empty tree exits %d with %q and prints\n%s; want the features", code, errs, out)
	}
}

func TestDaemonFailures(t *testing.T) {
	hung := filepath.Join(socketDir(t), "hung")
	l, err := net.Listen("unix", hung)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			// With unread data Close would reset the connection (ECONNRESET).
			_, _ = conn.Read(make([]byte, 4096))
			conn.Close()
		}
	}()
	early := serve(t, &daemon{err: errors.New("the first observation is not complete yet")})
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"status", "--control-socket", hung}, exitFailure, "evictctl: evictd does not respond on " + hung + ": it closed the connection; it hangs or is stopping, "},
		{[]string{"explain", "--control-socket", early}, exitFailure, "evictctl: evictd refused the request: the first observation is not complete yet\n"},
		{[]string{"explain", "--signal", "cpu"}, exitUsage, `evictctl: unknown signal "cpu"; want one of memory.available, `},
		{[]string{"explain", "default/hog"}, exitUsage, "unknown command"},
	} {
		code, out, errs := call(tt.args...)
		if code != tt.code || out != "" || !strings.HasPrefix(errs, tt.want) && !strings.Contains(errs, tt.want) {
			t.Errorf("%v exits %d with %q and %q; want %d and %q", tt.args, code, out, errs, tt.code, tt.want)
		}
	}
}
