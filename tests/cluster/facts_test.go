package cluster

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/tests/controlplane"
)

// kubeUID is the user of evictd-kube in deploy/kubernetes.
const kubeUID = 61119

// TestFacts: the facts of a real API server reach evictd with the rights of
// deploy/kubernetes, over restarts of either side, an API server that is stopped or
// restarted with a shorter history, and an expired token. evictd keeps what it has.
func TestFacts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.build()
	r.apply("namespace.yaml", "rbac.yaml")
	r.must("POST", "/api/v1/nodes", `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n1"}}`)
	r.must("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", `{"apiVersion":"scheduling.k8s.io/v1","kind":"PriorityClass","metadata":{"name":"high"},"value":1000}`)
	r.pod("a", "n1")
	r.pod("elsewhere", "n2")

	b := &pair{evictd: &evictd{rig: r}, token: r.write("token", r.token(time.Hour))}
	b.start()
	b.startKube()
	b.until("facts", func(k *control.Kubernetes) bool { return k.Watching && k.Pods == 1 && k.AgeSeconds != nil })
	r.pod("b", "n1")
	b.until("a new pod", func(k *control.Kubernetes) bool { return k.Pods == 2 })

	b.restarts()
	b.stoppedServer()
	b.shorterHistory()
	b.expiredToken()
}

// pair is an evictd and its evictd-kube.
type pair struct {
	*evictd
	token string // the file
	kube  *exec.Cmd
}

func (b *pair) startKube() {
	b.t.Helper()
	b.kube = b.rig.start("evictd-kube", filepath.Join(b.dir, "evictd-kube"), &syscall.Credential{Uid: kubeUID, Gid: kubeUID},
		"--kubeconfig", b.kubeconfig(b.token), "--node-name", "n1", "--socket", b.kubeSocket())
}

// restarts ends and starts either side, while pods come and go.
func (b *pair) restarts() {
	b.t.Helper()
	b.stop()
	saved := b.saved()
	want := fact{Name: "a", Priority: 1000, PriorityClassName: "high", QoS: "Burstable", Containers: []container{{}}}
	want.Containers[0].Resources.Requests.Memory, want.Containers[0].Resources.Requests.EphemeralStorage = "64Mi", "1Gi"
	want.Containers[0].Resources.Limits.EphemeralStorage = "1Gi"
	if diff := cmp.Diff(want, saved["a"]); len(saved) != 2 || diff != "" {
		b.t.Errorf("%d saved facts, that of a (-want +got):\n%s", len(saved), diff)
	}
	b.delete("b")
	b.pod("c", "n1")
	b.start()
	// Those of b stay while the runtime might list it.
	b.until("facts after a restart of evictd", func(k *control.Kubernetes) bool { return k.Watching && k.Pods == 3 })
	kill(b.t, b.kube)
	b.until("end of evictd-kube", func(k *control.Kubernetes) bool {
		return !k.Connected && k.Pods >= 2 && strings.Contains(k.Error, "disconnected")
	})
	b.pod("d", "n1")
	b.startKube()
	b.until("facts after a restart of evictd-kube", func(k *control.Kubernetes) bool { return k.Watching && k.Pods >= 3 })
}

// stoppedServer has an API server that accepts connections and never answers: the facts
// get older.
func (b *pair) stoppedServer() {
	b.t.Helper()
	b.pauseAPI()
	stopped := time.Now()
	b.stop()
	b.start()
	b.until("facts of the disk, sent again by evictd-kube", func(k *control.Kubernetes) bool { return k.Connected && k.Pods >= 3 })
	kill(b.t, b.kube)
	b.startKube()
	b.until("error of a stopped API server", func(k *control.Kubernetes) bool {
		return k.Connected && !k.Watching && k.Pods >= 3 && strings.Contains(k.Error, "https://"+b.address) && strings.Contains(k.Error, "does not answer")
	})
	if age := b.kubernetes().AgeSeconds; age == nil || *age < time.Since(stopped).Seconds()-5 {
		b.t.Errorf("age after %v = %v; want no less", time.Since(stopped), age)
	}
	b.resumeAPI()
	b.until("watching after the stop", func(k *control.Kubernetes) bool { return k.Watching && *k.AgeSeconds < 20 })
}

// shorterHistory has an API server that no longer has the resource version from which
// evictd-kube would watch: its history begins with its start.
func (b *pair) shorterHistory() {
	b.t.Helper()
	signal(b.t, b.kube, syscall.SIGSTOP)
	old := decode[struct {
		Metadata struct{ ResourceVersion string }
	}](b.t, b.must("GET", "/api/v1/pods", "")).Metadata.ResourceVersion
	b.delete("d")
	b.pod("e", "n1")
	b.compact()
	b.stopAPI()
	b.startAPI()
	answer, err := b.request(http.MethodGet, "/api/v1/pods?watch=true&timeoutSeconds=1&resourceVersion="+old, "", "")
	if !strings.Contains(string(answer)+fmt.Sprint(err), "410") {
		b.t.Errorf("watch from version %s = %s, %v; want 410, else this tests nothing", old, answer, err)
	}
	signal(b.t, b.kube, syscall.SIGCONT)
	b.until("facts after 410", func(k *control.Kubernetes) bool { return k.Watching && b.has("e") })
}

// expiredToken has a token that expires while the pods are watched, which only the next
// request meets, and then a new one in the same file.
func (b *pair) expiredToken() {
	b.t.Helper()
	kill(b.t, b.kube)
	const lifetime = 20 * time.Second
	expires := time.Now().Add(lifetime + time.Second)
	b.write("token", b.rig.token(lifetime))
	b.startKube()
	b.until("watching with a token that expires", func(k *control.Kubernetes) bool { return k.Connected && k.Watching })
	time.Sleep(time.Until(expires))
	b.stopAPI()
	b.startAPI()
	b.until("error of an expired token", func(k *control.Kubernetes) bool {
		return !k.Watching && k.Pods >= 2 && strings.Contains(k.Error, "the token in "+b.token+" is expired or not valid")
	})
	b.write("token", b.rig.token(time.Hour))
	b.until("watching with a new token", func(k *control.Kubernetes) bool { return k.Watching })
}

// signal sends a signal to a program.
func signal(t *testing.T, cmd *exec.Cmd, s syscall.Signal) {
	t.Helper()
	if err := cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// evictd is an evictd in dry run, without a runtime. Its only threshold is far away, because facts are not
// saved while one is met.
type evictd struct {
	*rig
	cmd *exec.Cmd
	web string // the address of its metrics; none if empty
}

func (e *evictd) kubeSocket() string { return filepath.Join(e.dir, "run", "kube.sock") }

func (e *evictd) start() {
	e.t.Helper()
	config := e.write("config.yaml", fmt.Sprintf("apiVersion: evictd.io/v1alpha1\nkind: AgentConfiguration\nruntimeEndpoint: none\ndryRun: true\nevictionHard: {memory.available: 1Mi}\nkube: {uid: %d}\n", kubeUID))
	e.cmd = e.rig.start("evictd", filepath.Join(e.dir, "evictd"), nil, "--config", config, "--state-dir", filepath.Join(e.dir, "state"),
		"--control-socket", e.control(), "--kube-socket", e.kubeSocket(), "--fence-file", filepath.Join(e.dir, "run", "fences"), "--web.listen-address", e.web)
	e.until("evictd", func(*control.Kubernetes) bool { return true })
}

func (e *evictd) control() string { return filepath.Join(e.dir, "run", "s") }

func (e *evictd) stop() {
	e.t.Helper()
	signal(e.t, e.cmd, syscall.SIGTERM)
	if err := e.cmd.Wait(); err != nil {
		e.t.Fatal(err)
	}
}

// kubernetes returns what evictd's status says about evictd-kube; nil if it does not
// answer.
func (e *evictd) kubernetes() *control.Kubernetes {
	s, err := control.NewClient(e.control()).Status(e.t.Context())
	if err != nil {
		return nil
	}
	return s.Kubernetes
}

func (e *evictd) until(what string, ok func(*control.Kubernetes) bool) {
	e.t.Helper()
	var k *control.Kubernetes
	began := time.Now()
	defer func() {
		if e.t.Failed() {
			e.t.Logf("%s: status %+v", what, k)
		} else {
			e.t.Logf("%s: after %v", what, time.Since(began).Round(10*time.Millisecond))
		}
	}()
	e.rig.until(what, func() bool {
		k = e.kubernetes()
		return k != nil && ok(k)
	})
}

// fact is a part of saved facts.
type fact struct {
	Name              string
	Priority          int32
	PriorityClassName string
	QoS               string
	Containers        []container
}

type container struct {
	Resources struct {
		Requests, Limits struct{ Memory, EphemeralStorage string }
	}
}

// saved returns the facts on disk by the names of the pods.
func (e *evictd) saved() map[string]fact {
	e.t.Helper()
	content, err := os.ReadFile(filepath.Join(e.dir, "state", "facts.json"))
	if err != nil {
		e.t.Fatal(err)
	}
	var saved struct{ Pods []fact }
	if err := json.Unmarshal(content, &saved); err != nil {
		e.t.Fatal(err)
	}
	byName := map[string]fact{}
	for _, f := range saved.Pods {
		byName[f.Name] = f
	}
	return byName
}

// has reports whether evictd has saved facts about a pod.
func (e *evictd) has(name string) bool {
	_, ok := e.saved()[name]
	return ok
}

// kubeconfig writes a kubeconfig with a token file.
func (r *rig) kubeconfig(token string) string {
	r.t.Helper()
	return r.write("kubeconfig", fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c",
		"clusters":[{"name":"k","cluster":{"server":"https://%s","certificate-authority":%q}}],
		"users":[{"name":"u","user":{"tokenFile":%q}}],"contexts":[{"name":"c","context":{"cluster":"k","user":"u"}}]}`, r.address, r.CA(), token))
}

// pod creates a pod that is bound to a node. The API server's admission may not have
// seen the priority class yet.
func (r *rig) pod(name, node string) {
	r.t.Helper()
	body := fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q},"spec":{"nodeName":%q,
		"priorityClassName":"high","containers":[{"name":"main","image":"x","resources":{"requests":{"memory":"64Mi"},"limits":{"ephemeral-storage":"1Gi"}}}]}}`, name, node)
	r.until("pod "+name, func() bool {
		_, err := r.request(http.MethodPost, "/api/v1/namespaces/default/pods", "application/json", body)
		return err == nil
	})
}

func (r *rig) delete(name string) {
	r.t.Helper()
	r.must("DELETE", "/api/v1/namespaces/default/pods/"+name+"?gracePeriodSeconds=0", "")
}

// compact removes the history from etcd, as the API server does every five minutes.
func (r *rig) compact() {
	r.t.Helper()
	body := `{"key":"AA==","range_end":"AA==","limit":"1"}`
	resp, err := http.Post("http://"+r.EtcdAddress+"/v3/kv/range", "application/json", strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	var answer struct{ Header struct{ Revision string } }
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		r.t.Fatal(err)
	}
	resp, err = http.Post("http://"+r.EtcdAddress+"/v3/kv/compaction", "application/json", strings.NewReader(`{"revision":"`+answer.Header.Revision+`","physical":true}`))
	if err != nil {
		r.t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		r.t.Fatalf("compact etcd: %s", resp.Status)
	}
}

// apply creates the objects of files of deploy/kubernetes/base.
func (r *rig) apply(files ...string) {
	r.t.Helper()
	for _, file := range files {
		content, err := os.ReadFile(filepath.Join("../../deploy/kubernetes/base", file))
		if err != nil {
			r.t.Fatal(err)
		}
		for _, doc := range documents(content) {
			object, err := controlplane.ObjectPath([]byte(doc))
			if err != nil {
				r.t.Fatalf("%s: %v", file, err)
			}
			if _, err := r.request(http.MethodPost, path.Dir(object)+"?fieldValidation=Strict", "application/yaml", doc); err != nil {
				r.t.Fatalf("%s: %v", file, err)
			}
		}
	}
}

// kill ends a program as a crash does.
func kill(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
}
