package cluster

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/evictd/evictd/tests/controlplane"
	"github.com/evictd/evictd/tests/node"
)

const (
	adminToken = controlplane.AdminToken
	nodeToken  = "node-token" // of the kubelet of node n1
	issuer     = controlplane.Issuer
	apiVersion = controlplane.Version
)

// The programs of Kubernetes, etcd, kustomize and Helm.
const (
	apiServer         = controlplane.APIServer
	etcd              = controlplane.Etcd
	controllerManager = controlplane.ControllerManager
	scheduler         = controlplane.Scheduler
	kubelet           = controlplane.Kubelet
	kubectl           = controlplane.Kubectl
	kustomize         = controlplane.Kustomize
	helm              = controlplane.Helm
)

// findPrograms returns the directory of programs that fetch.sh has put there. It skips the
// test if one is missing, or without root.
func findPrograms(t *testing.T, names ...string) string {
	t.Helper()
	dir, err := controlplane.FindPrograms(names...)
	if errors.Is(err, controlplane.ErrMissing) {
		t.Skipf("needs %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root: to run evictd and evictd-kube as different users")
	}
	return dir
}

// rig is an API server and its etcd, for one test.
type rig struct {
	// patience is the timeout of until; 0 for the default.
	patience time.Duration
	*controlplane.ControlPlane
	t       *testing.T
	dir     string
	cache   string
	address string // host:port of the API server in kubeconfigs
	client  *http.Client
}

func newRig(t *testing.T) *rig {
	t.Helper()
	return newRigWith(t, false)
}

// newRigWith is newRig; with audit, the API server logs the writes of the pods' status.
func newRigWith(t *testing.T, audit bool) *rig {
	t.Helper()
	findPrograms(t, etcd, apiServer)
	o := controlplane.Options{Users: []controlplane.User{{Token: nodeToken, Name: "system:node:n1", UID: "n1", Groups: []string{"system:nodes"}}}}
	if audit {
		o.AuditPolicy = auditPolicy
	}
	c, err := controlplane.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.LogTails())
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return &rig{ControlPlane: c, t: t, dir: c.Dir, cache: c.Programs, address: c.Address, client: c.Admin.HTTP}
}

const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
    verbs: [patch]
    resources: [{group: "", resources: [pods/status]}]
  - level: None
`

// startAPI starts the API server again.
func (r *rig) startAPI() { r.check(r.StartAPI(r.t.Context())) }

func (r *rig) stopAPI()   { r.check(r.StopAPI()) }
func (r *rig) pauseAPI()  { r.check(r.PauseAPI()) }
func (r *rig) resumeAPI() { r.check(r.ResumeAPI()) }

func (r *rig) check(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// start runs a program until the test ends. Its output is shown if the test fails.
func (r *rig) start(name, path string, credential *syscall.Credential, args ...string) *exec.Cmd {
	r.t.Helper()
	cmd := exec.Command(path, args...)
	cmd.Dir = r.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential}
	return r.run(name, cmd)
}

// run is start for a command.
func (r *rig) run(name string, cmd *exec.Cmd) *exec.Cmd {
	r.t.Helper()
	log, err := os.OpenFile(filepath.Join(r.dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		r.t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
		log.Close()
		if r.t.Failed() {
			content, _ := os.ReadFile(log.Name())
			r.t.Logf("%s:\n%s", name, content[max(0, len(content)-4000):])
		}
	})
	return cmd
}

func (r *rig) write(name, content string) string {
	r.t.Helper()
	path, err := r.Write(name, content)
	r.check(err)
	return path
}

// adminConfig writes a kubeconfig with the token of a user.
func (r *rig) adminConfig(name, token string) string {
	r.t.Helper()
	path, err := r.Kubeconfig(name, token)
	r.check(err)
	return path
}

// request makes a request as the administrator. The body's type is JSON or YAML.
func (r *rig) request(method, path, contentType, body string) ([]byte, error) {
	return r.Admin.Request(context.Background(), method, path, contentType, []byte(body))
}

func (r *rig) must(method, path, body string) []byte {
	r.t.Helper()
	answer, err := r.request(method, path, "application/json", body)
	if err != nil {
		r.t.Fatal(err)
	}
	return answer
}

func (r *rig) until(what string, ok func() bool) {
	r.t.Helper()
	timeout := node.ScaleTimeout(cmp.Or(r.patience, 90*time.Second))
	for deadline := time.Now().Add(timeout); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.t.Fatalf("%s: not after %v", what, timeout)
		}
	}
}

// sharedDir returns a directory that every user can enter, unlike that of t.TempDir.
func sharedDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "evictd-cluster-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// freeAddress is controlplane.FreeAddress.
func freeAddress(t *testing.T) string {
	t.Helper()
	address, err := controlplane.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// build builds the commands as they are released.
func (r *rig) build() {
	r.t.Helper()
	buildInto(r.t, r.dir, "./cmd/evictd", "./cmd/evictd-kube")
}

// buildInto builds commands into a directory, or copies them if they are built already.
func buildInto(t *testing.T, dir string, packages ...string) {
	t.Helper()
	var names []string
	for _, pkg := range packages {
		names = append(names, filepath.Base(pkg))
	}
	built, err := node.Prebuilt(names...)
	if err != nil {
		t.Fatal(err)
	}
	for _, program := range built {
		content, err := os.ReadFile(program)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, filepath.Base(program)), content, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if built != nil {
		return
	}
	cmd := exec.Command("go", append([]string{"build", "-trimpath", "-ldflags", "-s -w", "-o", dir + "/"}, packages...)...)
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
}

// documents returns the objects of a manifest file.
func documents(content []byte) []string { return strings.Split(string(content), "\n---\n") }

func decode[T any](t *testing.T, content []byte) T {
	t.Helper()
	var v T
	if err := json.NewDecoder(bytes.NewReader(content)).Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v
}
