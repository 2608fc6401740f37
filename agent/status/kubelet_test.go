package status

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/kube"
	"github.com/evictd/evictd/agent/loop"
	"github.com/evictd/evictd/agent/shutdown/driver"
	"github.com/evictd/evictd/agent/shutdown/logind"
	"github.com/evictd/evictd/agent/shutdown/logind/logindtest"
	"github.com/evictd/evictd/agent/signal"
)

// withKubelet adds facts with a kubelet's hard thresholds (JSON); "" if they are not known.
func withKubelet(t *testing.T, hard string) func(*Options) {
	t.Helper()
	content := `{"format":1}`
	if hard != "" {
		content = fmt.Sprintf(`{"format":1,"kubelet":{"at":%q,"configuration":{"evictionHard":%s,"shutdownGracePeriod":"30s"}}}`, time.Now().Add(-time.Minute).Format(time.RFC3339), hard)
	}
	facts := kube.NewFacts()
	if err := facts.Restore([]byte(content), time.Now()); err != nil {
		t.Fatal(err)
	}
	return func(o *Options) { o.Facts = facts }
}

// The status has what is left to the kubelet and how its configuration differs, and warns where both
// may evict. The explanation says it, too.
func TestKubeletStatus(t *testing.T) {
	const defaults = `{"memory.available":"100Mi","nodefs.available":"10%","nodefs.inodesFree":"1%","imagefs.available":"1%","imagefs.inodesFree":"1%","pid.available":"10"}`
	for _, tt := range []struct {
		name, hard, settings string
		metFor               time.Duration // of nodefs.available; zero if it is not met
		reporting            bool
		left                 []string
		differences          int
		warning              string // "" for none about the kubelet
	}{
		{"defaults", defaults, "evictionHard: {memory.available: 1Gi, nodefs.available: 10%, pid.available: 100}", 0, true, []string{"nodefs.available", "containerfs.available"}, 1, ""},
		{"met", defaults, "evictionHard: {memory.available: 1Gi, nodefs.available: 10%, pid.available: 100}", time.Minute, true, []string{"nodefs.available", "containerfs.available"}, 1, ""},
		{"met for too long", defaults, "evictionHard: {memory.available: 1Gi, nodefs.available: 10%, pid.available: 100}", 6 * time.Minute, true, []string{"containerfs.available"}, 1, ""},
		{"memory too", defaults, "evictionHard: {memory.available: 100Mi, pid.available: 100}", 0, true, nil, 1, "kubelet's evictionHard.memory.available is 100Mi: "},
		{"fits", defaults, "evictionHard: {memory.available: 1Gi, nodefs.available: 20%, pid.available: 100}", 0, true, nil, 0, ""},
		{"not known", "", "evictionHard: {nodefs.available: 10%}", 0, true, nil, 0, "the kubelet's configuration is not known"},
		{"not known, in dry run", "", "evictionHard: {nodefs.available: 10%}", 0, false, nil, 0, ""},
	} {
		n := newNode(t, withKubelet(t, tt.hard))
		v := n.step(t, tt.settings+"\n")
		v.Mode.Reporting = tt.reporting
		if tt.metFor > 0 {
			v.State.Timers = []evict.Timer{{Threshold: evict.ThresholdKey{Signal: signal.NodeFsAvailable}, Since: time.Now().Add(-tt.metFor)}}
		}
		if known := n.o.Facts.KubeletThresholds(); known != nil {
			v.KubeletHard = evict.WithDerived(known, evict.SingleFs, true)
		}
		s := n.Status()
		k := s.Kubernetes.Kubelet
		if k.Known != (tt.hard != "") || k.ShutsDown != k.Known || k.Known != (k.AgeSeconds != nil) || !slices.Equal(k.Left, control.List[string](tt.left)) || len(k.Differences) != tt.differences {
			t.Errorf("%s: kubelet's configuration %+v; want %q left, %d differences", tt.name, k, tt.left, tt.differences)
		}
		warning := ""
		for _, w := range s.Warnings {
			if strings.Contains(w, "kubelet") {
				warning = w
			}
		}
		if !strings.HasPrefix(warning, tt.warning) || (warning == "") != (tt.warning == "") {
			t.Errorf("%s: warning %q; want %q", tt.name, warning, tt.warning)
		}
		e, err := n.Explain(signal.NodeFsAvailable)
		if err != nil {
			t.Fatal(err)
		}
		explained := slices.ContainsFunc(e.Notes, func(note string) bool {
			return strings.Contains(note, "nodefs.available<10% is left to the kubelet, whose threshold of 10% is not below it: evictd evicts only if it stays met for 5m0s")
		})
		if want := slices.Contains(tt.left, "nodefs.available"); explained != want {
			t.Errorf("%s: notes %q; want an explanation: %t", tt.name, e.Notes, want)
		}
	}
}

// A kubelet without a grace period fits only an evictd that stops the pods in a shutdown: one that
// reaches logind, is not in dry run and does not leave it to the kubelet.
func TestKubeletShutdown(t *testing.T) {
	for _, tt := range []struct {
		name   string
		logind bool
		lock   string // a lock of the kubelet
		change func(*loop.View)
		want   string // part of the consequence; "" for no difference
	}{
		{"evictd stops the pods", true, "", func(*loop.View) {}, ""},
		{"no logind", false, "", func(*loop.View) {}, "evictd does not reach logind"},
		{"dry run", true, "", func(v *loop.View) { v.Mode.ReasonsExceptKubelet = []string{"--dry-run was given"} }, "--dry-run was given"},
		{"left to the kubelet", true, "", func(v *loop.View) { v.Snapshot.Kubelet.HasSandboxes = true }, "a kubelet owns pods of this node"},
		{"the kubelet has a lock", true, "kubelet", func(*loop.View) {}, ""},
	} {
		facts := kube.NewFacts()
		content := fmt.Sprintf(`{"format":1,"kubelet":{"at":%q,"configuration":{"shutdownGracePeriod":"0s"}}}`, time.Now().Format(time.RFC3339))
		if err := facts.Restore([]byte(content), time.Now()); err != nil {
			t.Fatal(err)
		}
		n := newNode(t, func(o *Options) {
			o.Facts = facts
			if tt.logind {
				o.DelayLock = connected(t, tt.lock)
				o.Shutdown = driver.New(driver.Options{Log: slog.New(slog.NewTextHandler(t.Output(), nil)), DelayLock: o.DelayLock, View: o.View, RequestSave: func() {}})
			}
		})
		tt.change(n.step(t, "shutdownGracePeriod: 30s\nkube: {uid: 4711}\n"))
		got := ""
		for _, d := range n.Status().Kubernetes.Kubelet.Differences {
			if d.Field == "shutdownGracePeriod" {
				got = d.Consequence
			}
		}
		if !strings.Contains(got, tt.want) || (got == "") != (tt.want == "") {
			t.Errorf("%s: consequence %q; want %q", tt.name, got, tt.want)
		}
	}
}

// connected returns a DelayLock that has read logind's locks: that of a kubelet, unless it is "".
func connected(t *testing.T, kubelet string) *logind.DelayLock {
	t.Helper()
	root := t.TempDir()
	bus := logindtest.New(t, root)
	if kubelet != "" {
		bus.Inhibit(kubelet)
	}
	lock := logind.NewDelayLock(logind.Options{
		Address: bus.Address(), Root: root, Log: slog.New(slog.DiscardHandler), IsKubelet: func(pid int) bool { return pid == 1 }, // that of Bus.Inhibit
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); lock.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	for deadline := time.Now().Add(10 * time.Second); !lock.Status().Connected || !lock.Status().KubeletKnown; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("status of the lock %+v; want a connection and the kubelet's lock known", lock.Status())
		}
	}
	return lock
}
