package cluster

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/evictd/evictd/agent/control"
)

const (
	promtool   = "promtool"
	alertsDir  = "../../deploy/prometheus"
	alertsFile = "alerts.yaml"
)

// alertCase has the series of an alert, one value a minute for 40 minutes: fires those for which
// it fires at the end, and quiet those for which it does not.
type alertCase struct {
	alert string
	list  []alertSeries
}

type alertSeries struct{ series, fires, quiet string }

// once is a counter that is increased once, shortly before the end, and never one that is not.
const (
	once  = "0x34 1x5"
	never = "3x40"
)

var alertCases = []alertCase{
	{"EvictdDown", []alertSeries{{`up{job="evictd"}`, "1x30 0x10", "1x40"}}},
	{"EvictdLoopStalled", []alertSeries{{`evictd_loop_duration_seconds_count`, "0+60x30 1800x10", "0+60x40"}}},
	{"EvictdLeftEnforcement", []alertSeries{{`evictd_dry_run`, "0x20 1x20", "1x40"}}},
	{"EvictdConfigurationRefused", []alertSeries{{`evictd_config_last_reload_successful`, "0x40", "1x40"}}},
	{"EvictdStateNotSaved", []alertSeries{{`evictd_state_kept`, "0x40", "1x40"}}},
	{"EvictdRuntimeDisconnected", []alertSeries{{`evictd_runtime_connected`, "0x40", "0x36 1x4"}}},
	{"EvictdSignalUnreadable", []alertSeries{{`evictd_signal_unreadable_total{signal="nodefs.available"}`, "0+6x40", never}}},
	{"EvictdFilesystemUnreadable", []alertSeries{{`evictd_filesystem_readable{filesystem="nodefs"}`, "0x40", "1x40"}}},
	{"EvictdLaneDegraded", []alertSeries{{`evictd_lane_degraded{lane="bpf"}`, "1x40", "0x30 1x10"}}},
	{"EvictdLaneMissed", []alertSeries{{`evictd_lane_missed_total{lane="psi"}`, once, never}}},
	{"EvictdEvicts", []alertSeries{{`evictd_evictions_total{mode="enforce",result="killed",signal="memory.available"}`, once, never}}},
	{"EvictdWouldEvict", []alertSeries{{`evictd_evictions_total{mode="dry-run",result="dry-run",signal="nodefs.available"}`, once, never}}},
	{"EvictdPressureLasts", []alertSeries{{`evictd_node_condition{condition="PIDPressure"}`, "1x40", "1x5 0x5 1x30"}}},
	{"EvictdFutile", []alertSeries{{`evictd_futile{signal="memory.available"}`, "1x40", "0x40"}}},
	{"EvictdKillFailed", []alertSeries{{`evictd_failed_kills_total`, once, never}}},
	{"EvictdKillSlow", []alertSeries{
		{`evictd_kill_latency_seconds_count`, "0x34 2x5", "0x34 2x5"},
		{`evictd_kill_latency_seconds_bucket{le="0.25"}`, once, "0x34 2x5"},
	}},
	{"EvictdKillSlow", []alertSeries{ // quiet: one slow kill, before the first scrape
		{`evictd_kill_latency_seconds_count`, "1x30 11x10", "1x30 11x10"},
		{`evictd_kill_latency_seconds_bucket{le="0.25"}`, "0x30 9x10", "0x30 10x10"},
	}},
	{"EvictdTooLate", []alertSeries{ // quiet: at a container's own limit
		{`evictd_kernel_oom_kills_total{pod="true"}`, once, once},
		{`evictd_kernel_oom_kills_total{pod="false"}`, never, never},
		{`evictd_node_condition{condition="MemoryPressure"}`, "0x34 1x2 0x5", "0x40"},
	}},
	{"EvictdKubeDisconnected", []alertSeries{{`evictd_kube_connected`, "0x40", "1x40"}}},
	{"EvictdFactsOld", []alertSeries{{`evictd_kube_connected`, "1x40", "1x40"}, {`evictd_kube_facts_age_seconds`, "60+60x40", "60x40"}}},
	{"EvictdFactsOld", []alertSeries{{`evictd_kube_connected`, "1x40", "1x40"}, {`evictd_kube_facts_age_seconds`, "_x40", "60x40"}}},
	{"EvictdFactsRefused", []alertSeries{{`evictd_kube_facts_refused_total`, "0x20 1x20", never}}},
	{"EvictdReportUnanswered", []alertSeries{{`evictd_kube_unanswered_order_age_seconds`, "0x30 0+60x10", "0x40"}}},
	{"EvictdNodeNotWritten", []alertSeries{{`evictd_kube_node_unwritten_seconds`, "0x30 60+60x10", "0x30 60+60x4 0x10"}}},
	{"EvictdReportForbidden", []alertSeries{
		{`evictd_kube_answers_total{answer="forbidden"}`, once, never},
		{`evictd_kube_answers_total{answer="reported"}`, once, once},
	}},
	{"EvictdReportGivenUp", []alertSeries{{`evictd_kube_orders_timed_out_total`, once, never}}},
	{"EvictdReportGivenUp", []alertSeries{{`evictd_kube_orders_rejected_total`, once, never}}},
	{"EvictdWatchdogNotFed", []alertSeries{{`evictd_selffence_fed_because{reason="nothing"}`, "0x38 1x2", "0x40"}}},
	{"EvictdWatchdogFedByPeers", []alertSeries{{`evictd_selffence_fed_because{reason="peers"}`, "0x38 1x2", "0x40"}}},
	{"EvictdWatchdogNotArmed", []alertSeries{{`evictd_selffence_armed`, "0x40", "1x33 0x7"}}},
	{"EvictdPeersListOld", []alertSeries{
		{`evictd_selffence_peers_list_age_seconds`, "1900+60x40", "0+60x40"},
		{`evictd_selffence_peers`, "1x40", "0x40"},
	}},
	{"EvictdFenceFailed", []alertSeries{{`evictd_fences_failed_total`, once, never}}},
	{"EvictdFenceStuck", []alertSeries{{`evictd_fences_unlifted`, "1x40", "0x40"}}},
	{"EvictdPodRevived", []alertSeries{{`evictd_kube_revived_pods_total`, once, never}}},
	{"EvictdNodeFenceGaveUp", []alertSeries{{`evictd_fence_conditions{condition="GaveUp"}`, "0x30 1x10", "1x30 0x10"}}},
	{"EvictdNodeFenceNeedsPerson", []alertSeries{{`evictd_fence_conditions{condition="ReleaseStuck"}`, "0x30 1x10", "0x40"}}},
	{"EvictdNodeFenceHeld", []alertSeries{{`evictd_fence_held{reason="TooManyUnhealthy"}`, "0x30 1x10", "0x37 1x3"}}},
	{"EvictdAffinityStorm", []alertSeries{{`evictd_affinity_held{reason="Storm"}`, "0x30 3x10", "0x37 3x3"}}},
	{"EvictdAffinityRefused", []alertSeries{{`evictd_affinity_held{reason="Refused"}`, "0x5 1x35", "0x20 1x20"}}},
	{"EvictdAffinityLoop", []alertSeries{{`evictd_affinity_held{reason="Loop"}`, "0x30 1x10", "0x37 1x3"}}},
	{"EvictdAffinityServerFails", []alertSeries{{`evictd_affinity_extender_requests_total{result="aborted"}`, "0+1x40", never}}},
	{"EvictdAffinityServerFails", []alertSeries{{`evictd_affinity_admissions_total{result="panic"}`, "0+1x40", never}}},
	{"EvictdAffinityServerFails", []alertSeries{ // quiet: pods that match no node
		{`evictd_affinity_extender_requests_total{result="panic"}`, "0+1x40", never},
		{`evictd_affinity_extender_requests_total{result="no-node"}`, "0+1x40", "0+1x40"},
	}},
	{"EvictdAffinityServerOverloaded", []alertSeries{{`evictd_affinity_extender_requests_total{result="busy"}`, once, never}}},
	{"EvictdAffinityServerOverloaded", []alertSeries{{`evictd_webhook_refused_total{reason="connections"}`, once, never}}},
	{"EvictdExtenderWholeNodes", []alertSeries{{`evictd_affinity_extender_whole_nodes_total`, "0x20 1x20", never}}},
	{"EvictdWebhookCertificateProblem", []alertSeries{{`evictd_webhook_certificate_problem`, "0x20 1x20", "0x30 1x10"}}},
	{"EvictdExtenderRefusesSchedulers", []alertSeries{{`evictd_webhook_client_ca_problem`, "0x20 1x20", "0x30 1x10"}}},
	{"EvictdExtenderRefusesSchedulers", []alertSeries{{`evictd_webhook_refused_total{reason="unauthenticated"}`, "0+1x40", "0x40"}}},
	{"EvictdWebhookCertificateExpires", []alertSeries{{`evictd_webhook_certificate_expiry_timestamp_seconds`, "604800x40", "700000x40"}}},
	{"EvictdWebhookCertificateExpires", []alertSeries{{`evictd_webhook_certificate_expiry_timestamp_seconds`, "0x40", "700000x40"}}},
	{"EvictdAffinityInvalid", []alertSeries{
		{`evictd_affinity_invalid_annotations`, "0x30 1x10", "0x37 1x3"}, {`evictd_affinity_config_problems`, "0x40", "0x40"},
	}},
	{"EvictdAffinityInvalid", []alertSeries{
		{`evictd_affinity_invalid_annotations`, "0x40", "0x40"}, {`evictd_affinity_config_problems`, "0x30 1x10", "0x37 1x3"},
	}},
	{"EvictdFenceDeviceUnreachable", []alertSeries{{`evictd_fence_devices{state="unreachable"}`, "0x10 1x30", "1x10 0x30"}}},
	{"EvictdFencingConfigInvalid", []alertSeries{{`evictd_fence_config_problems`, "0x30 2x10", "0x40"}}},
}

// alertRule is a rule of a rule file.
type alertRule struct {
	Alert, Expr         string
	Labels, Annotations map[string]string
}

func alertRules(t *testing.T) (list []alertRule) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(alertsDir, alertsFile))
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Groups []struct{ Rules []alertRule } }
	if err := yaml.Unmarshal(content, &file); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		list = append(list, g.Rules...)
	}
	return list
}

// TestAlertsFire: each alert fires, for the instance that it is meant for and no other. The
// series that the test gives to promtool are those of alertCases.
func TestAlertsFire(t *testing.T) {
	t.Parallel()
	tool := filepath.Join(findPrograms(t, promtool), promtool)
	path, err := filepath.Abs(filepath.Join(alertsDir, alertsFile))
	if err != nil {
		t.Fatal(err)
	}
	type sample struct {
		Labels string `json:"labels"`
		Value  int    `json:"value"`
	}
	type query struct {
		Expr    string   `json:"expr"`
		Time    string   `json:"eval_time"`
		Samples []sample `json:"exp_samples"`
	}
	type series struct {
		Series string `json:"series"`
		Values string `json:"values"`
	}
	type test struct {
		Interval string   `json:"interval"`
		Name     string   `json:"name"`
		Series   []series `json:"input_series"`
		Queries  []query  `json:"promql_expr_test"`
	}
	var tests []test
	rules := alertRules(t)
	for _, c := range alertCases {
		i := slices.IndexFunc(rules, func(r alertRule) bool { return r.Alert == c.alert })
		if i < 0 {
			t.Errorf("there is no alert %s", c.alert)
			continue
		}
		one := test{Interval: "1m", Name: c.alert}
		for _, s := range c.list {
			one.Series = append(one.Series, series{withLabel(s.series, `instance="fires"`), s.fires}, series{withLabel(s.series, `instance="quiet"`), s.quiet})
		}
		// Labels in the annotations must be those of the alert.
		labels := []string{`instance="fires"`}
		by := "instance"
		for name := range annotationLabels(&rules[i]) {
			value := regexp.MustCompile(`[{,](` + name + `="[^"]*")`).FindStringSubmatch(c.list[0].series)
			if name == "instance" {
				continue
			} else if value == nil {
				t.Errorf("%s: the annotations have the label %s, which %s does not have", c.alert, name, c.list[0].series)
				continue
			}
			labels, by = append(labels, value[1]), by+","+name
		}
		one.Queries = []query{{
			`count by (` + by + `) (ALERTS{alertname="` + c.alert + `",alertstate="firing"})`, "40m",
			[]sample{{"{" + strings.Join(labels, ",") + "}", 1}},
		}}
		tests = append(tests, one)
	}
	for _, r := range rules {
		if !slices.ContainsFunc(alertCases, func(c alertCase) bool { return c.alert == r.Alert }) {
			t.Errorf("no test of the alert %s", r.Alert)
		}
		if s := r.Labels["severity"]; !slices.Contains([]string{"critical", "warning", "info"}, s) || r.Annotations["summary"] == "" {
			t.Errorf("%s: severity %q, annotations %v", r.Alert, s, r.Annotations)
		}
	}
	content, err := json.Marshal(map[string]any{"rule_files": []string{path}, "evaluation_interval": "1m", "tests": tests}) // JSON is YAML
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "test.yaml")
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"check", "rules", "--lint-fatal", path}, {"test", "rules", file}} {
		if out, err := exec.Command(tool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// withLabel adds a label to a series.
func withLabel(series, label string) string {
	if name, labels, ok := strings.Cut(series, "{"); ok {
		return name + "{" + label + "," + labels
	}
	return series + "{" + label + "}"
}

// annotationLabels returns the labels that the annotations of a rule name.
func annotationLabels(r *alertRule) map[string]bool {
	names := map[string]bool{}
	for text := range maps.Values(r.Annotations) {
		for _, m := range regexp.MustCompile(`{{ *\$labels\.(\w+) *}}`).FindAllStringSubmatch(text, -1) {
			names[m[1]] = true
		}
	}
	return names
}

// TestAlertsMetrics: evictd, with an evictd-kube, and evictd-controller export each series of alertCases, and each
// metric that a rule names. Names are found by their prefix, without a parser of PromQL.
func TestAlertsMetrics(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.build()
	r.apply("namespace.yaml", "rbac.yaml")
	r.must("POST", "/api/v1/nodes", `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n1"}}`)
	b := &pair{evictd: &evictd{rig: r, web: freeAddress(t)}, token: r.write("token", r.token(time.Hour))}
	b.start()
	b.startKube()
	b.until("facts", func(k *control.Kubernetes) bool { return k.Watching && k.AgeSeconds != nil })
	controller := r.startController()
	series, metrics := map[string]bool{}, map[string]bool{}
	scrape := func(address string) {
		resp, err := http.Get("http://" + address + "/metrics")
		if err != nil {
			return // it does not listen yet
		}
		defer resp.Body.Close()
		content, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(content)) {
			if i := strings.LastIndex(line, " "); i > 0 && line[0] != '#' {
				series[line[:i]] = true
				name, _, _ := strings.Cut(line[:i], "{")
				metrics[name] = true
			}
		}
	}
	used := map[string]bool{}
	for _, c := range alertCases {
		for _, s := range c.list {
			if !strings.HasPrefix(s.series, "up{") { // Prometheus' own
				used[s.series] = true
			}
		}
	}
	r.until("the filesystems and NodeFences", func() bool { // which are read after the start
		scrape(b.web)
		scrape(controller)
		return metrics["evictd_filesystem_readable"] && metrics["evictd_fence_conditions"]
	})
	// A node exports these only with a watchdog that it arms.
	golden, err := os.ReadFile("../../agent/metrics/testdata/use.prom")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(golden)) {
		if i := strings.LastIndex(line, " "); strings.HasPrefix(line, "evictd_selffence_") && i > 0 {
			series[line[:i]] = true
			name, _, _ := strings.Cut(line[:i], "{")
			metrics[name] = true
		}
	}
	for s := range used {
		if !series[s] {
			t.Errorf("nothing exports %s", s)
		}
	}
	for _, rule := range alertRules(t) {
		for _, name := range regexp.MustCompile(`\bevictd_\w+`).FindAllString(rule.Expr, -1) {
			if !metrics[name] {
				t.Errorf("%s: nothing exports %s", rule.Alert, name)
			}
		}
	}
}

// startController installs NodeFence, and runs evictd-controller with the administrator's rights. It returns the address
// of its metrics.
func (r *rig) startController() string {
	r.t.Helper()
	for _, doc := range render(r.t, "controller") {
		if strings.Contains(doc, "kind: CustomResourceDefinition") {
			r.applyObject(doc)
		}
	}
	buildInto(r.t, r.dir, "./cmd/evictd-controller")
	address := freeAddress(r.t)
	r.start("evictd-controller", filepath.Join(r.dir, "evictd-controller"), nil,
		"--kubeconfig", r.adminConfig("controller", adminToken), "--metrics-address", address,
		"--leader-elect=false", "--webhook-address", freeAddress(r.t))
	return address
}

// TestPrometheusRule: the command of the README makes a PrometheusRule with all rules.
func TestPrometheusRule(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join(alertsDir, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	var script bytes.Buffer
	for line := range strings.Lines(string(readme)) {
		if code, ok := strings.CutPrefix(line, "    "); ok {
			script.WriteString(code)
		} else if strings.Contains(script.String(), "PrometheusRule") {
			break
		} else {
			script.Reset()
		}
	}
	const apply = "kubectl apply -f -"
	if !strings.Contains(script.String(), apply) {
		t.Fatalf("the README has no command with PrometheusRule and %s:\n%s", apply, &script)
	}
	cmd := exec.Command("sh", "-euc", strings.ReplaceAll(script.String(), apply, "cat"))
	cmd.Dir = alertsDir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	type groups struct {
		Groups []struct {
			Name  string
			Rules []map[string]any
		}
	}
	var rule struct {
		Kind string
		Spec groups
	}
	var file groups
	if err := yaml.Unmarshal(out, &rule); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(alertsDir, alertsFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(content, &file); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(file, rule.Spec); rule.Kind != "PrometheusRule" || len(file.Groups) == 0 || diff != "" {
		t.Errorf("kind %s, spec (-want +got):\n%s", rule.Kind, diff)
	}
}
