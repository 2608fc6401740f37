package fencing

import (
	"maps"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/tests/bmc/redfish"
	"github.com/evictd/evictd/tests/controlplane"
)

// TestFenceSteps: a lost node goes through all three steps. It is cordoned, its machine is switched off and on by a BMC
// with Redfish, and it is uncordoned when it is back.
func TestFenceSteps(t *testing.T) {
	t.Parallel()
	c, program := startFencing(t, policy(map[string]string{"power_delay": "2s"}))
	b := useRedfish(t, c)
	secrets := searchSecret(t, program, b.Parameters()["password"])
	boot, uid := c.Machines["a"].BootID(), podUID(t, c)
	began := time.Now()
	c.Machines["a"].Isolate()
	awaitFence(t, c, "Power-Management", func(p *fence.Progress, _ *fence.Detail) bool { return p.Step == fence.PowerManagement })
	if !cordoned(t, c) {
		t.Error("a is not cordoned after Isolation")
	}
	if err := c.AwaitRecovery(t.Context(), "a", "b"); err != nil {
		t.Fatal(err)
	}
	wantRecovered(t, c, began, boot, uid)
	secrets.check(t, c)
	if cordoned(t, c) {
		t.Error("a is still cordoned after Recovery")
	}
	var types []string
	for _, r := range b.Resets() {
		types = append(types, r.Type+" "+r.Effect)
	}
	if len(types) != 2 || types[0] != "ForceOff done" || types[1] != "On done" {
		t.Errorf("resets %q; want ForceOff and On, once each", types)
	}
	if open, logins := b.Sessions(); open != 0 || logins < 4 {
		t.Errorf("%d sessions are open after %d logins; want none, and one for each act and reading", open, logins)
	}
}

// useRedfish gives the machine a BMC with Redfish in place of IPMI, and the methods cordon and uncordon.
func useRedfish(t *testing.T, c *Cluster) *redfish.BMC {
	t.Helper()
	b, err := redfish.Start(redfish.Options{UUID: c.Machines["a"].SystemUUID, SetPower: func(on bool) {
		kind := CommandOff
		if on {
			kind = CommandOn
		}
		if err := c.BMCs["a"].SetPower(on); err != nil {
			t.Error(err)
		}
		c.Timeline.add(Event{At: time.Now(), Kind: kind, Object: "a", Node: "a", By: "Redfish"})
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	p := b.Parameters()
	secret := corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "fence-method-template-redfish"},
		StringData: map[string]string{"username": p["username"], "password": p["password"], "ca.crt": p["ssl_ca"]},
	}
	if err := c.Admin.Create(t.Context(), "/api/v1/namespaces/"+Namespace+"/secrets", secret); err != nil {
		t.Fatal(err)
	}
	device := map[string]string{"template": "fence-method-template-redfish", "ip": p["ip"], "ipport": p["ipport"]}
	method := func(action string) map[string]string {
		m := maps.Clone(device)
		m["action"] = action
		return m
	}
	for _, m := range []corev1.ConfigMap{
		configMap("fence-method-template-redfish", "template.properties", map[string]string{"agent_name": "redfish", "timeout": "10s"}),
		configMap("fence-method-template-cordon", "template.properties", map[string]string{"agent_name": "cordon"}),
		configMap("fence-method-template-uncordon", "template.properties", map[string]string{"agent_name": "uncordon"}),
		configMap("fence-method-redfish-off-a", "method.properties", method("off")),
		configMap("fence-method-redfish-on-a", "method.properties", method("on")),
		configMap("fence-method-cordon-a", "method.properties", map[string]string{"template": "fence-method-template-cordon"}),
		configMap("fence-method-uncordon-a", "method.properties", map[string]string{"template": "fence-method-template-uncordon"}),
	} {
		if err := c.Admin.Create(t.Context(), "/api/v1/namespaces/"+Namespace+"/configmaps", m); err != nil {
			t.Fatal(err)
		}
	}
	lists := configMap("fence-config-a", "config.properties", map[string]string{
		"node_name": "a", "isolation": "cordon", "power_management": "redfish-off redfish-on", "recovery": "uncordon",
	})
	path := "/api/v1/namespaces/" + Namespace + "/configmaps/fence-config-a"
	if err := c.Admin.Patch(t.Context(), path, controlplane.MergePatch, fields{"data": lists.Data}); err != nil {
		t.Fatal(err)
	}
	return b
}

// cordoned reports whether a is unschedulable.
func cordoned(t *testing.T, c *Cluster) bool {
	t.Helper()
	var n corev1.Node
	if err := c.Admin.Get(t.Context(), nodePath+"/a", &n); err != nil {
		t.Fatal(err)
	}
	return n.Spec.Unschedulable
}
