package affinity

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/evictd/evictd/tests/controlplane"
	"github.com/evictd/evictd/tests/daemon"
	"github.com/evictd/evictd/tests/node"
)

const (
	namespace       = "evictd"
	controllerToken = "controller-token"
	nodesPath       = "/api/v1/nodes"
	podsPath        = "/api/v1/namespaces/default/pods"
	leasesPath      = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
	interval        = 50 * time.Millisecond
	// prefix begins the label of the nodes on which the pods of an app may run.
	prefix = "example.com/"
)

// awaitTimeout bounds each wait.
var awaitTimeout = node.ScaleTimeout(30 * time.Second)

// auditPolicy logs what evicts, deletes and binds pods.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Request
    verbs: [create, delete, deletecollection]
    resources: [{group: "", resources: [pods, pods/eviction, pods/binding]}]
  - level: None
`

// fields are those of an object or a patch.
type fields map[string]any

// cluster is a control plane with nodes, whose kubelet it stands for.
type cluster struct {
	*controlplane.ControlPlane
	t     *testing.T
	nodes []string
	// metrics is the address of those of evictd-controller, and log the path of its log.
	metrics, log string

	mu       sync.Mutex
	problems []string // of the kubelets
}

// needPrograms skips the test without the programs of a control plane.
func needPrograms(t *testing.T) {
	t.Helper()
	if _, err := controlplane.FindPrograms(controlplane.Etcd, controlplane.APIServer, controlplane.ControllerManager, controlplane.Scheduler); err != nil {
		t.Skipf("needs %v", err)
	}
}

// startCluster starts a control plane with nodes, each with the labels of all apps.
func startCluster(t *testing.T, apps []string, nodes ...string) *cluster {
	t.Helper()
	c := startWithoutScheduler(t, apps, nodes...)
	if err := c.StartScheduler(); err != nil {
		t.Fatal(err)
	}
	return c
}

func startWithoutScheduler(t *testing.T, apps []string, nodes ...string) *cluster {
	t.Helper()
	p, err := controlplane.Start(t.Context(), controlplane.Options{
		AuditPolicy: auditPolicy, Users: []controlplane.User{controlplane.ServiceAccount(controllerToken, namespace, "evictd-controller")},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	c := &cluster{ControlPlane: p, t: t, nodes: nodes}
	if err := p.StartControllers([]string{
		"deployment-controller", "replicaset-controller", "statefulset-controller", "disruption-controller", "garbage-collector-controller",
		"node-lifecycle-controller", // it removes the taint of a node that is not ready
	}); err != nil {
		t.Fatal(err)
	}
	for _, name := range nodes {
		c.addNode(name, apps)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var kubelets sync.WaitGroup
	kubelets.Go(func() { c.runKubelets(ctx) })
	t.Cleanup(func() { cancel(); kubelets.Wait() })
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("kubelets: %v\n%s\nevictd-controller:\n%s", c.problems, p.LogTails(), c.controllerLog())
		}
	})
	return c
}

func (c *cluster) create(path string, object any) {
	c.t.Helper()
	if err := c.Admin.Create(c.t.Context(), path, object); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) addNode(name string, apps []string) {
	c.t.Helper()
	labels := map[string]string{corev1.LabelHostname: name}
	for _, app := range apps {
		labels[prefix+app] = "valid"
	}
	c.create(nodesPath, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}})
	amounts := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi"), corev1.ResourcePods: resource.MustParse("110"),
	}
	ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}
	err := c.Admin.Patch(c.t.Context(), nodesPath+"/"+name+"/status", controlplane.StrategicMergePatch, fields{"status": fields{
		"capacity": amounts, "allocatable": amounts, "conditions": []corev1.NodeCondition{ready},
	}})
	if err != nil {
		c.t.Fatal(err)
	}
	c.create(leasesPath, coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &name, RenewTime: new(metav1.NowMicro())},
	})
}

// runKubelets runs the pods that are bound to the nodes in name only, ends those that are deleted, and renews the Leases.
func (c *cluster) runKubelets(ctx context.Context) {
	var renewed time.Time
	for ctx.Err() == nil {
		if time.Since(renewed) > 5*time.Second {
			renewed = time.Now()
			for _, name := range c.nodes {
				c.note(ctx, c.Admin.Patch(ctx, leasesPath+"/"+name, controlplane.MergePatch, fields{"spec": fields{"renewTime": metav1.NowMicro()}}))
			}
		}
		var list corev1.PodList
		c.note(ctx, c.Admin.Get(ctx, "/api/v1/pods", &list))
		for i := range list.Items {
			c.note(ctx, c.syncPod(ctx, &list.Items[i]))
		}
		select {
		case <-ctx.Done():
		case <-time.After(interval):
		}
	}
}

func (c *cluster) note(ctx context.Context, err error) {
	if err == nil || ctx.Err() != nil {
		return
	}
	if e, ok := errors.AsType[*controlplane.StatusError](err); ok && (e.Code == http.StatusNotFound || e.Code == http.StatusConflict) {
		return // the pod has gone
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.problems = append(c.problems, err.Error())
}

func (c *cluster) syncPod(ctx context.Context, pod *corev1.Pod) error {
	path := "/api/v1/namespaces/" + pod.Namespace + "/pods/" + pod.Name
	switch {
	case pod.Spec.NodeName == "":
		return nil
	case pod.DeletionTimestamp != nil:
		return c.Admin.Delete(ctx, path, metav1.DeleteOptions{
			GracePeriodSeconds: new(int64), Preconditions: &metav1.Preconditions{UID: &pod.UID},
		})
	case pod.Status.Phase == corev1.PodRunning:
		return nil
	}
	now := metav1.Now()
	return c.Admin.Patch(ctx, path+"/status", controlplane.StrategicMergePatch, fields{"status": corev1.PodStatus{
		Phase: corev1.PodRunning, StartTime: &now, Conditions: []corev1.PodCondition{
			{Type: corev1.ContainersReady, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: corev1.ConditionTrue},
		},
	}})
}

// install creates the namespace, the CRD and the rights of evictd-controller, and its configuration of affinity.
func (c *cluster) install(config string) {
	c.t.Helper()
	c.create("/api/v1/namespaces", fields{"metadata": fields{"name": namespace}})
	for _, name := range []string{"crd/ha.k8s.io_nodefences.yaml", "rbac.yaml"} {
		manifest, err := os.ReadFile(filepath.Join("../../deploy/kubernetes/controller", name))
		if err != nil {
			c.t.Fatal(err)
		}
		if err := c.Admin.Apply(c.t.Context(), manifest); err != nil {
			c.t.Fatalf("%s: %v", name, err)
		}
	}
	c.create("/api/v1/namespaces/"+namespace+"/configmaps", corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "cluster-affinity-config"}, Data: map[string]string{"config.properties": config},
	})
}

// startController starts evictd-controller with the rights of its service account, and returns what ends it.
func (c *cluster) startController(program, mode string, args ...string) (stop func()) {
	c.t.Helper()
	config, err := c.Kubeconfig("evictd-controller", controllerToken)
	if err != nil {
		c.t.Fatal(err)
	}
	if c.metrics, err = controlplane.FreeAddress(); err != nil {
		c.t.Fatal(err)
	}
	c.log = filepath.Join(c.Dir, "evictd-controller.log")
	log, err := os.OpenFile(c.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		c.t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(program, append(args, "--kubeconfig", config, "--namespace", namespace, "--metrics-address", c.metrics, "--affinity", mode)...)
	cmd.Stdout, cmd.Stderr = log, log
	p, err := daemon.StartService(cmd)
	if err != nil {
		c.t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		if err := p.Terminate(awaitTimeout); err != nil {
			c.t.Error(err)
		}
	})
	c.t.Cleanup(stop)
	return stop
}

// awaitReady waits until evictd-controller is ready.
func (c *cluster) awaitReady(probes string) {
	c.t.Helper()
	c.await("evictd-controller to be ready", func() (bool, error) {
		resp, err := http.Get("http://" + probes + "/readyz")
		if err != nil {
			return false, err
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK, errors.New(resp.Status)
	})
}

func (c *cluster) controllerLog() string {
	b, err := os.ReadFile(c.log)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// metricsText returns the metrics of evictd-controller.
func (c *cluster) metricsText() (string, error) {
	resp, err := http.Get("http://" + c.metrics + "/metrics")
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

// await calls ok until it returns true.
func (c *cluster) await(what string, ok func() (bool, error)) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), awaitTimeout)
	defer cancel()
	for {
		done, err := ok()
		if done {
			return
		}
		select {
		case <-ctx.Done():
			c.t.Fatalf("wait for %s: %v", what, errors.Join(ctx.Err(), err))
		case <-time.After(interval):
		}
	}
}

// pods returns the pods of an app, those that are terminating not.
func (c *cluster) pods(app string) ([]corev1.Pod, error) {
	var list corev1.PodList
	if err := c.Admin.Get(c.t.Context(), podsPath+"?labelSelector=app%3D"+app, &list); err != nil {
		return nil, err
	}
	var live []corev1.Pod
	for i := range list.Items {
		if list.Items[i].DeletionTimestamp == nil {
			live = append(live, list.Items[i])
		}
	}
	return live, nil
}

// awaitRunning waits until an app has so many pods that run, and returns their nodes by UID.
func (c *cluster) awaitRunning(app string, count int) map[types.UID]string {
	c.t.Helper()
	var nodes map[types.UID]string
	c.await(fmt.Sprintf("%d running pods of %s", count, app), func() (bool, error) {
		pods, err := c.pods(app)
		nodes = map[types.UID]string{}
		for i := range pods {
			if pods[i].Status.Phase == corev1.PodRunning {
				nodes[pods[i].UID] = pods[i].Spec.NodeName
			}
		}
		return len(nodes) == count && len(pods) == count, err
	})
	return nodes
}

// takeLabel takes the label of an app from a node.
func (c *cluster) takeLabel(name, app string) {
	c.t.Helper()
	patch := fields{"metadata": fields{"labels": fields{prefix + app: nil}}}
	if err := c.Admin.Patch(c.t.Context(), nodesPath+"/"+name, controlplane.MergePatch, patch); err != nil {
		c.t.Fatal(err)
	}
}
