package driver

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/loop"
	"github.com/evictd/evictd/agent/pods"
	"github.com/evictd/evictd/agent/shutdown"
	"github.com/evictd/evictd/agent/shutdown/logind"
	"github.com/evictd/evictd/kernel/kerneltest"
)

func TestStopStages(t *testing.T) {
	container := func(name string, start uint64) evict.RunningContainer {
		return evict.RunningContainer{ID: "id-" + name, Name: name, InitStart: start}
	}
	sidecar := func(names ...string) *evict.Pod {
		p := &evict.Pod{}
		for _, name := range names {
			p.InitContainers = append(p.InitContainers, evict.Container{Name: name, Sidecar: true})
		}
		return p
	}
	const grace = 30 * time.Second
	for _, tt := range []struct {
		name       string
		pod        *evict.Pod
		containers []evict.RunningContainer
		want       []act.StopStage
	}{
		{"one", &evict.Pod{}, []evict.RunningContainer{container("a", 1)}, nil},
		{"started at once", &evict.Pod{}, []evict.RunningContainer{container("a", 7), container("b", 7)}, nil},
		{"in reverse", &evict.Pod{}, []evict.RunningContainer{container("a", 100), container("c", 300), container("b", 200)}, []act.StopStage{
			{IDs: []string{"id-c"}}, {IDs: []string{"id-b"}, StartBy: 10 * time.Second}, {IDs: []string{"id-a"}, StartBy: 20 * time.Second},
		}},
		{"two together", &evict.Pod{}, []evict.RunningContainer{container("a", 100), container("c", 300), container("b", 300)}, []act.StopStage{
			{IDs: []string{"id-c", "id-b"}}, {IDs: []string{"id-a"}, StartBy: 15 * time.Second},
		}},
		{"start unknown", &evict.Pod{}, []evict.RunningContainer{container("a", 0), container("b", 0)}, nil},
		{"sidecars last, in reverse order", sidecar("s1", "s2", "ended"),
			[]evict.RunningContainer{container("s1", 1), container("s2", 2), container("a", 3), container("b", 4)}, []act.StopStage{
				{IDs: []string{"id-a", "id-b"}}, {IDs: []string{"id-s2"}, StartBy: grace}, {IDs: []string{"id-s1"}, StartBy: grace},
			}},
	} {
		if diff := cmp.Diff(tt.want, stopStages(tt.pod, tt.containers, grace)); diff != "" {
			t.Errorf("%s: stopStages() differs (-want +got):\n%s", tt.name, diff)
		}
	}
}

const configured = "shutdownGracePeriod: 30s\nshutdownGracePeriodCriticalPods: 10s\n"

// newView returns a view with a configuration.
func newView(t *testing.T, settings string, kubeletPods bool, running ...evict.Pod) *loop.View {
	t.Helper()
	dir := kerneltest.Tree(t, map[string]string{"f.yaml": "apiVersion: evictd.io/v1alpha1\nkind: AgentConfiguration\n" + settings})
	cfg, err := config.Load(config.Options{Path: filepath.Join(dir, "f.yaml"), PathGiven: true})
	if err != nil {
		t.Fatal(err)
	}
	return &loop.View{Time: time.Unix(1000, 0), Config: cfg, Snapshot: pods.Snapshot{Pods: running, Kubelet: evict.Kubelet{Known: true, HasSandboxes: kubeletPods}, Listed: time.Unix(999, 0)}}
}

// testDriver returns a Driver with a view, and a logind without events.
func testDriver(t *testing.T, view func() *loop.View) *Driver {
	return New(Options{Log: slog.New(slog.NewTextHandler(t.Output(), nil)), DelayLock: logind.NewDelayLock(logind.Options{}), View: view})
}

func TestSkipReasons(t *testing.T) {
	d := testDriver(t, nil)
	for _, tt := range []struct {
		name     string
		settings string
		kubelet  bool
		want     string // of the reasons; empty for none
	}{
		{"no schedule", "", false, "neither shutdownGracePeriod"},
		{"a schedule", configured, false, ""},
		{"a kubelet's pods", configured, true, "a kubelet owns pods"},
		{"a kubelet's pods with besideKubelet: own", configured + "shutdown: {besideKubelet: own}", true, ""},
	} {
		got := strings.Join(d.SkipReasons(newView(t, tt.settings, tt.kubelet)), "; ")
		if !strings.Contains(got, tt.want) || (got == "") != (tt.want == "") {
			t.Errorf("%s: SkipReasons() = %q; want %q", tt.name, got, tt.want)
		}
	}
}

func TestPanicTrace(t *testing.T) {
	since := time.Now().Add(-time.Hour)
	old, young := since.Add(-time.Minute), since.Add(time.Minute)
	for _, tt := range []struct {
		name, file, text string
		at               time.Time
		found            bool
	}{
		{"in the firmware", "sys/fs/pstore/dmesg-efi-170000000001", "Panic#1 Part1\n<0>[ 1.0] Kernel panic", young, true},
		{"an oops that the kernel survived", "sys/fs/pstore/dmesg-efi-170000000001", "Oops#1 Part1\n", young, false},
		{"of an earlier boot", "sys/fs/pstore/dmesg-efi-170000000001", "Panic#1 Part1\n", old, false},
		{"the console, which is written at any end", "sys/fs/pstore/console-ramoops-0", "Panic", young, false},
		{"moved by systemd-pstore", "root/var/lib/systemd/pstore/1700000000/001/dmesg-efi-1", "Panic#2 Part3\n", young, true},
		{"kdump", "root/var/crash/202601020304/dump.202601020304", "", young, true},
		{"kdump, by kexec-tools", "root/var/crash/127.0.0.1-2026/vmcore", "KDUMP", young, true},
		{"something else of /var/crash", "root/var/crash/_usr_bin_x.0.crash", "Panic", young, false},
		{"short", "sys/fs/pstore/dmesg-efi-1", "Pan", young, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, tt.file)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(tt.text), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(path, tt.at, tt.at); err != nil {
				t.Fatal(err)
			}
			want := ""
			if tt.found {
				want = path
			}
			if got := panicTrace(filepath.Join(dir, "sys"), filepath.Join(dir, "root"), since); got != want {
				t.Errorf("panicTrace() = %q; want %q", got, want)
			}
		})
	}
}

// TestHandleEvent: events of logind, which may be repeated, converted into inputs.
func TestHandleEvent(t *testing.T) {
	stopping := shutdown.State{Phase: shutdown.Stopping, Began: time.Unix(1000, 0)}
	manual := stopping
	manual.Manual = true
	until := time.Unix(1017, 0)
	begins, ends := logind.Event{Preparing: true, Inhibited: true, Until: until}, logind.Event{}
	for _, tt := range []struct {
		name     string
		state    shutdown.State
		settings string
		event    logind.Event
		want     shutdown.Event
		until    time.Time
	}{
		{"no shutdown", shutdown.State{}, configured, ends, shutdown.NoEvent, time.Time{}},
		{"begins, with a lock", shutdown.State{}, configured, begins, shutdown.Begin, until},
		{"begins, without a lock", shutdown.State{}, configured, logind.Event{Preparing: true}, shutdown.Begin, time.Time{}},
		{"begins, without a schedule", shutdown.State{}, "", begins, shutdown.NoEvent, time.Time{}},
		{"repeated", stopping, configured, begins, shutdown.Begin, until},
		{"canceled", stopping, configured, ends, shutdown.Cancel, time.Time{}},
		{"logind does not cancel an operator's", manual, configured, ends, shutdown.NoEvent, time.Time{}},
		{"an operator's becomes logind's", manual, configured, begins, shutdown.Begin, until},
	} {
		d := testDriver(t, nil)
		d.state = tt.state
		got := d.handleEvent(newView(t, tt.settings, false), tt.event)
		if got.Event != tt.want || !got.Until.Equal(tt.until) || got.Manual || (tt.want == shutdown.Begin) != (len(got.Schedule) > 0) {
			t.Errorf("%s: handleEvent() = %+v; want event %d, until %v", tt.name, got, tt.want, tt.until)
		}
	}
}

// A shutdown that was left to a kubelet stays the kubelet's, also when its pods are
// gone.
func TestHandleEventSkipped(t *testing.T) {
	d := testDriver(t, nil)
	begins := logind.Event{Preparing: true}
	if got := d.handleEvent(newView(t, configured, true), begins); got.Event != shutdown.NoEvent {
		t.Errorf("handleEvent() = %+v with a kubelet's pods; want no event", got)
	}
	if got := d.handleEvent(newView(t, configured, false), begins); got.Event != shutdown.NoEvent {
		t.Errorf("handleEvent() = %+v after those are gone; want no event", got)
	}
	d.handleEvent(newView(t, configured, false), logind.Event{})
	if got := d.handleEvent(newView(t, configured, false), begins); got.Event != shutdown.Begin {
		t.Errorf("handleEvent() = %+v in the next shutdown; want Begin", got)
	}
}

// A command is rejected before the pods are listed.
func TestValidateBeforeList(t *testing.T) {
	v := newView(t, configured, false)
	d := testDriver(t, func() *loop.View { return v })
	v.Snapshot.Listed = time.Time{}
	if err := d.validate(shutdown.Begin); !errors.Is(err, ErrNotYet) {
		t.Errorf("validate() = %v before the pods are listed; want %v", err, ErrNotYet)
	}
	v = newView(t, configured, false)
	if err := d.validate(shutdown.Begin); err != nil {
		t.Errorf("validate() = %v; want nil", err)
	}
}
