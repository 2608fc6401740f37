package cluster

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/evictd/evictd/tests/node"
)

const (
	adminToken = "admin-token"
	nodeToken  = "node-token" // of the kubelet of node n1
	issuer     = "https://kubernetes.default.svc"
	apiVersion = "1.36.3" // that of kubernetes/go.mod
)

// The programs of Kubernetes, etcd, kustomize and Helm. The kubelet has another name so that an evictd that runs on
// this machine does not take it for the kubelet of its node.
const (
	apiServer         = "kube-apiserver-" + apiVersion
	etcd              = "etcd-" + apiVersion
	controllerManager = "kube-controller-manager-" + apiVersion
	scheduler         = "kube-scheduler-" + apiVersion
	kubelet           = "node-agent-" + apiVersion
	kubectl           = "kubectl-" + apiVersion
	kustomize         = "kustomize-" + apiVersion // the one that kubectl of this version contains
	helm              = "helm-" + apiVersion      // built with the libraries of this version
)

// programsEnv is the environment variable with the directory of the programs of Kubernetes, instead of
// that in which fetch.sh puts them.
const programsEnv = "EVICTD_TEST_CLUSTER"

// findPrograms returns the directory of programs that fetch.sh has put there. It skips the
// test if one is missing, or without root.
func findPrograms(t *testing.T, names ...string) string {
	t.Helper()
	cache := os.Getenv(programsEnv)
	if cache == "" {
		dir, err := node.CacheDir()
		if err != nil {
			t.Fatal(err)
		}
		cache = filepath.Join(dir, "cluster")
	}
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(cache, name)); err != nil {
			t.Skipf("needs %s: sh tests/cluster/fetch.sh", name)
		}
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root: to run evictd and evictd-kube as different users")
	}
	return cache
}

// rig is an API server and its etcd, for one test.
type rig struct {
	t           *testing.T
	dir         string
	cache       string
	etcdAddress string
	address     string // host:port of the API server
	api         *exec.Cmd
	key         *rsa.PrivateKey // signs tokens of service accounts
	audit       []string        // arguments of the API server
	client      *http.Client
}

func newRig(t *testing.T) *rig {
	t.Helper()
	return newRigWith(t, false)
}

// newRigWith is newRig; with audit, the API server logs the writes of the pods' status.
func newRigWith(t *testing.T, audit bool) *rig {
	t.Helper()
	cache := findPrograms(t, etcd, apiServer)
	r := &rig{t: t, dir: sharedDir(t), cache: cache, etcdAddress: freeAddress(t), address: freeAddress(t)}
	var err error
	if r.key, err = rsa.GenerateKey(rand.Reader, 2048); err != nil {
		t.Fatal(err)
	}
	r.write("sa.key", string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(r.key)})))
	r.write("tokens.csv", adminToken+",admin,admin,system:masters\n"+nodeToken+",system:node:n1,n1,system:nodes\n")
	peer := freeAddress(t)
	r.start("etcd", filepath.Join(cache, etcd), nil, "--data-dir", filepath.Join(r.dir, "etcd"), "--listen-client-urls", "http://"+r.etcdAddress,
		"--advertise-client-urls", "http://"+r.etcdAddress, "--listen-peer-urls", "http://"+peer, "--initial-advertise-peer-urls", "http://"+peer,
		"--initial-cluster", "default=http://"+peer)
	if audit {
		r.audit = []string{"--audit-log-path", r.auditLog(), "--audit-policy-file", r.write("audit.yaml", auditPolicy)}
	}
	r.startAPI()
	return r
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

func (r *rig) auditLog() string { return filepath.Join(r.dir, "audit.log") }

// startAPI starts the API server and waits until it is ready.
func (r *rig) startAPI() {
	r.t.Helper()
	host, port, _ := net.SplitHostPort(r.address)
	r.api = r.start("kube-apiserver", filepath.Join(r.cache, apiServer), nil, append(r.audit,
		"--etcd-servers", "http://"+r.etcdAddress, "--bind-address", host, "--secure-port", port, "--cert-dir", filepath.Join(r.dir, "certs"),
		"--token-auth-file", filepath.Join(r.dir, "tokens.csv"), "--authorization-mode", "Node,RBAC",
		"--enable-admission-plugins", "NodeRestriction", "--disable-admission-plugins", "ServiceAccount",
		"--service-account-issuer", issuer, "--service-account-key-file", filepath.Join(r.dir, "sa.key"),
		"--service-account-signing-key-file", filepath.Join(r.dir, "sa.key"), "--service-cluster-ip-range", "10.0.0.0/24",
		// In a network namespace there is no default route, by which it would find an address.
		"--endpoint-reconciler-type", "none", "--advertise-address", nodeAddress)...)
	r.until("API server ready", func() bool {
		pool := x509.NewCertPool()
		ca, err := os.ReadFile(r.ca())
		if err != nil || !pool.AppendCertsFromPEM(ca) {
			return false
		}
		r.client = &http.Client{Timeout: node.ScaleTimeout(10 * time.Second), Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}
		_, err = r.request(http.MethodGet, "/readyz", "", "")
		return err == nil
	})
}

// stopAPI kills the API server.
func (r *rig) stopAPI() {
	_ = r.api.Process.Kill() // it may have ended
	_ = r.api.Wait()
}

func (r *rig) ca() string { return filepath.Join(r.dir, "certs", "apiserver.crt") }

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
	path := filepath.Join(r.dir, name)
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		r.t.Fatal(err)
	}
	return path
}

// adminConfig writes a kubeconfig with the token of a user.
func (r *rig) adminConfig(name, token string) string {
	r.t.Helper()
	return r.write(name+".kubeconfig", fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c",
		"clusters":[{"name":"k","cluster":{"server":"https://%s","certificate-authority":%q}}],
		"users":[{"name":"u","user":{"token":%q}}],"contexts":[{"name":"c","context":{"cluster":"k","user":"u"}}]}`, r.address, r.ca(), token))
}

// request makes a request as the administrator. The body's type is JSON or YAML.
func (r *rig) request(method, path, contentType, body string) ([]byte, error) {
	req, err := http.NewRequestWithContext(context.Background(), method, "https://"+r.address+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+adminToken)
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := r.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 4<<20))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= 300 {
		return answer, fmt.Errorf("%s %s: %s: %.500s", method, path, resp.Status, answer)
	}
	return answer, nil
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
	timeout := node.ScaleTimeout(90 * time.Second)
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

// Free addresses have ports below those that the kernel chooses for connections
// (net.ipv4.ip_local_port_range): a connection of another test would take them before the
// program listens, or while it is restarted.
const firstFreePort, freePorts = 20000, 10000

var usedPorts sync.Map

// freeAddress returns an address on loopback that nothing listens on, and that no other call
// returns.
func freeAddress(t *testing.T) string {
	t.Helper()
	for range freePorts {
		address := fmt.Sprint("127.0.0.1:", firstFreePort+mathrand.IntN(freePorts))
		if _, used := usedPorts.LoadOrStore(address, true); used {
			continue
		}
		if l, err := net.Listen("tcp", address); err == nil {
			l.Close()
			return address
		}
	}
	t.Fatal("no free port")
	return ""
}

// TestFreeAddress: connections do not take a free address.
func TestFreeAddress(t *testing.T) {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		t.Fatal(err)
	}
	var first, last int
	if _, err := fmt.Sscan(string(text), &first, &last); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for range 100 {
		address := freeAddress(t)
		_, text, _ := net.SplitHostPort(address)
		if port, err := strconv.Atoi(text); err != nil || port >= first && port <= last || seen[address] {
			t.Errorf("free address %s, again: %t; ports of connections are %d to %d", address, seen[address], first, last)
		}
		seen[address] = true
	}
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

// resource returns the API path at which an object of a manifest is created. Without a namespace it is that of the
// overlays.
func resource(doc string) (string, error) {
	var o named
	if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
		return "", err
	}
	namespace := "namespaces/" + cmp.Or(o.Metadata.Namespace, "evictd")
	path := map[string]string{
		"Namespace":          "/api/v1/namespaces",
		"ResourceQuota":      "/api/v1/" + namespace + "/resourcequotas",
		"ServiceAccount":     "/api/v1/" + namespace + "/serviceaccounts",
		"ConfigMap":          "/api/v1/" + namespace + "/configmaps",
		"DaemonSet":          "/apis/apps/v1/" + namespace + "/daemonsets",
		"Deployment":         "/apis/apps/v1/" + namespace + "/deployments",
		"Role":               "/apis/rbac.authorization.k8s.io/v1/" + namespace + "/roles",
		"RoleBinding":        "/apis/rbac.authorization.k8s.io/v1/" + namespace + "/rolebindings",
		"ClusterRole":        "/apis/rbac.authorization.k8s.io/v1/clusterroles",
		"ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
		"FlowSchema":         "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas",

		"CustomResourceDefinition":         "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
		"ValidatingAdmissionPolicy":        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
		"ValidatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
	}[o.Kind]
	if path == "" {
		return "", errors.New("no resource for kind " + o.Kind)
	}
	return path, nil
}

func decode[T any](t *testing.T, content []byte) T {
	t.Helper()
	var v T
	if err := json.NewDecoder(bytes.NewReader(content)).Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v
}
