package cluster

import (
	"bytes"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/kube"
)

const chartDir = "../../deploy/kubernetes/helm/evictd"

// chartModes are the values by which the chart has the objects of an overlay.
var chartModes = map[string]string{
	"dry-run": "mode: dry-run",
	"enforce": "mode: enforce",
	"mixed": `mode: enforce
nodeSelector: {evictd.io/enforce: "true"}
pools:
  - name: dry-run
    mode: dry-run
    affinity:
      nodeAffinity:
        requiredDuringSchedulingIgnoredDuringExecution:
          nodeSelectorTerms:
            - matchExpressions: [{key: evictd.io/enforce, operator: NotIn, values: ["true"]}]
`,
}

// runHelm runs Helm, and returns its standard output. The error has the standard error without
// the lines about the chart's links.
func runHelm(t *testing.T, args ...string) (string, error) {
	t.Helper()
	readManifests(t)
	cmd := exec.Command(filepath.Join(findPrograms(t, helm), helm), args...)
	home := t.TempDir()
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		text := ""
		for line := range strings.Lines(stderr.String()) {
			if !strings.Contains(line, "found symbolic link in path") {
				text += line
			}
		}
		return stdout.String(), fmt.Errorf("helm %s: %w: %s", args[0], err, text)
	}
	return stdout.String(), nil
}

// renderChart returns the objects of the chart in a namespace.
func renderChart(t *testing.T, namespace, values string) ([]string, error) {
	t.Helper()
	return renderChartFor(t, apiVersion, namespace, values)
}

// renderChartFor does so for a version of Kubernetes.
func renderChartFor(t *testing.T, kubernetes, namespace, values string) ([]string, error) {
	t.Helper()
	args := []string{"template", "evictd", chartDir, "--namespace", namespace, "--kube-version", kubernetes}
	dir := t.TempDir()
	for i, content := range []string{"image: {tag: v1}", values} { // the second overrides the first
		file := filepath.Join(dir, fmt.Sprintf("values%d.yaml", i))
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--values", file)
	}
	out, err := runHelm(t, args...)
	if err != nil {
		return nil, err
	}
	docs := documents([]byte(out))
	return slices.DeleteFunc(docs, func(doc string) bool { return !strings.Contains(doc, "\nkind: ") }), nil
}

// object is a manifest without what the chart and the overlays may differ in.
type object map[string]any

// parseObject parses a manifest. It removes the labels of Helm and those that kustomize adds, the
// checksum of the configuration, and the tag of the image, and parses the configuration, of which
// the overlays have comments.
func parseObject(t *testing.T, doc string) (key string, o object) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
		t.Fatalf("%v:\n%s", err, doc)
	}
	metadata := o["metadata"].(object)
	kind := o["kind"].(string)
	key = kind + " " + metadata["name"].(string)
	labels, _ := metadata["labels"].(object)
	switch kind {
	case "DaemonSet":
		metadata["labels"] = object{"app.kubernetes.io/name": labels["app.kubernetes.io/name"]}
		template := o["spec"].(object)["template"].(object)
		delete(template["metadata"].(object), "annotations")
		for _, c := range template["spec"].(object)["containers"].([]any) {
			c.(object)["image"], _, _ = strings.Cut(c.(object)["image"].(string), ":")
			// kustomize moves the mounts that an overlay changes to the front.
			mounts := c.(object)["volumeMounts"].([]any)
			slices.SortFunc(mounts, func(a, b any) int {
				return strings.Compare(a.(object)["name"].(string), b.(object)["name"].(string))
			})
			for _, m := range mounts {
				if m.(object)["readOnly"] == false { // the default
					delete(m.(object), "readOnly")
				}
			}
		}
	case "ConfigMap":
		delete(metadata, "labels")
		var fields object
		if err := yaml.Unmarshal([]byte(o["data"].(object)["config.yaml"].(string)), &fields); err != nil {
			t.Fatal(err)
		}
		o["data"] = fields
	default:
		delete(metadata, "labels")
	}
	return key, o
}

func parseObjects(t *testing.T, docs []string) map[string]object {
	t.Helper()
	objects := map[string]object{}
	for _, doc := range docs {
		key, o := parseObject(t, doc)
		if objects[key] != nil {
			t.Errorf("%s is rendered twice", key)
		}
		objects[key] = o
	}
	return objects
}

// TestChartHasTheOverlays: the chart has the objects of each overlay, but no namespace, and in dry
// run also the policies. evictd accepts each configuration.
func TestChartHasTheOverlays(t *testing.T) {
	t.Parallel()
	for overlay, values := range chartModes {
		docs, err := renderChart(t, "evictd", values)
		if err != nil {
			t.Fatal(err)
		}
		got, want := parseObjects(t, docs), parseObjects(t, renderOverlay(t, overlay))
		delete(want, "Namespace evictd")
		if overlay == "dry-run" {
			for key, o := range parseObjects(t, renderOverlay(t, "enforce")) {
				if strings.HasPrefix(key, "ValidatingAdmissionPolicy") {
					want[key] = o
				}
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: objects of the overlay and of the chart (-want +got):\n%s", overlay, diff)
		}
		for _, doc := range docs {
			if strings.Contains(doc, "\nkind: ConfigMap\n") {
				loadConfig(t, doc)
			}
		}
	}
}

// loadConfig loads the configuration in a ConfigMap as evictd does.
func loadConfig(t *testing.T, doc string) *config.Config {
	t.Helper()
	var m struct{ Data map[string]string }
	if err := yaml.Unmarshal([]byte(doc), &m); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(m.Data["config.yaml"]), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(config.Options{Path: path, PathGiven: true})
	if err != nil {
		t.Fatalf("%v\n%s", err, m.Data["config.yaml"])
	}
	return c
}

// chartOptions differ from the defaults in every value.
const chartOptions = `
mode: enforce
image: {repository: registry.example.com:5000/a/evictd, digest: "sha256:` + "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef" + `", pullPolicy: Always}
imagePullSecrets: [{name: pull}]
config: {evictionHard: {memory.available: 1Gi, nodefs.available: 5%}, mergeDefaultEvictionSettings: null, kube: {fenceTimeout: 10m}, evictionMaxPodGracePeriod: 1000000}
kubelet: {root: /data/kubelet}
runtime: {endpoint: "unix:///run/k3s/containerd/containerd.sock", root: /data/containerd}
seLinuxType: spc_t
nodeSelector: {pool: a}
tolerations: [{key: a, operator: Exists, effect: NoSchedule}]
pools:
  - {name: b, mode: dry-run, nodeSelector: {pool: b}, tolerations: [], config: {evictionHard: {memory.available: 2Gi}}}
evictd: {args: [--log.level=debug], resources: {requests: {cpu: 1}, limits: {cpu: 2}}}
evictdKube: {userID: 1000000, args: [--log.format=json], resources: {limits: {memory: 64Mi}}}
resourceQuota: {enabled: false}
maxUnavailable: 3
`

// TestChartOptions: values reach all places that they belong to.
func TestChartOptions(t *testing.T) {
	t.Parallel()
	docs, err := renderChart(t, "other", chartOptions)
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Join(docs, "\n---\n")
	for text, times := range map[string]int{
		"namespace: evictd\n":           0,
		"kind: ResourceQuota":           0,
		"/var/lib/containerd":           0,
		"/var/lib/kubelet\n":            0,
		"namespace: other\n":            7, // the account, two ConfigMaps, two DaemonSets, two subjects
		"supplementalGroups: [1000000]": 2,
		"runAsUser: 1000000\n":          2,
		"runAsGroup: 1000000\n":         2,
		"      uid: 1000000\n":          2,
		"image: \"registry.example.com:5000/a/evictd@sha256:0123456789abcdef": 4,
		"imagePullPolicy: Always":               4,
		"- name: pull":                          2,
		"mountPath: /host/data/kubelet\n":       2,
		"path: /data/containerd\n":              2,
		"mountPath: /host/run/k3s/containerd\n": 2,
		"nodefsPath: /data/kubelet\n":           2,
		"runtimeEndpoint: unix:///host/run/k3s/containerd/containerd.sock\n": 2,
		"path: /readyz\n":              2,
		"seLinuxOptions":               2,
		"- --log.level=debug\n":        2,
		"- --log.format=json\n":        2,
		"maxUnavailable: 3\n":          2,
		"- effect: NoSchedule\n":       9, // that of the values, and the four taints of evictd twice
		"mergeDefaultEvictionSettings": 0,
	} {
		if got := strings.Count(all, text); got != times {
			t.Errorf("%q is %d times in the manifests; want %d", text, got, times)
		}
	}
	var dryRun []bool
	for _, doc := range docs {
		if strings.Contains(doc, "\nkind: ConfigMap\n") {
			c := loadConfig(t, doc)
			dryRun = append(dryRun, c.DryRun)
			if c.Kube.UID != 1000000 || c.EvictionMaxPodGracePeriod != 1000000 {
				t.Errorf("kube.uid is %d, evictionMaxPodGracePeriod %d; want 1000000", c.Kube.UID, c.EvictionMaxPodGracePeriod)
			}
		}
	}
	if !slices.Equal(dryRun, []bool{false, true}) {
		t.Errorf("dryRun of the configurations is %t; want that of the modes", dryRun)
	}
}

// TestChartRemovesNulls: a field that is null in the values is not in the configuration, and the chart sets its own value as if
// it were not in the values.
func TestChartRemovesNulls(t *testing.T) {
	t.Parallel()
	docs, err := renderChart(t, "evictd", `mode: enforce
config: {kubelet: null, dryRun: null, evictionHard: {nodefs.available: 5%, imagefs.available: null}}
pools: [{name: a, mode: enforce, config: {kubelet: null, mergeDefaultEvictionSettings: null, evictionHard: {memory.available: null}, kube: {fenceTimeout: null}}}]
`)
	if err != nil {
		t.Fatal(err)
	}
	common := func(more object) object {
		fields := object{"apiVersion": "evictd.io/v1alpha1", "kind": "AgentConfiguration", "dryRun": false, "kubelet": "auto", "kube": object{"uid": kubeUID}}
		maps.Copy(fields, more)
		return fields
	}
	want := map[string]object{
		"ConfigMap evictd": common(object{
			"evictionHard": object{"memory.available": "500Mi", "nodefs.available": "5%"}, "mergeDefaultEvictionSettings": true,
		}),
		"ConfigMap evictd-a": common(object{"evictionHard": object{"nodefs.available": "5%"}}),
	}
	got := map[string]object{}
	for _, doc := range docs {
		if key, o := parseObject(t, doc); o["kind"] == "ConfigMap" {
			loadConfig(t, doc)
			got[key] = o["data"].(object)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("configurations (-want +got):\n%s", diff)
	}
}

// TestChartToleratesOwnTaints: each DaemonSet tolerates the taints that evictd sets, whatever the
// values: a node that keeps such a taint gets an evictd that removes it. Values that tolerate all
// taints stay as they are.
func TestChartToleratesOwnTaints(t *testing.T) {
	t.Parallel()
	var own []string
	for _, c := range kube.NodeConditions {
		own = append(own, c.Taint)
	}
	slices.Sort(own)
	type toleration struct{ Key, Operator, Value, Effect string }
	for _, tt := range []struct {
		values string
		all    bool
	}{
		{"tolerations: []", false},
		{"tolerations: [{key: gpu, operator: Exists}]", false},
		{"tolerations: [{operator: Exists, effect: NoExecute}]", false},
		{"tolerations: [{operator: Exists, effect: NoSchedule}]", true},
		{"{}", true},
		{"pools: [{name: a, mode: enforce, tolerations: []}]", false},
	} {
		docs, err := renderChart(t, "evictd", tt.values)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, doc := range docs {
			var d struct {
				Kind string
				Spec struct {
					Template struct {
						Spec struct{ Tolerations []toleration }
					}
				}
			}
			if err := yaml.Unmarshal([]byte(doc), &d); err != nil {
				t.Fatal(err)
			}
			for _, tol := range d.Spec.Template.Spec.Tolerations {
				if strings.HasPrefix(tol.Key, "evictd.io/") && tol.Operator == "Exists" && tol.Effect == "NoSchedule" {
					got = append(got, tol.Key)
				}
			}
		}
		slices.Sort(got)
		want := own
		if tt.all {
			want = nil
		}
		if !slices.Equal(got, want) {
			t.Errorf("values %q: the DaemonSets tolerate %q; want %q", tt.values, got, want)
		}
	}
}

// TestChartProbe: the probe is at evictd's default address, so there is none with flags of the web server.
func TestChartProbe(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]int{
		"[]":                                       1,
		"[--log.level=debug]":                      1,
		"['--log.format=text --web.']":             1,
		"['--web.listen-address=:9908']":           0,
		"[--log.level=debug, -web.config.file=/a]": 0,
	} {
		docs, err := renderChart(t, "evictd", "evictd: {args: "+args+"}")
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(strings.Join(docs, ""), "readinessProbe:"); got != want {
			t.Errorf("args %s: %d readiness probes; want %d", args, got, want)
		}
	}
}

// TestChartQuota: the chart has a quota for its pods, but none in kube-system, where it would limit those of others.
func TestChartQuota(t *testing.T) {
	t.Parallel()
	for namespace, want := range map[string]bool{"evictd": true, "kube-system": false} {
		docs, err := renderChart(t, namespace, "{}")
		if err != nil {
			t.Fatal(err)
		}
		objects := parseObjects(t, docs)
		if got := objects["ResourceQuota system-node-critical"] != nil; got != want || objects["DaemonSet evictd"] == nil {
			t.Errorf("namespace %s: has a quota: %t; want %t", namespace, got, want)
		}
	}
}

// TestChartRefuses: the schema and the chart refuse mistakes, and name them.
func TestChartRefuses(t *testing.T) {
	t.Parallel()
	if out, err := runHelm(t, "lint", "--strict", chartDir, "--kube-version", apiVersion); err != nil || !strings.Contains(out, "0 chart(s) failed") {
		t.Errorf("helm lint: %v: %s", err, out)
	}
	for _, tt := range []struct{ values, want string }{
		{"mode: enforcing", "at '/mode': value must be one of 'dry-run', 'enforce'"},
		{"mode: true", "at '/mode'"},
		{"mod: enforce", "additional properties 'mod' not allowed"},
		{"image: {repository: ''}", "at '/image/repository'"},
		{"image: {registry: a}", "at '/image': additional properties 'registry' not allowed"},
		{"image: {tag: 1.10}", "at '/image/tag': got number, want string"},
		{"image: {tag: ''}", "image: set the tag or the digest of the image"},
		{"image: {digest: abc}", "at '/image/digest'"},
		{"kubelet: {root: var/lib/kubelet}", "at '/kubelet/root'"},
		{"runtime: {endpoint: /run/containerd/containerd.sock}", "at '/runtime/endpoint'"},
		{"runtime: {endpoint: 'unix:///containerd.sock'}", "at '/runtime/endpoint'"},
		{"runtime: {endpoint: 'unix:///run/cri-dockerd.sock'}", "at '/runtime/endpoint'"},
		{"runtime: {endpoint: 'unix:///var/run/cri-dockerd.sock'}", "at '/runtime/endpoint': 'not' failed"},
		{"runtime: {endpoint: 'unix:///run/../etc/x.sock'}", "at '/runtime/endpoint': 'not' failed"},
		{"runtime: {endpoint: 'unix:///run/a/./x.sock'}", "at '/runtime/endpoint': 'not' failed"},
		{"runtime: {endpoint: 'unix:///run/a/..'}", "at '/runtime/endpoint': 'not' failed"},
		{"runtime: {endpoint: 'unix:///run//a/x.sock'}", "at '/runtime/endpoint'"},
		{"runtime: {endpoint: 'unix:///run/a/x: y.sock'}", "at '/runtime/endpoint'"},
		{"runtime: {root: /data/..}", "at '/runtime/root': 'not' failed"},
		{"kubelet: {root: /data/./kubelet}", "at '/kubelet/root': 'not' failed"},
		{"kubelet: {root: '/data/a: b'}", "at '/kubelet/root'"},
		{"kubelet: {root: '/data/a #b'}", "at '/kubelet/root'"},
		{"kubelet: {root: \"/data\\n\"}", "at '/kubelet/root'"},
		{"kubelet: {root: /}", "at '/kubelet/root'"},
		{"nodeSelector: null", "missing property 'nodeSelector'"},
		{"affinity: null", "missing property 'affinity'"},
		{"pools: [{name: a, mode: dry-run, nodeSelector: null}]", "at '/pools/0/nodeSelector': got null, want object"},
		{"nodeSelector: {a: true}", "at '/nodeSelector/a': got boolean, want string"},
		{"tolerations: {operator: Exists}", "at '/tolerations': got object, want array"},
		{"affinity: {nodeAfinity: {}}", "'nodeAfinity' not allowed"},
		{"pools: [{name: a}]", "at '/pools/0': missing property 'mode'"},
		{"pools: [{name: A, mode: dry-run}]", "at '/pools/0/name'"},
		{"pools: [{name: a, mode: dry-run}, {name: a, mode: dry-run}]", "the name a is given twice"},
		{"evictd: {resources: {limits: {memory: 1Gi}}}", "at '/evictd/resources/limits': additional properties 'memory' not allowed"},
		{"evictd: {args: [debug]}", "at '/evictd/args/0'"},
		{"evictdKube: {userID: 0}", "at '/evictdKube/userID': minimum"},
		{"evictdKube: {userID: '61119'}", "at '/evictdKube/userID': got string, want integer"},
		{"evictdKube: {userID: 61184}", "at '/evictdKube/userID': 'not' failed"},
		{"evictdKube: {userID: 65519}", "at '/evictdKube/userID': 'not' failed"},
		{"evictdKube: {userID: 65532}", "at '/evictdKube/userID': 'not' failed"},
		{"evictdKube: {userID: 65535}", "at '/evictdKube/userID': 'not' failed"},
		{"evictdKube: null", "missing property 'evictdKube'"},
		{"maxUnavailable: ten", "at '/maxUnavailable'"},
		{"maxUnavailable: 0", "at '/maxUnavailable': minimum"},
		{"maxUnavailable: 0%", "at '/maxUnavailable'"},
		{"maxUnavailable: 101%", "at '/maxUnavailable'"},
		{"config: {dryRun: false}", "config.dryRun: the chart sets this field: set mode"},
		{"config: {kube: {uid: 1}}", "set evictdKube.userID"},
		{"config: text", "at '/config'"},
		{"pools: [{name: a, mode: dry-run, config: {dryRun: false}}]", "config.dryRun: the chart sets this field"},
	} {
		if _, err := renderChart(t, "evictd", tt.values); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("values %q: %v; want an error with %q", tt.values, err, tt.want)
		}
	}
}

// TestChartInstalls: Helm installs the chart in dry run, changes the mode, and removes all of it
// again. The API server knows each field of each mode.
func TestChartInstalls(t *testing.T) {
	t.Parallel()
	findPrograms(t, helm)
	r := newRig(t)
	r.must("POST", "/api/v1/namespaces", `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"evictd","labels":{"pod-security.kubernetes.io/enforce":"privileged"}}}`)
	for _, values := range chartModes {
		docs, err := renderChart(t, "evictd", values)
		if err != nil {
			t.Fatal(err)
		}
		for _, doc := range docs {
			r.patchObject(doc, "dryRun=All")
		}
	}
	config := r.adminConfig("admin", adminToken)
	run := func(args ...string) {
		t.Helper()
		if out, err := runHelm(t, append(args, "--namespace", "evictd", "--kubeconfig", config)...); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	const (
		role      = "/apis/rbac.authorization.k8s.io/v1/clusterroles/evictd-kube"
		flow      = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas/evictd-kube"
		daemonSet = "/apis/apps/v1/namespaces/evictd/daemonsets/evictd"
	)
	expect := func(step string, writes bool, want map[string]int) {
		t.Helper()
		for path, want := range want {
			if code, _ := r.as(adminToken, http.MethodGet, path, ""); code != want {
				t.Errorf("%s: GET %s = %d; want %d", step, path, code, want)
			}
		}
		if _, answer := r.as(adminToken, http.MethodGet, role, ""); strings.Contains(string(answer), `"pods/status"`) != writes {
			t.Errorf("%s: the rights are %s; want writes of pods/status: %t", step, answer, writes)
		}
	}
	run("install", "evictd", chartDir, "--set", "image.tag=v1", "--dry-run=server")
	run("install", "evictd", chartDir, "--set", "image.tag=v1")
	expect("dry run", false, map[string]int{role: 200, policyPath(podPolicy): 200, policyPath(nodePolicy): 200, daemonSet: 200, flow: 404})
	run("upgrade", "evictd", chartDir, "--reuse-values", "--set", "mode=enforce")
	expect("enforce", true, map[string]int{role: 200, policyPath(podPolicy): 200, policyPath(nodePolicy): 200, daemonSet: 200, flow: 200})
	run("upgrade", "evictd", chartDir, "--reuse-values", "--set", "mode=dry-run")
	expect("dry run again", false, map[string]int{role: 200, policyPath(podPolicy): 200, policyPath(nodePolicy): 200, daemonSet: 200, flow: 404})
	run("uninstall", "evictd")
	expect("removed", false, map[string]int{role: 404, policyPath(podPolicy): 404, policyPath(nodePolicy): 404, daemonSet: 404, flow: 404})
}

// TestChartForOldKubernetes: evictd enforces on nodes of a Kubernetes that keeps its reports, and is in dry run on older ones.
func TestChartForOldKubernetes(t *testing.T) {
	t.Parallel()
	findPrograms(t, helm)
	const pool = "pools: [{name: a, mode: enforce}]"
	for _, tt := range []struct{ kubernetes, values, want string }{
		{"v1.29.14", "{}", "incompatible with Kubernetes v1.29.14"},
		{"v1.30.0-gke.1", "{}", ""},
		{"v1.32.9", "{}", ""},
		{"v1.32.9", "mode: enforce", "mode enforce needs Kubernetes 1.33 or newer, and this is v1.32.9"},
		{"v1.32.9", pool, "mode enforce needs Kubernetes 1.33"},
		{"v1.33.0-gke.1", pool, ""},
		{"v1.33.0", "mode: enforce", ""},
	} {
		docs, err := renderChartFor(t, tt.kubernetes, "evictd", tt.values)
		if tt.want == "" && (err != nil || len(docs) == 0) || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("Kubernetes %s, %s: %d objects, %v; want %q", tt.kubernetes, tt.values, len(docs), err, tt.want)
		}
	}
}
