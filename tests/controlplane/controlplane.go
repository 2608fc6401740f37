package controlplane

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/evictd/evictd/tests/daemon"
	"github.com/evictd/evictd/tests/node"
)

const (
	// AdminToken is the token of an administrator.
	AdminToken = "admin-token"
	// Issuer is the issuer and audience of the tokens of service accounts.
	Issuer = "https://kubernetes.default.svc"
	// advertised is an address for documentation (RFC 5737). In a network namespace there is no default route, by
	// which the API server would find one.
	advertised = "192.0.2.1"
)

// startTimeout bounds the start of the API server, which takes 3 s on two idle cores.
var startTimeout = node.ScaleTimeout(90 * time.Second)

// User is a user who has a token.
type User struct {
	Token, Name, UID string
	Groups           []string
}

// ServiceAccount returns the user who has the rights of a service account.
func ServiceAccount(token, namespace, name string) User {
	return User{
		Token: token, Name: "system:serviceaccount:" + namespace + ":" + name, UID: name,
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace},
	}
}

// Options configure a control plane.
type Options struct {
	// Users are users beside the administrator.
	Users []User
	// AuditPolicy is the policy of the audit log; empty for none.
	AuditPolicy string
}

// ControlPlane is an etcd and an API server, and the controllers that were started.
type ControlPlane struct {
	// Dir has all files. Every user can enter it.
	Dir string
	// Programs is the directory of the programs of Kubernetes.
	Programs string
	// EtcdAddress and Address are host:port of etcd and of the API server.
	EtcdAddress, Address string
	// Key signs the tokens of service accounts.
	Key *rsa.PrivateKey
	// Admin makes requests as the administrator.
	Admin *Client

	audit     []string // arguments of the API server
	closing   chan struct{}
	mu        sync.Mutex
	api       *daemon.Process
	processes []*daemon.Process
	close     func() error
}

// Start starts etcd and the API server and waits until that is ready. The error is ErrMissing without their programs.
func Start(ctx context.Context, o Options) (_ *ControlPlane, err error) {
	c := &ControlPlane{closing: make(chan struct{})}
	c.close = sync.OnceValue(c.end)
	if c.Programs, err = FindPrograms(Etcd, APIServer); err != nil {
		return nil, err
	}
	if c.Dir, err = os.MkdirTemp("", "evictd-cluster-"); err != nil {
		return nil, fmt.Errorf("start a control plane: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	if err := c.writeFiles(o); err != nil {
		return nil, err
	}
	if err := c.startEtcd(); err != nil {
		return nil, err
	}
	if c.Address, err = FreeAddress(); err != nil {
		return nil, err
	}
	if err := c.StartAPI(ctx); err != nil {
		return nil, fmt.Errorf("%w; %s", err, c.LogTails())
	}
	return c, nil
}

func (c *ControlPlane) writeFiles(o Options) (err error) {
	if err := os.Chmod(c.Dir, 0o755); err != nil {
		return fmt.Errorf("share the control plane's directory: %w", err)
	}
	if c.Key, err = rsa.GenerateKey(rand.Reader, 2048); err != nil {
		return fmt.Errorf("make the key of service accounts: %w", err)
	}
	key := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(c.Key)})
	if _, err := c.Write("sa.key", string(key)); err != nil {
		return err
	}
	tokens := AdminToken + ",admin,admin,system:masters\n"
	for _, u := range o.Users {
		tokens += fmt.Sprintf("%s,%s,%s,%q\n", u.Token, u.Name, u.UID, strings.Join(u.Groups, ","))
	}
	if _, err := c.Write("tokens.csv", tokens); err != nil {
		return err
	}
	if o.AuditPolicy != "" {
		policy, err := c.Write("audit.yaml", o.AuditPolicy)
		if err != nil {
			return err
		}
		c.audit = []string{"--audit-log-path", c.AuditLog(), "--audit-policy-file", policy}
	}
	return nil
}

// AuditLog returns the path of the audit log.
func (c *ControlPlane) AuditLog() string { return filepath.Join(c.Dir, "audit.log") }

// CA returns the path of the API server's certificate.
func (c *ControlPlane) CA() string { return filepath.Join(c.Dir, "certs", "apiserver.crt") }

// Write writes a file into the directory and returns its path.
func (c *ControlPlane) Write(name, content string) (string, error) {
	path := filepath.Join(c.Dir, name)
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		return "", fmt.Errorf("write %s of the control plane: %w", name, err)
	}
	return path, nil
}

// Kubeconfig writes a kubeconfig with a token, and returns its path.
func (c *ControlPlane) Kubeconfig(name, token string) (string, error) {
	return c.Write(name+".kubeconfig", fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c",
		"clusters":[{"name":"k","cluster":{"server":"https://%s","certificate-authority":%q}}],
		"users":[{"name":"u","user":{"token":%q}}],"contexts":[{"name":"c","context":{"cluster":"k","user":"u"}}]}`, c.Address, c.CA(), token))
}

// Client returns a client with a user's token.
func (c *ControlPlane) Client(token string) *Client {
	return &Client{HTTP: c.Admin.HTTP, address: c.Address, token: token}
}

// startEtcd starts an etcd that does not sync its files: they do not outlive the test.
func (c *ControlPlane) startEtcd() (err error) {
	if c.EtcdAddress, err = FreeAddress(); err != nil {
		return err
	}
	address, err := FreeAddress()
	if err != nil {
		return err
	}
	client, peer := "http://"+c.EtcdAddress, "http://"+address
	_, err = c.start("etcd", Etcd, "--data-dir", filepath.Join(c.Dir, "etcd"), "--unsafe-no-fsync",
		"--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer)
	return err
}

// StartAPI starts the API server, again after StopAPI, and waits until it is ready.
func (c *ControlPlane) StartAPI(ctx context.Context) error {
	host, port, err := net.SplitHostPort(c.Address)
	if err != nil {
		return err
	}
	key := filepath.Join(c.Dir, "sa.key")
	api, err := c.start("kube-apiserver", APIServer, append(c.audit,
		"--etcd-servers", "http://"+c.EtcdAddress, "--bind-address", host, "--secure-port", port,
		"--cert-dir", filepath.Join(c.Dir, "certs"), "--token-auth-file", filepath.Join(c.Dir, "tokens.csv"),
		"--authorization-mode", "Node,RBAC",
		"--enable-admission-plugins", "NodeRestriction", "--disable-admission-plugins", "ServiceAccount",
		"--service-account-issuer", Issuer, "--service-account-key-file", key, "--service-account-signing-key-file", key,
		"--service-cluster-ip-range", "10.0.0.0/24",
		// There is no kube-proxy: webhooks are reached by the EndpointSlices of their Service.
		"--enable-aggregator-routing",
		"--endpoint-reconciler-type", "none", "--advertise-address", advertised)...)
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.api = api
	c.mu.Unlock()
	return c.awaitReady(ctx, api)
}

func (c *ControlPlane) awaitReady(ctx context.Context, api *daemon.Process) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		err := c.ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-api.Done():
			return fmt.Errorf("start the API server: it exited: %w", api.Err())
		case <-ctx.Done():
			return fmt.Errorf("wait for the API server: %w: %w", context.Cause(ctx), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// ready makes the administrator's client once the API server has written its certificate.
func (c *ControlPlane) ready(ctx context.Context) error {
	if c.Admin == nil {
		client, err := newHTTPClient(c.CA())
		if err != nil {
			return err
		}
		c.Admin = &Client{HTTP: client, address: c.Address, token: AdminToken}
	}
	_, err := c.Admin.Request(ctx, http.MethodGet, "/readyz", "", nil)
	return err
}

// StopAPI kills the API server.
func (c *ControlPlane) StopAPI() error { return c.apiProcess().Kill() }

// PauseAPI stops the API server with SIGSTOP: it accepts connections and does not answer.
func (c *ControlPlane) PauseAPI() error { return c.apiProcess().Signal(syscall.SIGSTOP) }

// ResumeAPI ends PauseAPI.
func (c *ControlPlane) ResumeAPI() error { return c.apiProcess().Signal(syscall.SIGCONT) }

func (c *ControlPlane) apiProcess() *daemon.Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.api
}

// StartControllers starts kube-controller-manager with some of its controllers, and further arguments.
func (c *ControlPlane) StartControllers(controllers []string, args ...string) error {
	return c.startControl("kube-controller-manager", ControllerManager, append([]string{
		"--controllers", strings.Join(controllers, ","), "--service-account-private-key-file", filepath.Join(c.Dir, "sa.key"),
	}, args...)...)
}

// StartScheduler starts kube-scheduler.
func (c *ControlPlane) StartScheduler() error { return c.startControl("kube-scheduler", Scheduler) }

// StartSchedulerWith starts a kube-scheduler with a KubeSchedulerConfiguration, which names the kubeconfig. The name is
// that of its files.
func (c *ControlPlane) StartSchedulerWith(name, configuration string) error {
	path, err := c.Write(name+".yaml", configuration)
	if err != nil {
		return err
	}
	return c.startControl(name, Scheduler, "--config", path)
}

// startControl starts a program of Kubernetes that is a client of the API server, and again whenever it has ended: after
// the API server was killed, kube-scheduler can end itself with "Scheduler cache is corrupted".
func (c *ControlPlane) startControl(name, program string, args ...string) error {
	if _, err := FindPrograms(program); err != nil {
		return err
	}
	config, err := c.Kubeconfig("admin", AdminToken)
	if err != nil {
		return err
	}
	address, err := FreeAddress()
	if err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	return c.keep(name, program, append([]string{
		"--kubeconfig", config, "--leader-elect=false", "--bind-address", host, "--secure-port", port,
		"--cert-dir", filepath.Join(c.Dir, name),
	}, args...)...)
}

// Close kills the processes and removes the directory. It is idempotent.
func (c *ControlPlane) Close() error { return c.close() }

func (c *ControlPlane) end() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.closing)
	var errs []error
	for i := len(c.processes) - 1; i >= 0; i-- {
		errs = append(errs, c.processes[i].Kill())
	}
	if err := os.RemoveAll(c.Dir); err != nil {
		errs = append(errs, fmt.Errorf("remove the control plane's directory: %w", err))
	}
	return errors.Join(errs...)
}
