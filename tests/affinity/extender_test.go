package affinity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/evictd/evictd/agent/affinity"
	"github.com/evictd/evictd/tests/controlplane"
	"github.com/evictd/evictd/tests/node"
)

const (
	// serviceName is that of the certificate.
	serviceName = "evictd-controller-webhook.evictd.svc"
	// second is the name of another scheduler.
	second = "second-scheduler"
	// requiresWeb is the annotation of pods that may run only on nodes with the label of the app web.
	requiresWeb = "nodeSelectorTerms:\n- matchExpressions:\n  - {key: " + prefix + "web, operator: In, values: [valid]}\n"
)

// writeCertificate writes a certificate of evictd-controller and of the schedulers that is its own authority, and returns
// the path of its directory.
func (c *cluster) writeCertificate() (dir string) {
	c.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		c.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, DNSNames: []string{serviceName},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	certificate, err1 := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	private, err2 := x509.MarshalPKCS8PrivateKey(key)
	dir = filepath.Join(c.Dir, "extender")
	if err := errors.Join(err1, err2, os.Mkdir(dir, 0o700),
		os.WriteFile(filepath.Join(dir, "tls.crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}), 0o600),
		os.WriteFile(filepath.Join(dir, "tls.key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600)); err != nil {
		c.t.Fatal(err)
	}
	return dir
}

// startSchedulers starts two schedulers with the configuration in deploy, but for the address, the files, and the
// timeout, which is longer here. They have the certificate of writeCertificate.
func (c *cluster) startSchedulers(address, certificates string) {
	c.t.Helper()
	text, err := os.ReadFile("../../deploy/kubernetes/kube-scheduler/config.yaml")
	if err != nil {
		c.t.Fatal(err)
	}
	kubeconfig, err := c.Kubeconfig("scheduler", controlplane.AdminToken)
	if err != nil {
		c.t.Fatal(err)
	}
	ca := filepath.Join(certificates, "tls.crt")
	config := string(text)
	for _, field := range [][2]string{
		{"10.96.0.50:9443", address}, {"/etc/kubernetes/scheduler.conf", kubeconfig}, {"/etc/kubernetes/evictd-extender-ca.crt", ca},
		{"httpTimeout: 2s", "httpTimeout: " + awaitTimeout.String()},
		{"# certFile: /etc/kubernetes/evictd-extender-client.crt", "certFile: " + ca},
		{"# keyFile: /etc/kubernetes/evictd-extender-client.key", "keyFile: " + filepath.Join(certificates, "tls.key")},
	} {
		if strings.Count(config, field[0]) != 1 {
			c.t.Fatalf("config.yaml has %q %d times; want once", field[0], strings.Count(config, field[0]))
		}
		config = strings.Replace(config, field[0], field[1], 1)
	}
	if err := errors.Join(c.StartSchedulerWith("kube-scheduler", config),
		c.StartSchedulerWith(second, config+"profiles:\n  - schedulerName: "+second+"\n")); err != nil {
		c.t.Fatal(err)
	}
}

// applyService applies the Service in deploy with an address of this cluster.
func (c *cluster) applyService() {
	c.t.Helper()
	manifest, err := os.ReadFile("../../deploy/kubernetes/kube-scheduler/service.yaml")
	if err != nil {
		c.t.Fatal(err)
	}
	if err := c.Admin.Apply(c.t.Context(), []byte(strings.Replace(string(manifest), "10.96.0.50", "10.0.0.50", 1))); err != nil {
		c.t.Fatal(err)
	}
}

// startExtender starts evictd-controller with the extender at an address, for schedulers with a certificate, and waits
// until it is ready.
func (c *cluster) startExtender(program, address, certificates string) (stop func()) {
	c.t.Helper()
	probes, err := controlplane.FreeAddress()
	if err != nil {
		c.t.Fatal(err)
	}
	stop = c.startController(program, "off", "--webhook-address", address, "--webhook-cert-dir", certificates,
		"--extender-client-ca", filepath.Join(certificates, "tls.crt"), "--probe-address", probes)
	c.awaitReady(probes)
	return stop
}

// pod creates a pod of a scheduler, which prefers node a. An empty annotation is none.
func (c *cluster) pod(name, scheduler, annotation string) {
	c.t.Helper()
	p := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
		Spec:       deployment("web", 1).Spec.Template.Spec,
	}
	p.Spec.SchedulerName = scheduler
	p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = nil
	if annotation != "" {
		p.Annotations = map[string]string{affinity.Annotation: annotation}
	}
	c.create(podsPath, p)
}

// awaitNode waits until a pod is bound, and fails the test unless that is to a node.
func (c *cluster) awaitNode(pod, node string) {
	c.t.Helper()
	for _, on := range c.awaitRunning(pod, 1) {
		if on != node {
			c.t.Errorf("pod %s runs on %s; want %s", pod, on, node)
		}
	}
}

// awaitUnschedulable waits until a scheduler has found no node for a pod, and fails the test unless its message has all
// parts.
func (c *cluster) awaitUnschedulable(pod string, parts ...string) {
	c.t.Helper()
	c.await("pod "+pod+" to be unschedulable", func() (bool, error) {
		var p corev1.Pod
		if err := c.Admin.Get(c.t.Context(), podsPath+"/"+pod, &p); err != nil {
			return false, err
		}
		if p.Spec.NodeName != "" {
			c.t.Fatalf("pod %s is bound to %s; want none", pod, p.Spec.NodeName)
		}
		for _, condition := range p.Status.Conditions {
			if condition.Type != corev1.PodScheduled || condition.Reason != corev1.PodReasonUnschedulable {
				continue
			}
			for _, part := range parts {
				if !strings.Contains(condition.Message, part) {
					c.t.Errorf("message of pod %s = %q; want %q in it", pod, condition.Message, part)
				}
			}
			return true, nil
		}
		return false, fmt.Errorf("conditions: %+v", p.Status.Conditions)
	})
}

// requestsOf returns how many requests of schedulers had a result.
func (c *cluster) requestsOf(result string) int {
	c.t.Helper()
	text, err := c.metricsText()
	if err != nil {
		c.t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^evictd_affinity_extender_requests_total\{result="` + result + `"\} (\d+)$`).FindStringSubmatch(text)
	if line == nil {
		c.t.Fatalf("no metric of result %s in\n%s", result, text)
	}
	n, _ := strconv.Atoi(line[1]) // digits
	return n
}

// checkAnonymousRefused fails the test unless a request without a certificate is refused.
func (c *cluster) checkAnonymousRefused(address, certificates string) {
	c.t.Helper()
	ca, err := os.ReadFile(filepath.Join(certificates, "tls.crt"))
	if err != nil {
		c.t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	client := &http.Client{
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: serviceName}, DisableKeepAlives: true},
		Timeout:   awaitTimeout,
	}
	answer, err := client.Post("https://"+address+"/extender/filter", "application/json", strings.NewReader("{}"))
	if err != nil {
		c.t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusUnauthorized {
		c.t.Errorf("a request without a certificate was answered %s; want 401", answer.Status)
	}
}

// TestExtender: schedulers with the extender place pods by their annotation, although they prefer another node, and say
// why one can't be placed. Without the extender they are placed as if they had none.
func TestExtender(t *testing.T) {
	needPrograms(t)
	built, err := node.Program("../..", t.TempDir(), "evictd-controller")
	if err != nil {
		t.Fatal(err)
	}
	c := startWithoutScheduler(t, []string{"web"}, "a", "b", "c")
	c.takeLabel("a", "web")
	c.takeLabel("c", "web")
	c.install("")
	c.applyService()
	address, err := controlplane.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	certificates := c.writeCertificate()
	stop := c.startExtender(built, address, certificates)
	c.startSchedulers(address, certificates)

	const each = 5
	schedulers := []string{corev1.DefaultSchedulerName, second}
	for i := range each {
		for j, scheduler := range schedulers {
			c.pod(fmt.Sprint("web-", j, "-", i), scheduler, requiresWeb)
		}
	}
	c.pod("free", second, "")
	c.pod("invalid", corev1.DefaultSchedulerName, "nodeSelectorTerms: []")
	c.pod("nowhere", second, strings.ReplaceAll(requiresWeb, "valid", "none"))
	for i := range each {
		for j := range schedulers {
			c.awaitNode(fmt.Sprint("web-", j, "-", i), "b")
		}
	}
	c.awaitNode("free", "a")
	_, parseError := affinity.ParseAnnotation("nodeSelectorTerms: []")
	c.awaitUnschedulable("invalid", "0/3 nodes are available: 3 node(s) ", parseError.Error())
	c.awaitUnschedulable("nowhere", "0/3 nodes are available: 3 node(s) didn't match Pod's annotation "+affinity.Annotation)
	if n := c.requestsOf("matched"); n < each*len(schedulers) {
		t.Errorf("requests for pods that match a node = %d; want at least %d", n, each*len(schedulers))
	}
	for _, result := range []string{"bad-request", "busy", "not-ready", "panic"} {
		if n := c.requestsOf(result); n != 0 {
			t.Errorf("requests with result %s = %d; want 0", result, n)
		}
	}

	// A node that gets the label takes the pod that waits for it. A scheduler may ask before evictd-controller has seen the
	// label, and asks again after the next change of a Node, which the annotation stands for.
	c.await("pod nowhere to be bound", func() (bool, error) {
		patch := fields{"metadata": fields{
			"labels": fields{prefix + "web": "none"}, "annotations": fields{"changed": time.Now().Format(time.RFC3339Nano)},
		}}
		var p corev1.Pod
		err := errors.Join(c.Admin.Patch(t.Context(), nodesPath+"/c", controlplane.MergePatch, patch),
			c.Admin.Get(t.Context(), podsPath+"/nowhere", &p))
		return err == nil && p.Spec.NodeName != "", err
	})
	c.awaitNode("nowhere", "c")

	c.checkAnonymousRefused(address, certificates)
	stop()
	c.pod("ignored", corev1.DefaultSchedulerName, requiresWeb)
	c.awaitNode("ignored", "a")
}
