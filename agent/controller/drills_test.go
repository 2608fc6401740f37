package controller

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/fence/plan"
)

// plugPlan returns the plan of n1 with a device that is not compared with the node.
func plugPlan() fence.Plan {
	p := testPlan()
	p.PowerManagement[0].Methods[0].Identity = fence.CheckNone
	return p
}

// plugDigest returns what the drill of that plan shows.
func plugDigest() string {
	return fence.DrillDigest(fence.Node{UID: nodeUID, SystemUUID: machine}, plugPlan().PowerManagement[0])
}

// A device without a UUID is used only after a drill of the node with the same device, or if that is accepted.
func TestNotDrilledIsNotSwitched(t *testing.T) {
	for name, tt := range map[string]struct {
		shown  []string
		change func(*fence.Method)
		off    bool
	}{
		"not drilled":   {},
		"drilled":       {shown: []string{plugDigest() + " 2030-01-02T03:04:05Z"}, off: true},
		"another drill": {shown: []string{"v1-00 2030-01-02T03:04:05Z", plugDigest()}, off: true},
		"other version": {shown: []string{"v2" + strings.TrimPrefix(plugDigest(), "v1")}},
		"changed plug":  {shown: []string{plugDigest()}, change: func(m *fence.Method) { m.Device = "bmc2" }},
		"accepted":      {change: func(m *fence.Method) { m.Unverified = fence.Accept }, off: true},
		"has a UUID":    {change: func(m *fence.Method) { m.Identity = fence.CheckUUID }, off: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			d := &faultyDevice{uuid: machine}
			r, api := testReconciler(t, d, interceptor.Funcs{}, deadNode(), healthyNode("n2"), healthyNode("n3"), leaseOf("n1", time.Now()))
			plan := plugPlan()
			if tt.change != nil {
				tt.change(&plan.PowerManagement[0].Methods[0])
			}
			r.config.config.Plans["n1"], r.config.shown = plan, drills{"n1": tt.shown}
			reconcileFor(t, r, 3*time.Minute)
			nf := getFence(t, api)
			if nf == nil || (d.called("off") > 0) != tt.off {
				t.Fatalf("%s: NodeFence %+v, off %d times; want off %t", name, nf, d.called("off"), tt.off)
			}
			left := meta.IsStatusConditionTrue(nf.State.Conditions, fence.ConditionNotDrilled)
			if gaveUp := meta.IsStatusConditionTrue(nf.State.Conditions, fence.ConditionGaveUp); left == tt.off || gaveUp == tt.off {
				t.Errorf("%s: conditions %+v; want NotDrilled and GaveUp %t", name, nf.State.Conditions, !tt.off)
			}
		})
	}
}

// What a drill has shown is kept before the drill ends, next to what others have shown. What no plan has is removed.
func TestDrillIsKept(t *testing.T) {
	second := fence.Level{Methods: []fence.Method{{Name: "pdu-off", Agent: "fence_apc", Action: fence.Off, Device: "pdu", Identity: fence.CheckNone}}}
	kept := fence.DrillDigest(fence.Node{UID: nodeUID, SystemUUID: machine}, second) + " 2029-01-02T03:04:05Z"
	for name, tt := range map[string]struct {
		err     error
		missing bool
		kept    bool
	}{
		"kept":         {kept: true},
		"no ConfigMap": {missing: true, kept: true},
		"no right":     {err: refuseAccess("configmaps")},
	} {
		synctest.Test(t, func(t *testing.T) {
			refused := interceptor.Funcs{Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, options ...client.PatchOption) error {
				if _, ok := o.(*corev1.ConfigMap); ok && tt.err != nil {
					return tt.err
				}
				return c.Patch(ctx, o, p, options...)
			}}
			nf := runningFence(func(s *fence.State) {
				s.Drill, s.Step, s.Status, s.Phase = true, fence.Recovery, fence.New, fence.Released
				s.Plan, s.Shows = plugPlan(), plugDigest()
				s.Proof = &fence.Proof{How: fence.ByReadings}
				s.LastAct = metav1.NowMicro()
			})
			node := cordonedNode()
			node.Status.NodeInfo.BootID = "boot2"
			objects := []client.Object{node, nf, leaseOf("n1", time.Now())}
			if !tt.missing {
				objects = append(objects, &corev1.ConfigMap{
					ObjectMeta: metav1.ObjectMeta{Namespace: "evictd", Name: drillsName},
					Data:       map[string]string{"n1": kept + "\nv1-00 2029-01-02T03:04:05Z\n", "gone": "v1-01", "broken": "v1-02"},
				})
			}
			r, api := testReconciler(t, &faultyDevice{uuid: machine}, refused, objects...)
			plan := plugPlan()
			plan.PowerManagement = append(plan.PowerManagement, second)
			r.config.config.Plans["n1"], r.config.config.Refused = plan, []string{"broken"}
			list := &corev1.ConfigMapList{}
			if err := api.List(t.Context(), list); err != nil {
				t.Fatal(err)
			}
			r.config.shown = drillsOf(list.Items)
			reconcileFor(t, r, 5*time.Second)
			if nf := getFence(t, api); nf == nil || nf.State.Result != fence.Recovered {
				t.Fatalf("%s: NodeFence %+v; want it ended", name, nf)
			}
			m := &corev1.ConfigMap{}
			if err := api.Get(t.Context(), types.NamespacedName{Namespace: "evictd", Name: drillsName}, m); err != nil {
				t.Fatal(err)
			}
			got := m.Data["n1"]
			if strings.Contains(got, plugDigest()) != tt.kept {
				t.Errorf("%s: ConfigMap has %q for n1; want the drill kept %t", name, got, tt.kept)
			}
			if _, gone := m.Data["gone"]; tt.kept && !tt.missing && (!strings.Contains(got, kept) || strings.Contains(got, "v1-00") || gone || m.Data["broken"] == "") {
				t.Errorf("%s: ConfigMap has %v; want what the plans have", name, m.Data)
			}
		})
	}
}

// The drill of one level uses only that level.
func TestDrillOfLevel(t *testing.T) {
	for request, want := range map[string]string{
		nodeUID + "/2": "", nodeUID + "/3": "has the levels 1 to 2", nodeUID + "/0": "has the levels", nodeUID + "/x": "has the levels", "other/2": "the UID of the Node is",
	} {
		r, _ := testReconciler(t, nil, interceptor.Funcs{}, cordonedNode(), leaseOf("n1", time.Now()))
		plan := testPlan()
		plan.PowerManagement = append(plan.PowerManagement, plugPlan().PowerManagement...)
		r.config.config.Plans["n1"] = plan
		config, _ := r.config.current()
		p := &pass{reconciler: r, name: "n1", config: &config, saved: r.saved("n1"), node: cordonedNode()}
		s, _, err := p.openDrill(t.Context(), request)
		if want == "" {
			if err != nil || len(s.Plan.PowerManagement) != 1 || s.Plan.PowerManagement[0].Methods[0].Identity != fence.CheckNone {
				t.Errorf("openDrill(%q) = %+v, %v; want the second level", request, s, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("openDrill(%q) = %v; want %q", request, err, want)
		}
		if len(r.config.config.Plans["n1"].PowerManagement) != 2 {
			t.Errorf("openDrill(%q) changed the configured plan", request)
		}
	}
}

// FuzzDrills: whatever the ConfigMap has, only whole digests count.
func FuzzDrills(f *testing.F) {
	f.Add(plugDigest() + " 2030-01-02T03:04:05Z\n")
	f.Add("\r\n \x00")
	f.Fuzz(func(t *testing.T, text string) {
		d := drillsOf([]corev1.ConfigMap{{ObjectMeta: metav1.ObjectMeta{Name: drillsName}, Data: map[string]string{"n1": text}}})
		for _, digest := range d.digests("n1") {
			if digest == "" || strings.ContainsAny(digest, "\n ") || !strings.Contains(text, digest) {
				t.Errorf("digests(%q) has %q", text, digest)
			}
		}
	})
}

// A drill does not count after a value in a Secret was changed that may name another plug, and such a value is not used
// for a fence that began before. A new password is none of them. Nothing of the values can be found in the plan without
// the UIDs of the Secrets.
func TestDrillOfSecrets(t *testing.T) {
	put := func(name, key, text string) corev1.ConfigMap {
		return corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "evictd", Name: name}, Data: map[string]string{key: text}}
	}
	secret := func(name string, uid types.UID, username, password string) corev1.Secret {
		s := corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "evictd", Name: name, UID: uid}, Data: map[string][]byte{}}
		for key, value := range map[string]string{"username": username, "password": password} {
			if value != "" {
				s.Data[key] = []byte(value)
			}
		}
		return s
	}
	const template, method = "fence-method-template-bmc", "fence-method-bmc-off-n1"
	read := func(setting string, secrets ...corev1.Secret) (fence.Method, string) {
		t.Helper()
		var cached []corev1.Secret
		for i := range secrets {
			s := secrets[i].DeepCopy()
			stripSecret(s)
			cached = append(cached, *s)
		}
		config, problems := plan.Parse(objects([]corev1.ConfigMap{
			put("fence-config-n1", "config.properties", "node_name=n1\npower_management=bmc-off"),
			put(method, "method.properties", "template="+template+"\nip=192.0.2.1\naction=off"),
			put(template, "template.properties", "agent_name=ipmi\n"+setting),
		}, cached))
		p, planned := config.Plans["n1"]
		if !planned {
			t.Fatalf("no plan: %v", problems)
		}
		m := p.PowerManagement[0].Methods[0]
		return m, p.Hash + " " + fence.DrillDigest(fence.Node{UID: nodeUID, SystemUUID: machine}, p.PowerManagement[0])
	}
	first := []corev1.Secret{secret(template, "1", "admin", "one"), secret(method, "2", "", "two")}
	annotated := *first[0].DeepCopy()
	annotated.ResourceVersion, annotated.Annotations = "9", map[string]string{"a": "b"}
	for name, tt := range map[string]struct {
		secrets []corev1.Secret
		same    bool
	}{
		"unchanged":                {first, true},
		"annotation":               {[]corev1.Secret{annotated, first[1]}, true},
		"line break":               {[]corev1.Secret{secret(template, "1", "admin\n", "one"), first[1]}, true},
		"password":                 {[]corev1.Secret{secret(template, "1", "admin", "three"), secret(method, "2", "", "four")}, true},
		"username":                 {[]corev1.Secret{secret(template, "1", "root", "one"), first[1]}, false},
		"username of the method":   {[]corev1.Secret{first[0], secret(method, "2", "root", "two")}, false},
		"created again":            {[]corev1.Secret{secret(template, "3", "admin", "one"), first[1]}, false},
		"created again, passwords": {[]corev1.Secret{first[0], secret(method, "3", "", "two")}, true},
	} {
		pinned, before := read("identity=none", first...)
		if _, got := read("identity=none", tt.secrets...); (got == before) != tt.same {
			t.Errorf("%s: hash and digest %s, before %s; want the same %t", name, got, before, tt.same)
		}
		r, _ := testReconciler(t, nil, interceptor.Funcs{}, tt.secrets[0].DeepCopy(), tt.secrets[1].DeepCopy())
		_, err := r.observer.live.open(t.Context(), &pinned)
		if (err == nil) != tt.same || err != nil && !strings.Contains(err.Error(), "drill the node again") {
			t.Errorf("%s: open with the plan of before = %v; want a device %t", name, err, tt.same)
		}
		pinned.Unverified = fence.Accept
		if _, err := r.observer.live.open(t.Context(), &pinned); err != nil {
			t.Errorf("%s: open of an accepted method = %v", name, err)
		}
	}
	_, before := read("identity=none", first...)
	if _, got := read("identity=none", secret(template, "1", "root", "one"), first[1]); strings.Fields(got)[0] != strings.Fields(before)[0] {
		t.Errorf("hash of the plan = %s, before %s; want no values of Secrets in it", got, before)
	}
	if m, _ := read("identity=uuid", first...); m.SecretDigest != "" {
		t.Errorf("a method that compares the UUID has the digest %s; want none", m.SecretDigest)
	}
}
