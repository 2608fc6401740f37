package cluster

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/evictd/evictd/agent/control"
)

// TestUnitRights: the commands of deploy/README.md make a kubeconfig with which evictd-kube watches
// the pods of its node. The policies restrict its token to that node, and the token ends with the
// Node object. Further commands remove the rights again.
func TestUnitRights(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.build()
	for _, name := range []string{"n1", "n2"} {
		r.must("POST", "/api/v1/nodes", `{"apiVersion":"v1","kind":"Node","metadata":{"name":"`+name+`"}}`)
		r.must("POST", "/api/v1/namespaces/default/pods", policyPod("on-"+name, name, ""))
	}
	r.shell("../..", readmeCommands(t, unitsReadme, "kubectl apply -k", "kubectl apply -k"))
	commands := readmeCommands(t, unitsReadme, "node=NAME", "EOF\n")
	commands[0] = strings.Replace(commands[0], "NAME", "n1", 1)
	r.shell(r.dir, commands)
	content, err := os.ReadFile(filepath.Join(r.dir, "evictd-kube.kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}

	b := &pair{evictd: &evictd{rig: r}}
	b.start()
	r.start("evictd-kube", filepath.Join(r.dir, "evictd-kube"), &syscall.Credential{Uid: kubeUID, Gid: kubeUID},
		"--kubeconfig", r.write("unit.kubeconfig", string(content)), "--node-name", "n1", "--socket", b.kubeSocket())
	b.until("facts", func(k *control.Kubernetes) bool { return k.Watching && k.Pods == 1 })

	var config struct {
		Users []struct{ User struct{ Token string } }
	}
	if err := yaml.Unmarshal(content, &config); err != nil {
		t.Fatal(err)
	}
	token := config.Users[0].User.Token
	const pods = "/api/v1/namespaces/default/pods/"
	uid := func(pod string) string { return decode[named](t, r.must("GET", pods+pod, "")).Metadata.UID }
	remove := func(pod string) string { return fmt.Sprintf(`{"dryRun":["All"],"preconditions":{"uid":%q}}`, uid(pod)) }
	const nodes = "/api/v1/nodes/"
	condition := `{"status":{"conditions":[{"type":"EvictdMemoryPressure","status":"True","reason":"EvictdHasMemoryPressure","message":"m"}]}}`
	r.until("the policies", func() bool {
		pod, _ := r.as(token, http.MethodPatch, pods+"on-n2/status?dryRun=All", reportPatch(uid("on-n2"), "Evicted"))
		node, _ := r.as(token, http.MethodPatch, nodes+"n2/status?dryRun=All", condition)
		return pod == http.StatusUnprocessableEntity && node == pod
	})
	for _, tt := range []struct {
		token, method, path, body string
		want                      int
	}{
		{token, http.MethodPatch, pods + "on-n1/status?dryRun=All", reportPatch(uid("on-n1"), "Evicted"), http.StatusOK},
		{token, http.MethodDelete, pods + "on-n1", remove("on-n1"), http.StatusOK},
		{token, http.MethodDelete, pods + "on-n2", remove("on-n2"), http.StatusUnprocessableEntity},
		{token, http.MethodPatch, nodes + "n1/status?dryRun=All", condition, http.StatusOK},
		{r.tokenOfPod(""), http.MethodPatch, pods + "on-n1/status?dryRun=All", reportPatch(uid("on-n1"), "Evicted"), http.StatusUnprocessableEntity},
	} {
		if code, answer := r.as(tt.token, tt.method, tt.path, tt.body); code != tt.want {
			t.Errorf("%s %s = %d %.300s; want %d", tt.method, tt.path, code, answer, tt.want)
		}
	}

	r.must("DELETE", "/api/v1/nodes/n1", "")
	r.until("end of the token", func() bool {
		code, _ := r.as(token, http.MethodGet, pods+"on-n1", "")
		return code == http.StatusUnauthorized
	})
	r.removeRights("../..", unitsReadme)
}

// removeRights runs the commands of a README that remove the account and its policies, in a
// directory. The account has no token and no rights any more when the policies are removed.
func (r *rig) removeRights(dir, readme string) {
	r.t.Helper()
	token := r.tokenOfPod("")
	commands := readmeCommands(r.t, readme, "kubectl delete clusterrolebinding", "kubectl delete --ignore-not-found -k")
	if len(commands) != 3 {
		r.t.Fatalf("%s has the commands %q; want three", readme, commands)
	}
	expect := func(when string, want int) {
		r.t.Helper()
		for _, name := range []string{podPolicy, nodePolicy} {
			for _, path := range []string{policyPath(name), strings.Replace(policyPath(name), "policies/", "policybindings/", 1)} {
				if code, _ := r.as(adminToken, http.MethodGet, path, ""); code != want {
					r.t.Errorf("%s: GET %s = %d; want %d", when, path, code, want)
				}
			}
		}
	}
	r.shell(dir, commands[:2])
	r.until("end of the account's tokens", func() bool {
		code, _ := r.as(token, http.MethodGet, "/api/v1/pods", "")
		return code == http.StatusUnauthorized
	})
	if code, _ := r.as(adminToken, http.MethodGet, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/evictd-kube", ""); code != http.StatusNotFound {
		r.t.Errorf("GET of the binding of the account = %d; want %d", code, http.StatusNotFound)
	}
	expect("without the account", http.StatusOK)
	// No controller ends the namespace here.
	r.shell(dir, []string{strings.Replace(commands[2], "delete", "delete --wait=false", 1)})
	expect("at the end", http.StatusNotFound)
}

// shell runs commands of a README in a directory, as the administrator.
func (r *rig) shell(dir string, commands []string) {
	r.t.Helper()
	if len(commands) == 0 {
		r.t.Fatal("the README has no such commands")
	}
	readManifests(r.t)
	link := filepath.Join(r.dir, "kubectl")
	if err := os.Symlink(filepath.Join(findPrograms(r.t, kubectl), kubectl), link); err != nil && !os.IsExist(err) {
		r.t.Fatal(err)
	}
	cmd := exec.Command("sh", "-e", "-c", strings.Join(commands, ""))
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+r.dir+":"+os.Getenv("PATH"), "HOME="+r.dir, "KUBECONFIG="+r.adminConfig("admin", adminToken))
	if out, err := cmd.CombinedOutput(); err != nil {
		r.t.Fatalf("%s: %v\n%s", commands, err, out)
	}
}

const unitsReadme = "../../deploy/README.md"

// readmeCommands returns the indented lines of a README from the first that begins with
// first, to the next that begins with last.
func readmeCommands(t *testing.T, readme, first, last string) (lines []string) {
	t.Helper()
	content, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(content)) {
		line, indented := strings.CutPrefix(line, "    ")
		if !indented || len(lines) == 0 && !strings.HasPrefix(line, first) {
			continue
		}
		if lines = append(lines, line); strings.HasPrefix(line, last) {
			return lines
		}
	}
	return nil
}
