package fencing

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/evictd/evictd/tests/bmc"
)

const jobsPath = "/apis/batch/v1/namespaces/" + Namespace + "/jobs"

// TestFenceByJobs: a lost node is fenced by fence_ipmilan in the pods of Jobs and is back. Its password is in no
// argument and no environment of a program of evictd, in no event, Job, NodeFence and log, and no Secret and no Job is
// left.
func TestFenceByJobs(t *testing.T) {
	t.Parallel()
	c, executors, secrets := startJobs(t, nil)
	boot, uid := c.Machines["a"].BootID(), podUID(t, c)
	began := time.Now()
	c.Machines["a"].Isolate()
	if err := c.AwaitRecovery(t.Context(), "a", "b"); err != nil {
		t.Fatalf("%v\n%s", err, describe(executors))
	}
	wantRecovered(t, c, began, boot, uid)
	s, err := c.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pods := executors.Pods()
	if len(pods) < 5 {
		t.Errorf("%d pods of Jobs; want one for each act and reading", len(pods))
	}
	reports := map[string]int{}
	for _, p := range pods {
		if p.Node != "b" {
			t.Errorf("Job %s ran on %s; want b", p.Job, p.Node)
		}
		if strings.Contains(fmt.Sprint(p), password) {
			t.Errorf("Job %s: the password is in its arguments, environment, output or report", p.Job)
		}
		reports[p.Job]++
	}
	for job, n := range reports {
		if n != 1 {
			t.Errorf("Job %s ran %d times; want once", job, n)
		}
	}
	first := s.Fences["a"].State.Acts
	t.Logf("%d pods; acts %+v\n%s", len(pods), first, describe(executors))
	secrets.check(t, c)
	if err := c.poll(t.Context(), "the end of all Jobs", func() (bool, error) { return c.jobsGone(t.Context()) }); err != nil {
		t.Error(err)
	}
}

// jobsGone reports whether no Job and no Secret of one is left.
func (c *Cluster) jobsGone(ctx context.Context) (bool, error) {
	var jobs, secrets metav1.PartialObjectMetadataList
	if err := c.Admin.Get(ctx, jobsPath, &jobs); err != nil {
		return false, err
	}
	err := c.Admin.Get(ctx, "/api/v1/namespaces/"+Namespace+"/secrets?labelSelector=app.kubernetes.io%2Fname%3Devictd-executor", &secrets)
	return len(jobs.Items)+len(secrets.Items) == 0, err
}

// startJobs starts a cluster whose BMCs are switched by fence_ipmilan in Jobs.
func startJobs(t *testing.T, hook func(job string) error) (*Cluster, *Executors, *secretSearch) {
	t.Helper()
	if err := Check(); err != nil {
		t.Skipf("needs %v", err)
	}
	agents := installIPMILAN(t)
	program := executable(t, "evictd-controller")
	c := start(t)
	executors := &Executors{Program: program, Dir: t.TempDir(), Hook: hook}
	for _, m := range c.Machines {
		m.useExecutors(executors)
	}
	if err := c.Install(t.Context(), "../.."); err != nil {
		t.Fatal(err)
	}
	manifest, err := os.ReadFile("../../deploy/kubernetes/controller/jobs/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Admin.Apply(t.Context(), manifest); err != nil {
		t.Fatal(err)
	}
	if err := c.Configure(t.Context(), policy(map[string]string{"executor": "job", "proof_timeout": "2m", "total_timeout": "10m"})); err != nil {
		t.Fatal(err)
	}
	useIPMILAN(t, c)
	executors.args = []string{"--executor-image", "evictd-agents:v1", "--fence-agents-dir", agents}
	startJobController(t, c, executors, "first")
	return c, executors, searchSecret(t, program, password)
}

// startJobController starts evictd-controller with Jobs.
func startJobController(t *testing.T, c *Cluster, e *Executors, identity string) *Controller {
	t.Helper()
	p, err := c.StartController(e.Program, identity, e.args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("evictd-controller %s:\n%s\n%s", identity, p.Log(), describe(e))
		}
	})
	return p
}

// TestJobAdopted: a controller that is killed while the Job of an off waits leaves it to the next one, which takes its
// report and does not switch off again.
func TestJobAdopted(t *testing.T) {
	t.Parallel()
	waits, goOn := make(chan struct{}, 1), make(chan struct{})
	c, executors, _ := startJobs(t, func(job string) error {
		if !strings.HasSuffix(job, "power-management-1-0-0") {
			return nil
		}
		select {
		case waits <- struct{}{}:
		default:
		}
		select {
		case <-goOn:
			return nil
		default:
			return errors.New("the image is not there yet")
		}
	})
	boot, uid := c.Machines["a"].BootID(), podUID(t, c)
	began := time.Now()
	c.Machines["a"].Isolate()
	select {
	case <-waits:
	case <-time.After(awaitTimeout):
		t.Fatal("no Job was created")
	}
	// The act starts before the taint is set.
	if _, err := c.AwaitEvent(t.Context(), Quarantined); err != nil {
		t.Fatal(err)
	}
	if err := c.controller.Kill(); err != nil {
		t.Fatal(err)
	}
	close(goOn)
	second := startJobController(t, c, executors, "second")
	if err := c.AwaitRecovery(t.Context(), "a", "b"); err != nil {
		t.Fatal(err)
	}
	wantRecovered(t, c, began, boot, uid)
	log := second.Log()
	for _, want := range []string{"looking for the Job of an act that another controller began", "off by lan-off: Succeeded"} {
		if !strings.Contains(log, want) {
			t.Errorf("the log of the second controller has no %q:\n%s", want, log)
		}
	}
	if err := c.poll(t.Context(), "the end of all Jobs", func() (bool, error) { return c.jobsGone(t.Context()) }); err != nil {
		t.Error(err)
	}
}

// installIPMILAN returns a directory with fence_ipmilan, which finds ipmitool where it is.
func installIPMILAN(t *testing.T) string {
	t.Helper()
	agent, err := bmc.Program("fence_ipmilan")
	if err != nil {
		t.Skip(err)
	}
	tool, err := bmc.Program("ipmitool")
	if err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	script := fmt.Sprintf("#!/bin/sh\n{ cat; echo ipmitool_path=%s; } | %s\n", tool, agent)
	if err := os.WriteFile(filepath.Join(dir, "fence_ipmilan"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// useIPMILAN gives a the methods ipmi-off and ipmi-on of fence_ipmilan.
func useIPMILAN(t *testing.T, c *Cluster) {
	t.Helper()
	p := c.BMCs["a"].Parameters()
	secret := corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "fence-method-template-lan"}, StringData: map[string]string{"password": p["password"]},
	}
	if err := c.Admin.Create(t.Context(), "/api/v1/namespaces/"+Namespace+"/secrets", secret); err != nil {
		t.Fatal(err)
	}
	template := map[string]string{"agent_name": "fence_ipmilan", "lanplus": "1", "cipher": "3", "identity": "none", "unverified": "accept", "timeout": "40s"}
	for k, v := range p {
		if k != "password" {
			template[k] = v
		}
	}
	method := func(action string) map[string]string {
		return map[string]string{"template": "fence-method-template-lan", "action": action}
	}
	for _, m := range []corev1.ConfigMap{
		configMap("fence-method-template-lan", "template.properties", template),
		configMap("fence-method-lan-off-a", "method.properties", method("off")),
		configMap("fence-method-lan-on-a", "method.properties", method("on")),
	} {
		if err := c.Admin.Create(t.Context(), "/api/v1/namespaces/"+Namespace+"/configmaps", m); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.setMethods(t.Context(), "a", "lan-off lan-on"); err != nil {
		t.Fatal(err)
	}
}

// describe returns the pods of Jobs.
func describe(e *Executors) string {
	var b strings.Builder
	for _, p := range e.Pods() {
		fmt.Fprintf(&b, "%s on %s: %d after %v: %s %s\n", p.Job, p.Node, p.ExitCode, p.Ended.Sub(p.Started).Round(time.Millisecond), p.Message, p.Output)
	}
	return b.String()
}

// secretSearch looks for a password in the arguments and environments of the processes of a program.
type secretSearch struct {
	program, secret string
	running         sync.WaitGroup

	mu    sync.Mutex
	found map[string]bool
	seen  int
}

// searchSecret looks for a password until the test ends.
func searchSecret(t *testing.T, program, secret string) *secretSearch {
	t.Helper()
	s := &secretSearch{program: program, secret: secret, found: map[string]bool{}}
	ctx, cancel := context.WithCancel(context.Background())
	s.running.Go(func() { s.run(ctx) })
	t.Cleanup(func() { cancel(); s.running.Wait() })
	return s
}

func (s *secretSearch) run(ctx context.Context) {
	for ctx.Err() == nil {
		processes, _ := filepath.Glob("/proc/[0-9]*")
		for _, p := range processes {
			if target, err := os.Readlink(p + "/exe"); err != nil || target != s.program {
				continue
			}
			s.mu.Lock()
			s.seen++
			for _, name := range []string{"cmdline", "environ"} {
				if text, err := os.ReadFile(filepath.Join(p, name)); err == nil && bytes.Contains(text, []byte(s.secret)) {
					s.found[name+" "+string(text)] = true
				}
			}
			s.mu.Unlock()
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// check fails the test if the password was found, or is where anyone can read it.
func (s *secretSearch) check(t *testing.T, c *Cluster) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen == 0 {
		t.Error("no process of evictd-controller was seen")
	}
	for where := range s.found {
		t.Errorf("a process has the password: %s", where)
	}
	wantNoSecret(t, c, s.secret)
}

// wantNoSecret fails the test if a secret is in an object that is no Secret, or in the log of evictd-controller, as it is
// or in Base64.
func wantNoSecret(t *testing.T, c *Cluster, secret string) {
	t.Helper()
	forms := []string{secret, base64.StdEncoding.EncodeToString([]byte(secret))}
	search := func(where string, text []byte) {
		for _, form := range forms {
			if bytes.Contains(text, []byte(form)) {
				t.Errorf("%s has the password", where)
			}
		}
	}
	for _, path := range []string{
		fencePath, jobsPath, "/api/v1/namespaces/" + Namespace + "/pods", "/api/v1/events", "/apis/events.k8s.io/v1/events",
		"/api/v1/nodes", "/api/v1/namespaces/" + Namespace + "/configmaps",
	} {
		text, err := c.Admin.Request(t.Context(), "GET", path, "", nil)
		if err != nil || len(text) == 0 {
			t.Errorf("GET %s: %v", path, err)
		}
		search(path, text)
	}
	search("the log of evictd-controller", []byte(c.controller.Log()))
}
