package main

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/shutdown"
)

func plan() control.Shutdown {
	clean, limit := false, 5.0
	return control.Shutdown{
		At: now, Phase: "idle", NeedsSeconds: 92, LimitSeconds: &limit, Inhibited: true,
		LogindError: "/etc/systemd/logind.conf.d/zzzz.conf sets InhibitDelayMaxSec=5",
		Last:        shutdown.LastBoot{Clean: &clean, Reason: shutdown.LastPanic, Detail: "/sys/fs/pstore/dmesg-efi-1"},
		Groups: control.List[control.ShutdownGroup]{
			{Priority: 0, TimeSeconds: 2, Pods: control.List[control.ShutdownPod]{
				{Pod: "default/web", Status: "planned", GraceSeconds: 2}, {Pod: "default/log", Last: true, Status: "planned", GraceSeconds: 1},
			}},
			{Priority: 500, TimeSeconds: 0.5},
			{Priority: 1000, TimeSeconds: 0.5, Pods: control.List[control.ShutdownPod]{{Pod: "default/\x1bdb", Status: "planned", GraceSeconds: 1}}},
		},
	}
}

// underWay returns a shutdown in its last group.
func underWay() control.Shutdown {
	s := plan()
	s.Phase, s.Manual, s.Began, s.Current = "stopping", true, now.Add(-3*time.Second), new(2)
	s.LimitSeconds, s.LogindError, s.Last = nil, "connect to the system bus: no such file or directory", shutdown.LastBoot{Reason: shutdown.LastUnknown}
	s.Groups[0].Pods[0].Status, s.Groups[0].Pods[1].Status = "gone", "killed"
	s.Groups[2].Pods[0].Status = "asked"
	s.Groups[2].Pods = append(s.Groups[2].Pods, control.ShutdownPod{Pod: "default/late", Status: "asked", GraceSeconds: 3, Refused: true})
	return s
}

func ended() control.Shutdown {
	s := underWay()
	s.Phase, s.Current, s.Ended = "ended", nil, now
	return s
}

// dryRun returns a shutdown in dry run, right after it has begun.
func dryRun() control.Shutdown {
	s := ended()
	s.DryRun, s.WouldStop = true, 3
	s.Groups[0].Pods[0].Status, s.Groups[0].Pods[1].Status = "pretended", "pretended"
	s.Groups[2].Pods = s.Groups[2].Pods[:1]
	s.Groups[2].Pods[0].Status = "pretended"
	return s
}

func TestShutdownText(t *testing.T) {
	for name, s := range map[string]control.Shutdown{"shutdown-plan.txt": plan(), "shutdown-under-way.txt": underWay(), "shutdown-dry-run.txt": dryRun()} {
		socket := serve(t, &daemon{shutdowns: []control.Shutdown{s}})
		code, out, errs := call("shutdown", "plan", "--control-socket", socket)
		if code != exitOK || errs != "" {
			t.Errorf("shutdown plan exits %d with %q; want %d", code, errs, exitOK)
		}
		golden(t, name, out)
	}
}

func TestShutdownLine(t *testing.T) {
	kubelets := plan()
	kubelets.Inhibited, kubelets.Why = false, control.List[string]{"a kubelet owns pods of this node", "and has a lock"}
	planDryRun := plan()
	planDryRun.Inhibited, planDryRun.DryRun = false, true
	left := ended()
	left.Stopped, left.Running = 2, 1
	unlocked := plan()
	unlocked.Inhibited = false
	for _, tt := range []struct {
		s    control.Shutdown
		want string
	}{
		{plan(), "delayed until the pods are stopped"},
		{kubelets, "pods are not stopped; a kubelet owns pods of this node; and has a lock"},
		{planDryRun, "dry run, no pod is stopped and the shutdown is not delayed"},
		{unlocked, "pods are stopped only by evictctl shutdown begin"},
		{underWay(), "stopping the pods, an operator's, since 3s"},
		{ended(), "the pods are stopped, an operator's, since 3s, it took 3s"},
		{dryRun(), "dry run, no pod is stopped, 3 pods would be; an operator's, since 3s"},
		{left, "over, 1 pod still running, an operator's, since 3s, it took 3s"},
	} {
		if got := shutdownLine(&tt.s); got != tt.want {
			t.Errorf("shutdownLine() = %q; want %q", got, tt.want)
		}
	}
}

func TestShutdownJSON(t *testing.T) {
	socket := serve(t, &daemon{shutdowns: []control.Shutdown{plan()}})
	code, out, errs := call("shutdown", "plan", "-o", "json", "--control-socket", socket)
	var got control.Shutdown
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != exitOK || errs != "" || len(got.Groups) != 3 {
		t.Errorf("shutdown plan -o json exits %d with %q, %v; want 3 groups", code, errs, err)
	}
}

// TestShutdownBegin checks that begin waits until the pods are gone, unless
// --wait=false is given.
func TestShutdownBegin(t *testing.T) {
	socket := serve(t, &daemon{shutdowns: []control.Shutdown{underWay(), underWay(), ended()}})
	code, out, _ := call("shutdown", "begin", "--control-socket", socket)
	if code != exitOK || !strings.HasPrefix(out, "shutdown:  the pods are stopped, ") {
		t.Errorf("shutdown begin exits %d with %q; want it over", code, out)
	}
	socket = serve(t, &daemon{shutdowns: []control.Shutdown{underWay(), ended()}})
	code, out, _ = call("shutdown", "begin", "--wait=false", "--control-socket", socket)
	if code != exitOK || !strings.HasPrefix(out, "shutdown:  stopping the pods, ") {
		t.Errorf("shutdown begin --wait=false exits %d with %q; want it in progress", code, out)
	}
	canceled := plan()
	canceled.Canceled = true
	socket = serve(t, &daemon{shutdowns: []control.Shutdown{underWay(), canceled}})
	code, _, errs := call("shutdown", "begin", "--control-socket", socket)
	if code != exitFailure || errs != "evictctl: the shutdown was canceled\n" {
		t.Errorf("shutdown begin that is canceled exits %d with %q; want %d and the reason", code, errs, exitFailure)
	}
}

// TestShutdownBeginDryRun checks that begin fails in dry run, so that a script does not
// assume that the pods are stopped.
func TestShutdownBeginDryRun(t *testing.T) {
	for _, wait := range []string{"--wait=true", "--wait=false"} {
		socket := serve(t, &daemon{shutdowns: []control.Shutdown{dryRun()}})
		code, out, errs := call("shutdown", "begin", wait, "--control-socket", socket)
		if want := "evictctl: dry run: no pod is stopped, 3 pods would be; see evictctl status for the reason\n"; code != exitFailure || errs != want {
			t.Errorf("shutdown begin %s in dry run exits %d with %q; want %d and %q", wait, code, errs, exitFailure, want)
		}
		if !strings.HasPrefix(out, "shutdown:  dry run, no pod is stopped, 3 pods would be; ") || strings.Contains(out, "pods are stopped") {
			t.Errorf("shutdown begin %s in dry run prints %q; want it to report dry run", wait, out)
		}
	}
}

func TestShutdownRefused(t *testing.T) {
	socket := serve(t, &daemon{shutdowns: []control.Shutdown{plan()}, err: errors.New("neither is configured")})
	for _, command := range []string{"begin", "cancel"} {
		code, out, errs := call("shutdown", command, "--control-socket", socket)
		if code != exitFailure || out != "" || errs != "evictctl: evictd refused the request: neither is configured\n" {
			t.Errorf("shutdown %s exits %d with %q, %q; want %d and the reason", command, code, out, errs, exitFailure)
		}
	}
	code, _, errs := call("shutdown", "plan", "--control-socket", socket+"x")
	if code != exitFailure || !strings.Contains(errs, "evictd is not running") {
		t.Errorf("shutdown plan without evictd exits %d with %q; want %d and the reason", code, errs, exitFailure)
	}
}
