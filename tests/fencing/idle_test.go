//go:build bench

package fencing

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/evictd/evictd/tests/controlplane"
)

const (
	// nodeImages is the number of images in the status of each Node: as many as a kubelet reports.
	nodeImages = 50
	// creators is how many objects are created at the same time.
	creators = 8
	// renewAllInterval is how often the Leases of all nodes are renewed: half as often as by a kubelet, for the sake of the
	// machine.
	renewAllInterval = 20 * time.Second
	// settleTime is the time from the start of the controller to the measurement, idleTime that of the measurement.
	settleTime, idleTime = 30 * time.Second, 2 * time.Minute
	// controllerPolicy logs all requests of evictd-controller.
	controllerPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
    users: ["system:serviceaccount:evictd:evictd-controller"]
  - level: None
`
)

// TestIdleController and TestIdleLargeCluster measure evictd-controller with its default times in clusters in which nothing
// happens but the renewals of the Leases of nodes. No other controller and no kubelet runs.
func TestIdleController(t *testing.T)   { measureIdle(t, 1000, 5) }
func TestIdleLargeCluster(t *testing.T) { measureIdle(t, 5000, 10) }

// measureIdle measures a cluster of nodes with as many pods each.
func measureIdle(t *testing.T, nodes, pods int) {
	t.Helper()
	if err := Check(); err != nil {
		t.Skipf("needs %v", err)
	}
	program := executable(t, "evictd-controller")
	plane, err := controlplane.Start(t.Context(), controlplane.Options{
		AuditPolicy: controllerPolicy,
		Users:       []controlplane.User{controlplane.ServiceAccount(controllerToken, Namespace, "evictd-controller")},
	})
	if err != nil {
		t.Fatal(err)
	}
	c := &Cluster{ControlPlane: plane}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	var creating sync.WaitGroup
	for first := range creators {
		creating.Go(func() {
			for i := first; i < nodes && t.Context().Err() == nil && !t.Failed(); i += creators {
				if err := createIdleNode(t.Context(), c, i, pods); err != nil {
					t.Error(err)
				}
			}
		})
	}
	creating.Wait()
	if t.Failed() {
		return
	}
	go renewLeases(t, c, nodes)
	if err := errors.Join(c.Install(t.Context(), "../.."), c.Configure(t.Context(), map[string]string{"mode": "enforce"})); err != nil {
		t.Fatal(err)
	}
	p, err := c.StartController(program, "idle")
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(settleTime)
	began := time.Now()
	time.Sleep(idleTime)
	idle := Idle{Nodes: nodes, Pods: nodes * pods, Requests: map[string]int{}}
	idle.count(t, c.AuditLog(), began)
	idle.measureMemory(t, p.PID())
	if t.Failed() || idle.Elections == 0 {
		t.Fatalf("%d requests of leader election; want some\n%s", idle.Elections, p.Log())
	}
	writeResult(t, &idle)
}

// createIdleNode creates a Node with its Lease and its pods. One pod of ten has a requirement that its node matches.
func createIdleNode(ctx context.Context, c *Cluster, i, pods int) error {
	n := readyNode(i)
	if err := c.Admin.Create(ctx, nodePath, n); err != nil {
		return err
	}
	lease := coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name}, Spec: coordinationv1.LeaseSpec{RenewTime: new(metav1.NowMicro())},
	}
	if err := c.Admin.Create(ctx, leasePath, lease); err != nil {
		return err
	}
	for j := range pods {
		p := corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%d-%d", i, j), Labels: map[string]string{"app": "idle"}},
			Spec:       corev1.PodSpec{NodeName: n.Name, Containers: []corev1.Container{{Name: "main", Image: "registry.example.com/team/application:v1.0.0"}}},
		}
		if j%10 == 9 {
			p.Annotations = map[string]string{
				"evictd.io/required-during-execution": "nodeSelectorTerms: [{matchExpressions: [{key: " + corev1.LabelTopologyZone + ", operator: Exists}]}]",
			}
		}
		if err := c.Admin.Create(ctx, "/api/v1/namespaces/default/pods", p); err != nil {
			return err
		}
	}
	return nil
}

// renewLeases renews the Leases of all nodes until the test ends.
func renewLeases(t *testing.T, c *Cluster, nodes int) {
	pause := time.NewTicker(renewAllInterval / time.Duration(nodes))
	defer pause.Stop()
	for i := 0; t.Context().Err() == nil; i++ {
		name := fmt.Sprint("node-", i%nodes)
		err := c.Admin.Patch(t.Context(), leasePath+"/"+name, controlplane.MergePatch, fields{"spec": fields{"renewTime": metav1.NowMicro()}})
		if err != nil && t.Context().Err() == nil {
			t.Errorf("renew the Lease of %s: %v", name, err)
			return
		}
		<-pause.C
	}
}

// readyNode returns a Node as a kubelet registers one.
func readyNode(i int) corev1.Node {
	now := metav1.Now()
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("node-", i)}}
	n.Labels = map[string]string{corev1.LabelHostname: n.Name, corev1.LabelTopologyZone: fmt.Sprint("zone-", i%3)}
	for _, kind := range []corev1.NodeConditionType{corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure} {
		condition := corev1.NodeCondition{Type: kind, Status: corev1.ConditionFalse, LastHeartbeatTime: now, LastTransitionTime: now}
		if kind == corev1.NodeReady {
			condition.Status = corev1.ConditionTrue
		}
		n.Status.Conditions = append(n.Status.Conditions, condition)
	}
	for image := range nodeImages {
		name := fmt.Sprintf("registry.example.com/team/application-%d", image)
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{
			Names: []string{fmt.Sprintf("%s@sha256:%064x", name, image), name + ":v1.0.0"}, SizeBytes: 1 << 27,
		})
	}
	n.Status.NodeInfo = corev1.NodeSystemInfo{SystemUUID: newUUID(), BootID: newUUID(), KubeletVersion: "v" + controlplane.Version}
	return n
}

// count counts the requests that began in idleTime. The audit log has a watch twice, at its begin and at its end.
func (i *Idle) count(t *testing.T, auditLog string, began time.Time) {
	content, err := os.ReadFile(auditLog)
	if err != nil {
		t.Fatal(err)
	}
	i.Seconds = idleTime.Seconds()
	counted := map[string]bool{}
	for line := range bytes.Lines(content) {
		var a auditEvent
		if err := json.Unmarshal(line, &a); err != nil {
			t.Fatal(err)
		}
		since := a.RequestReceivedTimestamp.Sub(began)
		if since < 0 || since >= idleTime || counted[a.AuditID] {
			continue
		}
		counted[a.AuditID] = true
		if a.ObjectRef.Resource == "leases" && a.ObjectRef.Namespace == Namespace {
			i.Elections++
		} else {
			i.Requests[a.Verb+" "+a.ObjectRef.Resource]++
		}
	}
}

// measureMemory reads the memory of a process.
func (i *Idle) measureMemory(t *testing.T, pid int) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(status) {
		for key, value := range map[string]*int64{"VmRSS": &i.Resident, "VmHWM": &i.Peak} {
			if n, _ := fmt.Sscanf(string(line), key+": %d kB", value); n == 1 {
				*value <<= 10
			}
		}
	}
	if i.Resident == 0 || i.Peak == 0 {
		t.Errorf("no memory in the status of process %d: %s", pid, status)
	}
}
