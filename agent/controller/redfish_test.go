package controller

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/tests/bmc/redfish"
)

// TestRedfish switches machines off and reads them through a Redfish service, with the password and the certificate
// authority of a Secret. What the BMC says of its success is no reading.
func TestRedfish(t *testing.T) {
	const other = "00112233-4455-6677-8899-aabbccddeeff"
	for name, tt := range map[string]struct {
		uuid    string
		faults  redfish.Faults
		kind    fence.OutcomeKind
		message string
		resets  []string
		power   fence.Power // read after the act
	}{
		"accepted":      {machine, redfish.Faults{}, fence.Succeeded, "", []string{"ForceOff done"}, fence.PowerOff},
		"upper case":    {strings.ToUpper(machine), redfish.Faults{}, fence.Succeeded, "", []string{"ForceOff done"}, fence.PowerOff},
		"ignored":       {machine, redfish.Faults{Ignore: true}, fence.Succeeded, "", []string{"ForceOff ignored"}, fence.PowerOn},
		"refused":       {machine, redfish.Faults{Status: 400}, fence.Failed, "400 Bad Request", []string{"ForceOff refused"}, fence.PowerOn},
		"error":         {machine, redfish.Faults{Status: 500}, fence.Unknown, "may be carried out", []string{"ForceOff refused"}, fence.PowerOn},
		"done, hang-up": {machine, redfish.Faults{Hangup: true}, fence.Unknown, "may be carried out", []string{"ForceOff done"}, fence.PowerOff},
		"no session":    {machine, redfish.Faults{Full: true}, fence.Succeeded, "", []string{"ForceOff done"}, fence.PowerOff},
		"other machine": {other, redfish.Faults{}, fence.Refused, "does not match systemUUID", nil, fence.PowerOn},
		"no UUID":       {"", redfish.Faults{}, fence.Refused, "does not match systemUUID", nil, fence.PowerOn},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := redfish.Start(redfish.Options{UUID: tt.uuid})
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			b.Set(func(f *redfish.Faults) { *f = tt.faults })
			o := offOrder("1")
			o.method.Agent, o.method.Secrets = "redfish", []string{"fence-method-template-bmc"}
			o.method.Parameters = b.Parameters()
			data := map[string][]byte{"password": []byte(o.method.Parameters["password"] + "\n"), "ca.crt": []byte(b.Authority())}
			delete(o.method.Parameters, "password")
			delete(o.method.Parameters, "ssl_ca")
			r, _ := testReconciler(t, nil, interceptor.Funcs{}, &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Namespace: "evictd", Name: "fence-method-template-bmc"}, Data: data,
			})
			e := testExecutor(t.Context(), nil)
			e.open = e.openDevice(r.observer.live)
			ended := make(chan struct{})
			e.done = func(string) { close(ended) }
			e.pending("n1", fenceUID)
			e.act(o)
			select {
			case <-ended:
			case <-time.After(30 * time.Second):
				t.Fatal("the act does not end")
			}
			outcomes, _, _ := e.pending("n1", fenceUID)
			if len(outcomes) != 1 || outcomes[0].Kind != tt.kind || !strings.Contains(outcomes[0].Message, tt.message) {
				t.Errorf("outcomes = %+v; want %s, %q", outcomes, tt.kind, tt.message)
			}
			var resets []string
			for reset := range slices.Values(b.Resets()) {
				resets = append(resets, reset.Type+" "+reset.Effect)
			}
			if diff := cmp.Diff(tt.resets, resets); diff != "" {
				t.Errorf("resets (-want +got):\n%s", diff)
			}
			if got := e.reading("n1", fenceUID, &o.method); got.Power != tt.power || got.UUID != tt.uuid || got.Error != "" {
				t.Errorf("reading = %+v; want %s, UUID %q", got, tt.power, tt.uuid)
			}
		})
	}
}
