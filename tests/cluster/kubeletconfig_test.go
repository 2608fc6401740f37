package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/config/kubeletconfig"
	"github.com/evictd/evictd/agent/control"
)

// kubeletPort is where the kubelet listens.
const kubeletPort = "10250"

// TestKubeletConfiguration: evictd-kube reads the configuration of a real kubelet with the token of
// its service account. A program that listens in the kubelet's place gets nothing. A kubelet with the
// fragment of evictctl kubelet-config starts, and leaves all signals to evictd.
func TestKubeletConfiguration(t *testing.T) {
	if !inNamespaces(t) {
		return
	}
	c := startKubeNode(t)
	c.restartKubelet(func(yaml string) string {
		return strings.Replace(yaml, "evictionHard: {memory.available: 1Mi}",
			`evictionHard: {memory.available: 1Mi, nodefs.available: 3%, pid.available: "10"}`+"\n"+
				"evictionSoft: {nodefs.available: 4%}\nevictionSoftGracePeriod: {nodefs.available: 1h}\nevictionMinimumReclaim: {nodefs.available: 1%}", 1)
	})
	const rbac = "/apis/rbac.authorization.k8s.io/v1/"
	c.must("POST", rbac+"clusterroles", `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":"configz"},
		"rules":[{"apiGroups":[""],"resources":["nodes/configz"],"verbs":["get"]}]}`)
	c.must("POST", rbac+"clusterrolebindings", `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"name":"configz"},
		"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"configz"},
		"subjects":[{"kind":"ServiceAccount","name":"evictd-kube","namespace":"evictd"}]}`)
	c.startEvictd("enforce")
	own := strings.Replace(c.read("config.yaml"), "evictionHard: {", "evictionHard: {memory.available: 4Mi, nodefs.available: 2%, pid.available: 100, ", 1)
	c.write("config.yaml", own)
	if _, err := control.NewClient(c.control()).Reload(t.Context()); err != nil {
		t.Fatal(err)
	}

	c.pair.until("kubelet's configuration", func(k *control.Kubernetes) bool { return k.Kubelet.Known && len(k.Kubelet.Left) > 0 })
	k := c.kubernetes().Kubelet
	if diff := cmp.Diff(map[string]string{"memory.available": "1Mi", "nodefs.available": "3%", "pid.available": "10"}, k.EvictionHard); diff != "" || k.Error != "" || k.ShutsDown {
		t.Errorf("kubelet's configuration %+v; thresholds (-want +got):\n%s", k, diff)
	}
	// containerfs has the thresholds of nodefs: they are one filesystem.
	if want := (control.List[string]{"nodefs.available", "containerfs.available"}); !slices.Equal(k.Left, want) {
		t.Errorf("left to the kubelet: %q; want %q", k.Left, want)
	}
	fields := func(k *control.KubeletConfiguration) (fields []string) {
		for _, d := range k.Differences {
			fields = append(fields, d.Field)
		}
		return fields
	}
	for _, want := range []string{"evictionHard.nodefs.available", "evictionSoft.nodefs.available", "evictionHard.imagefs.available"} {
		if got := fields(&k); !slices.Contains(got, want) {
			t.Errorf("differences %q; want %q among them", got, want)
		}
	}

	c.impostor()
	c.startKubelet("--config-dir", c.writeFragment())
	c.pair.until("kubelet with the fragment", func(k *control.Kubernetes) bool {
		return k.Kubelet.Error == "" && k.Kubelet.EvictionHard["nodefs.available"] == "1%"
	})
	k = c.kubernetes().Kubelet
	want := map[string]string{
		"memory.available": "3Mi", "nodefs.available": "1%", "nodefs.inodesFree": "5%", "imagefs.available": "15%", "imagefs.inodesFree": "5%", "pid.available": "50",
	}
	if diff := cmp.Diff(want, k.EvictionHard); diff != "" {
		t.Errorf("thresholds of a kubelet with the fragment (-want +got):\n%s", diff)
	}
	c.pair.until("nothing left to the kubelet", func(k *control.Kubernetes) bool { return len(k.Kubelet.Left) == 0 })
	if k := c.kubernetes().Kubelet; len(k.Differences) != 0 {
		t.Errorf("differences of a kubelet with the fragment: %+v; want none", k.Differences)
	}
	c.until("node ready with the fragment", c.nodeReady)
}

// impostor stops the kubelet, and lets evictd-kube read the configuration of a program in its place.
func (c *kubeNode) impostor() {
	c.t.Helper()
	kill(c.t, c.kubelet)
	impostor := listenInstead(c.t)
	kill(c.t, c.kube)
	c.startKube()
	c.pair.until("impostor", func(k *control.Kubernetes) bool { return strings.Contains(k.Kubelet.Error, "got no credentials") })
	if n, got := impostor.stop(); n == 0 || got != "" {
		c.t.Errorf("%d connections to the impostor, which got %q; want at least one, and nothing", n, got)
	}
	if k := c.kubernetes().Kubelet; !k.Known || len(k.Left) != 2 {
		c.t.Errorf("kubelet's configuration %+v while it does not run; want the last known one", k)
	}
}

// writeFragment writes what evictctl kubelet-config prints, and returns the directory of the file.
func (c *kubeNode) writeFragment() (dir string) {
	c.t.Helper()
	cfg, err := config.Load(config.Options{Path: filepath.Join(c.dir, "config.yaml"), PathGiven: true})
	if err != nil {
		c.t.Fatal(err)
	}
	dir = filepath.Join(c.dir, "kubelet.conf.d")
	if err := os.Mkdir(dir, 0o755); err != nil {
		c.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "90-evictd.conf"), kubeletconfig.For(cfg).YAML(), 0o644); err != nil {
		c.t.Fatal(err)
	}
	return dir
}

// restartKubelet starts the kubelet again with a changed configuration.
func (c *kubeNode) restartKubelet(change func(yaml string) string) {
	c.t.Helper()
	kill(c.t, c.kubelet)
	c.write("kubelet.yaml", change(c.read("kubelet.yaml")))
	c.startKubelet()
	c.until("node ready after a restart of the kubelet", c.nodeReady)
}

func (c *kubeNode) read(name string) string {
	c.t.Helper()
	content, err := os.ReadFile(filepath.Join(c.dir, name))
	if err != nil {
		c.t.Fatal(err)
	}
	return string(content)
}

// impostor is a TLS server at the kubelet's address with a certificate of its own.
type impostor struct {
	listener net.Listener
	serving  sync.WaitGroup

	mu          sync.Mutex
	connections int
	received    strings.Builder
}

func listenInstead(t *testing.T) *impostor {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{"n1"}, IPAddresses: []net.IP{net.ParseIP(nodeAddress)},
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	i := &impostor{}
	if i.listener, err = tls.Listen("tcp", net.JoinHostPort(nodeAddress, kubeletPort), &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{raw}, PrivateKey: key}},
	}); err != nil {
		t.Fatal(err)
	}
	i.serving.Go(func() {
		for {
			conn, err := i.listener.Accept()
			if err != nil {
				return
			}
			i.serving.Go(func() {
				defer conn.Close()
				buffer := make([]byte, 4096)
				n, _ := conn.Read(buffer) // the client ends the handshake
				i.mu.Lock()
				defer i.mu.Unlock()
				i.connections++
				i.received.Write(buffer[:n])
			})
		}
	})
	t.Cleanup(func() { i.listener.Close() })
	return i
}

// stop ends the impostor, and returns the number of connections and what came after handshakes.
func (i *impostor) stop() (connections int, received string) {
	i.listener.Close()
	i.serving.Wait()
	return i.connections, i.received.String()
}
