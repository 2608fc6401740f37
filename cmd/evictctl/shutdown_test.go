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
		At: now, Phase: "idle", NeedsSeconds: 92, LimitSeconds: &limit, Held: true,
		LogindError: "/etc/systemd/logind.conf.d/zzzz.conf says InhibitDelayMaxSec=5",
		Last:        shutdown.Last{Clean: &clean, Reason: shutdown.LastPanic, Detail: "/sys/fs/pstore/dmesg-efi-1"},
		Groups: control.List[control.ShutdownGroup]{
			{Priority: 0, TimeSeconds: 2, Pods: control.List[control.ShutdownPod]{
				{Pod: "default/web", Status: "planned", GraceSeconds: 2}, {Pod: "default/log", Last: true, Status: "planned", GraceSeconds: 1},
			}},
			{Priority: 500, TimeSeconds: 0.5},
			{Priority: 1000, TimeSeconds: 0.5, Pods: control.List[control.ShutdownPod]{{Pod: "default/\x1bdb", Status: "planned", GraceSeconds: 1}}},
		},
	}
}

// underWay is a shutdown in its second group.
func underWay() control.Shutdown {
	s := plan()
	s.Phase, s.Manual, s.Began, s.Current = "stopping", true, now.Add(-3*time.Second), new(2)
	s.LimitSeconds, s.LogindError, s.Last = nil, "connect to the system bus: no such file or directory", shutdown.Last{Reason: shutdown.LastUnknown}
	s.Groups[0].Pods[0].Status, s.Groups[0].Pods[1].Status = "gone", "killed"
	s.Groups[2].Pods[0].Status = "asked"
	s.Groups[2].Pods = append(s.Groups[2].Pods, control.ShutdownPod{Pod: "default/late", Status: "asked", GraceSeconds: 3, Refused: true})
	return s
}

func over() control.Shutdown {
	s := underWay()
	s.Phase, s.Current, s.Over = "ended", nil, now
	return s
}

// rehearsed is a shutdown in dry run, as soon as it has begun.
func rehearsed() control.Shutdown {
	s := over()
	s.DryRun, s.WouldStop = true, 3
	s.Groups[0].Pods[0].Status, s.Groups[0].Pods[1].Status = "pretended", "pretended"
	s.Groups[2].Pods = s.Groups[2].Pods[:1]
	s.Groups[2].Pods[0].Status = "pretended"
	return s
}

func TestShutdownText(t *testing.T) {
	for name, s := range map[string]control.Shutdown{"shutdown-plan.txt": plan(), "shutdown-under-way.txt": underWay(), "shutdown-dry-run.txt": rehearsed()} {
		socket := serve(t, &daemon{shutdowns: []control.Shutdown{s}})
		code, out, errs := call("shutdown", "plan", "--control-socket", socket)
		if code != exitOK || errs != "" {
			t.Errorf("shutdown plan exits %d with %q; want %d", code, errs, exitOK)
		}
		golden(t, name, out)
	}
}

func TestShutdownLine(t *testing.T) {
	alone := plan()
	alone.Held, alone.Why = false, control.List[string]{"a kubelet owns pods of this node", "and holds a lock"}
	pretends := plan()
	pretends.Held, pretends.DryRun = false, true
	left := over()
	left.Stopped, left.Running = 2, 1
	unheld := plan()
	unheld.Held = false
	for _, tt := range []struct {
		s    control.Shutdown
		want string
	}{
		{plan(), "held up for the pods"},
		{alone, "left alone; a kubelet owns pods of this node; and holds a lock"},
		{pretends, "dry run, nothing is stopped nor held up"},
		{unheld, "heard of only from evictctl shutdown begin"},
		{underWay(), "stopping the pods, an operator's, since 3s"},
		{over(), "the pods are stopped, an operator's, since 3s, it took 3s"},
		{rehearsed(), "dry run, no pod is stopped, 3 pods would be; an operator's, since 3s"},
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

// Begin waits until the pods are gone, unless it is told not to.
func TestShutdownBegin(t *testing.T) {
	socket := serve(t, &daemon{shutdowns: []control.Shutdown{underWay(), underWay(), over()}})
	code, out, _ := call("shutdown", "begin", "--control-socket", socket)
	if code != exitOK || !strings.HasPrefix(out, "shutdown:  the pods are stopped, ") {
		t.Errorf("shutdown begin exits %d with %q; want it over", code, out)
	}
	socket = serve(t, &daemon{shutdowns: []control.Shutdown{underWay(), over()}})
	code, out, _ = call("shutdown", "begin", "--wait=false", "--control-socket", socket)
	if code != exitOK || !strings.HasPrefix(out, "shutdown:  stopping the pods, ") {
		t.Errorf("shutdown begin --wait=false exits %d with %q; want it under way", code, out)
	}
	off := plan()
	off.CalledOff = true
	socket = serve(t, &daemon{shutdowns: []control.Shutdown{underWay(), off}})
	code, _, errs := call("shutdown", "begin", "--control-socket", socket)
	if code != exitFailure || errs != "evictctl: the shutdown was called off\n" {
		t.Errorf("shutdown begin that is called off exits %d with %q; want %d and that", code, errs, exitFailure)
	}
}

// In dry run no pod is stopped: begin says so, and a script that relies on the
// exit code does not take the pods for stopped.
func TestShutdownBeginDryRun(t *testing.T) {
	for _, wait := range []string{"--wait=true", "--wait=false"} {
		socket := serve(t, &daemon{shutdowns: []control.Shutdown{rehearsed()}})
		code, out, errs := call("shutdown", "begin", wait, "--control-socket", socket)
		if want := "evictctl: dry run: no pod is stopped, 3 pods would be; evictctl status says why\n"; code != exitFailure || errs != want {
			t.Errorf("shutdown begin %s in dry run exits %d with %q; want %d and %q", wait, code, errs, exitFailure, want)
		}
		if !strings.HasPrefix(out, "shutdown:  dry run, no pod is stopped, 3 pods would be; ") || strings.Contains(out, "pods are stopped") {
			t.Errorf("shutdown begin %s in dry run prints %q; want that it is one", wait, out)
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
		t.Errorf("shutdown plan without evictd exits %d with %q; want %d and that", code, errs, exitFailure)
	}
}
