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
// Node object.
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
