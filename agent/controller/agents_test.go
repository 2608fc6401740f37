package controller

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/fence/device"
)

// agentScript is a fence agent with the given actions and the state of its plug in a file. It counts its runs.
func agentScript(dir, actions string) string {
	var elements strings.Builder
	for action := range strings.FieldsSeq(actions) {
		elements.WriteString(`<action name="` + action + `"/>`)
	}
	return `#!/bin/sh
echo run >>` + dir + `/runs
while read -r line; do
	echo "$line" >>` + dir + `/input
	case $line in action=*) action=${line#action=} ;; esac
done
case $action in
metadata) echo '<resource-agent name="fence_x"><parameters><parameter name="ip" required="1"/>` +
		`<parameter name="plug" required="1"/><parameter name="password" obsoletes="passwd"/></parameters>` +
		`<actions>` + elements.String() + `</actions></resource-agent>' ;;
on | off) echo $action >` + dir + `/power ;;
status) [ "$(cat ` + dir + `/power)" = off ] || exit 0; echo "Status: OFF"; exit 2 ;;
*) echo "bad action, password hunter2" >&2; exit 1 ;;
esac
`
}

// install writes the agent fence_x.
func install(t *testing.T, dir, script string) {
	t.Helper()
	syscall.ForkLock.RLock() // see clusterlabs: the file must not be open for writing in another process
	defer syscall.ForkLock.RUnlock()
	path := filepath.Join(dir, "fence_x")
	err := errors.Join(os.Chmod(dir, 0o700), os.WriteFile(path+".new", []byte(script), 0o700), os.Rename(path+".new", path))
	if err != nil {
		t.Fatal(err)
	}
}

func runs(t *testing.T, dir string) int {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "runs"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.Count(string(b), "run\n")
}

// TestSchemaCache: the metadata is read once for each version of an agent, and a failure is tried again later.
func TestSchemaCache(t *testing.T) {
	dir := t.TempDir()
	f := newFenceAgents(dir)
	if _, err := f.schema(t.Context(), "fence_x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("schema of a missing agent: %v; want fs.ErrNotExist", err)
	}
	install(t, dir, agentScript(dir, "off on status"))
	for range 3 {
		s, err := f.schema(t.Context(), "fence_x")
		if err != nil || len(s.Parameters) != 3 || len(s.Actions) != 3 {
			t.Fatalf("schema = %+v, %v", s, err)
		}
	}
	if n := runs(t, dir); n != 1 {
		t.Errorf("the agent ran %d times; want once", n)
	}
	install(t, dir, agentScript(dir, "off status"))
	if s, err := f.schema(t.Context(), "fence_x"); err != nil || len(s.Actions) != 2 {
		t.Errorf("schema of the new agent = %+v, %v", s, err)
	}

	install(t, dir, "#!/bin/sh\necho run >>"+dir+"/runs\necho broken >&2\nexit 1\n")
	before := runs(t, dir)
	for range 2 {
		if s, err := f.schema(t.Context(), "fence_x"); err == nil || !strings.Contains(err.Error(), "exit status 1: broken") || len(s.Actions) > 0 {
			t.Errorf("schema of a broken agent = %+v, %v", s, err)
		}
	}
	if n := runs(t, dir) - before; n != 1 {
		t.Errorf("the broken agent ran %d times; want once", n)
	}
	f.agents["fence_x"].failed = time.Now().Add(-agentInterval)
	if _, err := f.schema(t.Context(), "fence_x"); err == nil || runs(t, dir)-before != 2 {
		t.Errorf("schema = %v after %d runs; want a second one", err, runs(t, dir)-before)
	}

	install(t, dir, agentScript(dir, "off on status"))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.schema(ended, "fence_x"); err == nil {
		t.Error("schema with an ended context has no error")
	}
	if _, err := f.schema(t.Context(), "fence_x"); err != nil {
		t.Errorf("schema after an ended context: %v", err)
	}
}

// TestOpenFenceAgent: the device of a method is an agent with the parameters of its plan and its Secrets.
func TestOpenFenceAgent(t *testing.T) {
	dir := t.TempDir()
	install(t, dir, agentScript(dir, "off on status"))
	r, api := testReconciler(t, nil, interceptor.Funcs{}, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "evictd", Name: "fence-method-template-pdu"}, Data: map[string][]byte{"passwd": []byte("hunter2\n")},
	})
	m := &fence.Method{Name: "pdu-off", Agent: "fence_x", Action: fence.Off, Secrets: []string{"fence-method-template-pdu"},
		Parameters: map[string]string{"ip": "192.0.2.1", "plug": "2"}}
	live := r.observer.live
	if _, err := live.open(t.Context(), m); err == nil || !strings.Contains(err.Error(), "fence_x") {
		t.Errorf("open without agents = %v", err)
	}
	live.agents = newFenceAgents(dir)
	d, err := live.open(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Off(t.Context()); err != nil {
		t.Errorf("Off = %v", err)
	}
	if power, err := d.Status(t.Context()); power != fence.PowerOff || err != nil {
		t.Errorf("Status = %s, %v; want off", power, err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "input"))
	if want := "action=metadata\nip=192.0.2.1\npassword=hunter2\nplug=2\naction=off\nip=192.0.2.1\npassword=hunter2\nplug=2\naction=status\n"; string(b) != want || err != nil {
		t.Errorf("the agent was given %q, %v; want %q", b, err, want)
	}

	// The agent is replaced by one that fails: the error does not have the password.
	script := strings.ReplaceAll(agentScript(dir, "off on status"), "on | off)", "on)")
	install(t, dir, script)
	if d, err = live.open(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if err := d.Off(t.Context()); err == nil || errors.Is(err, device.ErrRefused) || strings.Contains(err.Error(), "hunter2") ||
		!strings.Contains(err.Error(), "bad action") {
		t.Errorf("Off = %v; want an unknown outcome, without the password", err)
	}
	install(t, dir, agentScript(dir, "off on"))
	if _, err := live.open(t.Context(), m); err == nil || !strings.Contains(err.Error(), "no action status") {
		t.Errorf("open of an agent that lost its status = %v", err)
	}
	if err := api.Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "evictd", Name: "fence-method-template-pdu"}}); err != nil {
		t.Fatal(err)
	}
	install(t, dir, agentScript(dir, "off on status"))
	if _, err := live.open(t.Context(), m); err == nil || !strings.Contains(err.Error(), "Secret fence-method-template-pdu") {
		t.Errorf("open without the Secret = %v", err)
	}
}

// TestAgentsOfConfiguration: agents that templates name are looked at again, as they are installed, change or break.
func TestAgentsOfConfiguration(t *testing.T) {
	dir := t.TempDir()
	put := func(name, key, text string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "evictd", Name: name}, Data: map[string]string{key: text}}
	}
	_, api := testReconciler(t, &faultyDevice{}, interceptor.Funcs{},
		put("fence-config-n1", "config.properties", "node_name=n1\npower_management=pdu-off"),
		put("fence-method-pdu-off-n1", "method.properties", "template=fence-method-template-pdu\nplug=2\naction=off"),
		put("fence-method-template-pdu", "template.properties", "agent_name=fence_x\nip=192.0.2.1\nidentity=none"))
	var out bytes.Buffer
	c := &configuration{
		cached: api, namespace: "evictd", recorder: recorder{events.NewFakeRecorder(100)}, metrics: newMetrics(api), agents: newFenceAgents(dir),
		log: slog.New(slog.NewTextHandler(&out, nil)), changed: func(context.Context) {},
	}
	for _, tt := range []struct {
		name, script, want string
	}{
		{"missing", "", "fence_x is not installed where evictd-controller runs"},
		{"installed", agentScript(dir, "off on reboot status"), ""},
		{"broken", "#!/bin/sh\necho no module >&2; exit 1\n", "exit status 1: no module"},
		{"no status", agentScript(dir, "off on reboot"), "has no action status"},
	} {
		if tt.script != "" {
			install(t, dir, tt.script)
		}
		out.Reset()
		result, err := c.Reconcile(t.Context(), reconcile.Request{})
		if err != nil || result.RequeueAfter != agentInterval {
			t.Errorf("%s: Reconcile = %+v, %v; want another one after %s", tt.name, result, err, agentInterval)
		}
		config, _ := c.current()
		if planned := len(config.Plans) == 1; planned != (tt.want == "") || !strings.Contains(out.String(), tt.want) {
			t.Errorf("%s: plan %t; want a problem with %q:\n%s", tt.name, planned, tt.want, &out)
		}
	}
	before := runs(t, dir)
	if err := api.Delete(t.Context(), put("fence-method-template-pdu", "", "")); err != nil {
		t.Fatal(err)
	}
	if result, err := c.Reconcile(t.Context(), reconcile.Request{}); err != nil || result.RequeueAfter != 0 || runs(t, dir) != before {
		t.Errorf("without agents: Reconcile = %+v, %v; want no other one", result, err)
	}
}
