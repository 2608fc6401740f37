package cluster

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/kube"
	"github.com/evictd/evictd/agent/selffence/driver"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/kerneltest"
	kernelprocess "github.com/evictd/evictd/kernel/process"
	"github.com/evictd/evictd/kernel/watchdog"
)

// peerTimeout bounds the wait for a change of the reason for feeding: the nodes say that they cannot reach the API
// server 64 s after its last answer.
const peerTimeout = 5 * time.Minute

// quietWatchdog is a watchdog that never fires.
type quietWatchdog struct{}

func (quietWatchdog) Info() (watchdog.Info, error) {
	return watchdog.Info{Identity: "quiet", MagicClose: true, SetTimeout: true}, nil
}
func (quietWatchdog) Timeout() (time.Duration, error) { return 10 * time.Minute, nil }

func (quietWatchdog) SetTimeout(d time.Duration) (time.Duration, error) { return d, nil }

func (quietWatchdog) Feed() error   { return nil }
func (quietWatchdog) Disarm() error { return nil }
func (quietWatchdog) Close() error  { return nil }

// peerNode is a node with the half of evictd that fences it, and a real evictd-kube.
type peerNode struct {
	name   string
	driver *driver.Driver
	kube   *os.Process
}

// peerAddress is the address of a node.
func peerAddress(i int) string { return fmt.Sprintf("127.0.0.%d", 10+i) }

// startPeer starts a node, of which the Node object exists.
func (r *rig) startPeer(i int, port, key string) *peerNode {
	r.t.Helper()
	n, address := &peerNode{name: fmt.Sprintf("n%d", i)}, peerAddress(i)
	r.agent("agent-"+n.name, n.name)
	dir := filepath.Join(r.dir, n.name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		r.t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(r.t.Output(), nil)).With("node", n.name)
	marks := kube.NewMarks(func(number uint64) { n.driver.Accepted(number) }, log)
	n.driver = driver.New(driver.Options{
		Path: "/dev/null", Timeout: 10 * time.Minute, FeedGap: 12 * time.Second, Peers: true, BootID: "b", StateFile: filepath.Join(dir, "state"),
		Uptime: kernelprocess.Uptime, Procfs: kernel.FS(r.t.TempDir()), Marks: marks, Log: log,
		Sysfs: kernel.FS(kerneltest.Tree(r.t, map[string]string{"dev/char/1:3/identity": "quiet\n", "dev/char/1:3/nowayout": "0\n"})),
		Open:  func(string) (driver.Device, error) { return quietWatchdog{}, nil },
	})
	marks.Peers = n.driver.CountPeers
	socket := filepath.Join(dir, "kube.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		r.t.Fatal(err)
	}
	server := &kube.Server{UID: os.Getuid(), Software: "test", Facts: kube.NewFacts(), Marks: marks, Changed: func() {}, Log: log}
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(r.t.Context(), l) })
	running.Go(func() { n.driver.Run(r.t.Context()) })
	r.t.Cleanup(running.Wait)
	n.kube = r.start("evictd-kube-"+n.name, filepath.Join(r.dir, "evictd-kube"), nil,
		"--kubeconfig", r.adminConfig("config-"+n.name, r.tokenOfPod("agent-"+n.name)), "--node-name", n.name, "--socket", socket,
		"--peers", net.JoinHostPort(address, port), "--peers-key", key, "--peers-state", filepath.Join(dir, "nodes")).Process
	return n
}

// signal sends a signal to a program.
func (n *peerNode) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := n.kube.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// TestPeers: five nodes with evictd-kube and a real API server, with the rights and policies of deploy/kubernetes.
// While the API server is stopped they are fed because of each other, two of them not while the other three are
// stopped, too.
func TestPeers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	buildInto(t, r.dir, "./cmd/evictd-kube")
	for _, dir := range []string{"overlays/enforce", "peers"} {
		for _, doc := range render(t, dir) {
			r.applyObject(doc)
		}
	}
	_, port, err := net.SplitHostPort(freeAddress(t))
	if err != nil {
		t.Fatal(err)
	}
	key := r.write("peers.key", "0123456789abcdef0123456789abcdef\n")
	for i := range 5 { // before the first list of evictd-kube
		name := fmt.Sprintf("n%d", i)
		r.must("POST", "/api/v1/nodes", `{"apiVersion":"v1","kind":"Node","metadata":{"name":"`+name+`"}}`)
		if _, err := r.request(http.MethodPatch, "/api/v1/nodes/"+name+"/status", "application/merge-patch+json",
			`{"status":{"addresses":[{"type":"Hostname","address":"`+name+`"},{"type":"InternalIP","address":"`+peerAddress(i)+`"}]}}`); err != nil {
			t.Fatal(err)
		}
	}
	var nodes []*peerNode
	for i := range 5 {
		nodes = append(nodes, r.startPeer(i, port, key))
	}
	fed := func(when, want string, nodes ...*peerNode) {
		t.Helper()
		for deadline := time.Now().Add(peerTimeout); ; time.Sleep(100 * time.Millisecond) {
			rest := 0
			for _, n := range nodes {
				if s := n.driver.Status(); !s.Armed || s.FedBecause != want || s.Count.ListAge < 0 || s.Count.Nodes != 5 {
					rest++
				}
			}
			if rest == 0 {
				return
			}
			if time.Now().After(deadline) {
				for _, n := range nodes {
					t.Logf("%s: %+v", n.name, n.driver.Status())
				}
				t.Fatalf("%s: %d nodes are not fed because of %s", when, rest, want)
			}
		}
	}
	fed("start", driver.FedByAdvert, nodes...)
	for _, n := range nodes { // the first adverts were sent before there was a list, whose majority they do not allow
		r.until("the length of the list in the advert of "+n.name, func() bool {
			return strings.Contains(string(r.must("GET", "/api/v1/nodes/"+n.name, "")), `\"peerNodes\":5`)
		})
	}
	time.Sleep(2 * time.Second) // evictd hears that they were accepted
	r.pauseAPI()
	fed("API server stopped", driver.FedByPeers, nodes...)
	for _, n := range nodes[2:] {
		n.signal(t, syscall.SIGSTOP)
	}
	fed("two nodes left of five", driver.FedByNothing, nodes...)
	for _, n := range nodes[2:] {
		n.signal(t, syscall.SIGCONT)
	}
	fed("all nodes back", driver.FedByPeers, nodes...)
	nodes[4].signal(t, syscall.SIGSTOP)
	nodes[3].signal(t, syscall.SIGSTOP)
	fed("three nodes of five", driver.FedByNothing, nodes[3:]...)
	fed("three nodes of five", driver.FedByPeers, nodes[:3]...)
	r.resumeAPI()
	fed("API server back", driver.FedByAdvert, nodes[:3]...)
	for _, n := range nodes[3:] {
		n.signal(t, syscall.SIGCONT)
	}
	fed("all back", driver.FedByAdvert, nodes...)
}
