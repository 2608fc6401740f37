package cluster

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/kube"
	kubecluster "github.com/evictd/evictd/agent/kube/cluster"
	"github.com/evictd/evictd/agent/selffence"
)

// markAnswers are what evictd gets.
type markAnswers chan *kube.MarksReport

func (m markAnswers) ReportMarks(r *kube.MarksReport) { m <- r }

// marksOf returns the advert of a Node and its mark of a planned shutdown.
func (r *rig) marksOf(node string) (watchdog, planned string) {
	r.t.Helper()
	var o struct {
		Metadata struct{ Annotations map[string]string }
	}
	if err := json.Unmarshal(r.must("GET", "/api/v1/nodes/"+node, ""), &o); err != nil {
		r.t.Fatal(err)
	}
	return o.Metadata.Annotations[selffence.AnnotationWatchdog], o.Metadata.Annotations[selffence.AnnotationPlannedShutdown]
}

// TestMarksUnderPolicy: with the rights and the policies of the overlay enforce, and a token as the kubelet requests it,
// evictd-kube writes the marks of its node, also as the first annotations of the node, and while others write the node.
func TestMarksUnderPolicy(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, doc := range renderOverlay(t, "enforce") {
		r.applyObject(doc)
	}
	r.must("POST", "/api/v1/nodes", `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n1"}}`)
	r.must("POST", "/api/v1/nodes", `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n2"}}`)
	r.agent("agent-n1", "n1")
	token := r.tokenOfPod("agent-n1")
	r.until("the policy applies", func() bool {
		code, _ := r.as(token, http.MethodPatch, "/api/v1/nodes/n2?dryRun=All", `{"spec":{"unschedulable":true}}`)
		return code == http.StatusUnprocessableEntity
	})
	answers := make(markAnswers, 100)
	marks := kubecluster.NewMarks("n1", answers, slog.New(slog.DiscardHandler))
	go marks.Run(t.Context())
	r.report(func(o *kubecluster.Options) { o.Kubeconfig, o.Marks = r.kubeconfig(r.write("bound", token)), marks })
	advert := func(sequence uint64, armed bool) string {
		return selffence.Advert{Version: selffence.Version, Identity: "iTCO_wdt", BootID: "b", Sequence: sequence, Armed: armed}.String()
	}
	planned := selffence.FormatPlannedShutdown(time.Now().Add(time.Minute))
	for i, step := range []struct {
		armed             bool
		planned, watchdog string
	}{
		{false, "", ""},
		{true, "", advert(2, true)},
		{true, "", advert(3, true)},
		{true, planned, advert(4, true)},
		{false, planned, advert(5, false)},
		{false, "", advert(6, false)},
	} {
		number := uint64(i + 1)
		// Another client's write, which changes the resource version.
		if _, err := r.request(http.MethodPatch, "/api/v1/nodes/n1", "application/merge-patch+json", fmt.Sprintf(`{"metadata":{"labels":{"written":"%d"}}}`, number)); err != nil {
			t.Fatal(err)
		}
		marks.SetMarks(&kube.NodeMarks{Number: number, Watchdog: advert(number, step.armed), PlannedShutdown: step.planned})
		for deadline := time.After(time.Minute); ; {
			select {
			case a := <-answers:
				if a.Why != "" {
					t.Logf("answer %+v", a)
					continue
				}
				if a.Number != number {
					t.Errorf("answer %d; want %d", a.Number, number)
				}
			case <-deadline:
				t.Fatalf("no answer to %d", number)
			}
			break
		}
		if watchdog, mark := r.marksOf("n1"); watchdog != step.watchdog || mark != step.planned {
			t.Errorf("%d: annotations %q, %q; want %q, %q", number, watchdog, mark, step.watchdog, step.planned)
		}
	}
	// A request that was delayed: its test of the value before fails.
	late := fmt.Sprintf(`[{"op":"test","path":"/metadata/annotations/evictd.io~1watchdog","value":%q},{"op":"replace","path":"/metadata/annotations/evictd.io~1watchdog","value":%q}]`,
		advert(4, true), advert(5, true))
	if code, _, answer := r.do(token, http.MethodPatch, "/api/v1/nodes/n1", "application/json-patch+json", late); code != http.StatusUnprocessableEntity {
		t.Errorf("a late advert = %d %s; want %d", code, answer, http.StatusUnprocessableEntity)
	}
	if watchdog, _ := r.marksOf("n1"); !strings.Contains(watchdog, `"armed":false`) {
		t.Errorf("annotation %q after a late advert", watchdog)
	}
}
