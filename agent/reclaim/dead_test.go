package reclaim

import (
	"strings"
	"testing"
	"time"

	"github.com/evictd/evictd/cri"
)

func TestDead(t *testing.T) {
	at := func(minutes int) time.Time { return start.Add(time.Duration(minutes) * time.Minute) }
	box := func(id, pod string, created int, ready bool) cri.Sandbox {
		return cri.Sandbox{ID: id, Name: pod, Namespace: "ns", UID: "u-" + pod, Created: at(created), Ready: ready}
	}
	kubelets := box("k", "kubelets", 0, false)
	kubelets.Annotations = map[string]string{configSource: "api"}
	exited := func(id, sandbox string, created int) cri.Container {
		return cri.Container{ID: id, SandboxID: sandbox, Name: id, State: cri.StateExited, Created: at(created)}
	}
	running := exited("run", "mixed", 1)
	running.State = cri.StateRunning
	sandboxes := []cri.Sandbox{
		box("old", "a", 1, false), box("older", "b", 0, false), box("ready", "c", 0, true), kubelets,
		box("young", "d", 9, false), box("first", "e", 0, false), box("second", "e", 5, true),
		box("mixed", "f", 0, false), box("evicted", "g", 9, true), box("unknown", "h", 0, false), box("late", "i", 0, false),
	}
	sandboxes[9].Created = time.Time{}
	containers := []cri.Container{
		exited("o1", "old", 1), exited("r1", "ready", 1), exited("k1", "k", 1), exited("m1", "mixed", 1), running,
		exited("v1", "evicted", 9), exited("f1", "first", 0), exited("l1", "late", 0),
	}
	exits := map[string]exit{"o1": {at(2), "/var/log/pods/ns_a_u-a/o1/0.log"}, "l1": {finished: at(9)}}
	names := func(kubeletAbsent bool, now int) string {
		var list []string
		for _, r := range dead(sandboxes, containers, exits, map[string]Held{"evicted": {}}, kubeletAbsent, time.Minute, at(now)) {
			list = append(list, r.sandbox.ID+"/"+r.container)
		}
		return strings.Join(list, " ")
	}
	// first has a successor, ready and young and late are not old enough, of
	// unknown it is not known, and mixed still runs something.
	if got, want := names(false, 9), "evicted/ older/ mixed/m1 old/"; got != want {
		t.Errorf("dead = %q; want %q", got, want)
	}
	if got, want := names(false, 10), "evicted/ older/ mixed/m1 old/ late/ young/"; got != want {
		t.Errorf("dead a minute later = %q; want %q", got, want)
	}
	if got, want := names(true, 9), "evicted/ older/ k/ mixed/m1 old/"; got != want {
		t.Errorf("dead where no kubelet runs = %q; want %q", got, want)
	}
	containers[5].State = cri.StateRunning
	if got, want := names(false, 9), "older/ mixed/m1 old/"; got != want {
		t.Errorf("dead while the evicted one runs = %q; want %q", got, want)
	}
}

func TestLogDir(t *testing.T) {
	for _, tt := range []struct{ log, want string }{
		{"/var/log/pods/ns_p_u/main/0.log", "/var/log/pods/ns_p_u"},
		{"/srv/logs/ns_p_u/main.log", "/srv/logs/ns_p_u"},
		{"/ns_p_u/main.log", ""}, // right below the root
		{"/var/log/pods/ns_p_v/main/0.log", ""},
		{"/var/log/pods/ns_p_u.log", ""},
		{"", ""},
	} {
		r := remains{sandbox: cri.Sandbox{Namespace: "ns", Name: "p", UID: "u"}, logs: []string{tt.log}}
		if got := r.logDir(); got != tt.want {
			t.Errorf("logDir of %q = %q; want %q", tt.log, got, tt.want)
		}
	}
	r := remains{sandbox: cri.Sandbox{Namespace: "ns", Name: "p"}, logs: []string{"/var/log/pods/ns_p_/main/0.log"}}
	if got := r.logDir(); got != "" {
		t.Errorf("logDir without a UID = %q; want none", got)
	}
}
