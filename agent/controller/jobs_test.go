package controller

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/fence/device"
	"github.com/evictd/evictd/agent/fence/execute"
	"github.com/evictd/evictd/agent/fence/nodefence"
)

// jobCluster is an API server in which Kubernetes answers the creation of a Job.
type jobCluster struct {
	api client.Client
	// answer is called with a Job that was created, in a goroutine of its own.
	answer func(*batchv1.Job, execute.Request)
	// create is called in place of the creation of an object, if it returns true.
	create func(client.Object) (error, bool)

	mu       sync.Mutex
	names    []string // of the objects that were created
	requests []execute.Request
}

// created returns the names of the objects that were created.
func (c *jobCluster) created() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.names)
}

// asked returns the requests of the Jobs.
func (c *jobCluster) asked() []execute.Request {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.requests)
}

// newJobCluster returns a cluster and an executor whose methods run in Jobs there.
func newJobCluster(t *testing.T, objects ...client.Object) (*jobCluster, *executor) {
	t.Helper()
	scheme, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	c := &jobCluster{}
	ctx := t.Context()
	functions := interceptor.Funcs{Create: func(ctx2 context.Context, w client.WithWatch, o client.Object, options ...client.CreateOption) error {
		c.mu.Lock()
		c.names = append(c.names, o.GetName())
		c.mu.Unlock()
		o.SetUID(types.UID("uid-of-" + o.GetName()))
		if c.create != nil {
			if err, instead := c.create(o); instead {
				return err
			}
		}
		if err := w.Create(ctx2, o, options...); err != nil {
			return err
		}
		if s, ok := o.(*corev1.Secret); ok {
			r, err := execute.ParseRequest(s.Data[requestFile])
			if err != nil {
				t.Error(err)
			}
			c.mu.Lock()
			c.requests = append(c.requests, r)
			c.mu.Unlock()
		}
		if job, ok := o.(*batchv1.Job); ok && c.answer != nil {
			requests := c.asked()
			go c.answer(job.DeepCopy(), requests[len(requests)-1])
		}
		return nil
	}}
	c.api = fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(functions).Build()
	e := testExecutor(ctx, nil)
	live := newLiveReader(c.api, "evictd")
	live.agents = newFenceAgents("/agents")
	e.jobs = &jobs{live: live, cached: c.api, writer: c.api, namespace: "evictd", image: "agents:v1", log: slog.New(slog.DiscardHandler)}
	e.open = func(_ context.Context, u *use) (device.Device, error) {
		return &jobDevice{jobs: e.jobs, use: *u, parameters: map[string]string{"ip": "192.0.2.1", "password": "hunter2"}, secrets: []string{"password"}}, nil
	}
	e.pending("n1", fenceUID)
	return c, e
}

// reports answers a Job after 3 s with a pod that reports a result.
func (c *jobCluster) reports(t *testing.T, result execute.Result) func(*batchv1.Job, execute.Request) {
	return func(job *batchv1.Job, r execute.Request) {
		time.Sleep(3 * time.Second)
		text := ""
		if result == execute.Failed || result == execute.NotStarted {
			text = "no route to host"
		}
		pod := ranPod(job, execute.Report{ID: r.ID, Action: r.Action, Result: result, Error: text})
		if err := c.api.Create(context.Background(), pod); err != nil {
			t.Error(err)
		}
	}
}

// left returns the Jobs and Secrets that are there.
func (c *jobCluster) left(t *testing.T) []string {
	t.Helper()
	jobs, secrets := &batchv1.JobList{}, &corev1.SecretList{}
	if err := c.api.List(context.Background(), jobs); err != nil {
		t.Fatal(err)
	}
	if err := c.api.List(context.Background(), secrets); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, j := range jobs.Items {
		names = append(names, "Job "+j.Name)
	}
	for _, s := range secrets.Items {
		names = append(names, "Secret "+s.Name)
	}
	slices.Sort(names)
	return names
}

func jobOrder() *order {
	o := offOrder("power-management-1-0-0")
	o.method.Identity, o.method.Agent, o.method.Executor = fence.CheckNone, "fence_x", fence.InJob
	return o
}

const actJob = "fence-222222220000-power-management-1-0-0"

// TestJobOutcomes: what became of an act that a Job executes. Whatever that is, neither its Job nor its Secret stays.
func TestJobOutcomes(t *testing.T) {
	timedOut := apierrors.NewTimeoutError("etcd", 0)
	isJob := func(o client.Object) bool { _, ok := o.(*batchv1.Job); return ok }
	for name, tt := range map[string]struct {
		setup   func(*testing.T, *jobCluster)
		kind    fence.OutcomeKind
		message string
		after   time.Duration
		created int
		left    []string
	}{
		"done": {func(t *testing.T, c *jobCluster) { c.answer = c.reports(t, execute.Done) }, fence.Succeeded, "", 3 * time.Second, 3, nil},
		"failed": {func(t *testing.T, c *jobCluster) { c.answer = c.reports(t, execute.Failed) },
			fence.Unknown, "no route to host", 3 * time.Second, 3, nil},
		"not started": {func(t *testing.T, c *jobCluster) { c.answer = c.reports(t, execute.NotStarted) },
			fence.Failed, "not done: no route to host", 3 * time.Second, 3, nil},
		"report of a reading": {func(t *testing.T, c *jobCluster) { c.answer = c.reports(t, execute.ReadOff) },
			fence.Unknown, "its result is none of this action", 3 * time.Second, 3, nil},
		"no pod": {func(*testing.T, *jobCluster) {}, fence.Unknown,
			"Job " + actJob + ": it has no report before its deadline: it has no pod yet", 58 * time.Second, 2, nil},
		"no right to create Secrets": {func(_ *testing.T, c *jobCluster) {
			c.create = func(client.Object) (error, bool) { return refuseAccess("secrets"), true }
		}, fence.Failed, "not done: create Secret evictd/" + actJob, 0, 1, nil},
		"no right to create Jobs": {func(_ *testing.T, c *jobCluster) {
			c.create = func(o client.Object) (error, bool) { return refuseAccess("jobs"), isJob(o) }
		}, fence.Failed, "not done: create Job evictd/" + actJob, 0, 2, nil},
		"creation timed out, and there is none": {func(_ *testing.T, c *jobCluster) {
			c.create = func(o client.Object) (error, bool) { return timedOut, isJob(o) }
		}, fence.Unknown, "not found", 58 * time.Second, 2, nil},
		"creation timed out, and there is one": {func(t *testing.T, c *jobCluster) {
			answer := c.reports(t, execute.Done)
			c.create = func(o client.Object) (error, bool) {
				job, ok := o.(*batchv1.Job)
				if !ok {
					return nil, false
				}
				c.create = nil
				c.answer = answer
				if err := c.api.Create(context.Background(), job); err != nil {
					t.Error(err)
				}
				return timedOut, true
			}
		}, fence.Succeeded, "", 3 * time.Second, 4, nil},
		"another Job of this name": {func(_ *testing.T, c *jobCluster) {
			c.create = func(o client.Object) (error, bool) {
				if isJob(o) {
					o.SetAnnotations(nil)
				}
				return nil, false
			}
		}, fence.Unknown, "not that of this act", 0, 2, []string{"Job " + actJob}},
		"Job of another fence": {func(_ *testing.T, c *jobCluster) {
			c.create = func(o client.Object) (error, bool) {
				if isJob(o) {
					o.SetOwnerReferences([]metav1.OwnerReference{{UID: "other"}})
				}
				return nil, false
			}
		}, fence.Unknown, "not that of this act", 0, 2, []string{"Job " + actJob}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, e := newJobCluster(t)
				tt.setup(t, c)
				began := time.Now()
				ended := make(chan time.Duration, 1)
				e.done = func(string) { ended <- time.Since(began) }
				e.act(jobOrder())
				if took := <-ended; took < tt.after || took > tt.after+jobInterval {
					t.Errorf("outcome after %v; want %v", took, tt.after)
				}
				outcomes, _, _ := e.pending("n1", fenceUID)
				if got := outcomes[0]; got.Kind != tt.kind || !strings.Contains(got.Message, tt.message) || strings.Contains(got.Message, "hunter2") {
					t.Errorf("outcome = %+v; want %s, %q", got, tt.kind, tt.message)
				}
				if len(c.created()) != tt.created {
					t.Errorf("created %q; want %d objects", c.created(), tt.created)
				}
				if diff := cmp.Diff(tt.left, c.left(t)); diff != "" {
					t.Errorf("left (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// TestJobNoLongerWanted: while the pod of an act has not started, the Job is deleted as soon as the act must not be done
// any more. A pod that runs is not ended, because that could leave the device between two states.
func TestJobNoLongerWanted(t *testing.T) {
	for _, phase := range []corev1.PodPhase{corev1.PodPending, corev1.PodRunning} {
		synctest.Test(t, func(t *testing.T) {
			c, e := newJobCluster(t)
			c.answer = func(job *batchv1.Job, _ execute.Request) {
				pod := ranPod(job, execute.Report{})
				pod.Status = corev1.PodStatus{Phase: phase}
				if err := c.api.Create(context.Background(), pod); err != nil {
					t.Error(err)
				}
			}
			var checks atomic.Int32
			e.check = func(context.Context, *order) error {
				if checks.Add(1) > 2 {
					return errors.New("the Node n1 is Ready")
				}
				return nil
			}
			e.act(jobOrder())
			time.Sleep(10 * time.Second)
			outcomes, _, inFlight := e.pending("n1", fenceUID)
			if phase == corev1.PodRunning {
				if len(outcomes) != 0 || inFlight == "" || checks.Load() != 1 {
					t.Errorf("outcomes of a running pod = %+v after %d checks; want none, and one check", outcomes, checks.Load())
				}
				e.cancel()
				return
			}
			if len(outcomes) != 1 || outcomes[0].Kind != fence.Unknown || !strings.Contains(outcomes[0].Message, "the Node n1 is Ready") {
				t.Errorf("outcomes = %+v; want one, Unknown, because the node is Ready", outcomes)
			}
			if left := c.left(t); len(left) > 0 {
				t.Errorf("left %v; want none", left)
			}
		})
	}
}

// TestJobRequest: the agent is killed before the deadline of the act, also if the clock of its node is late. The Job
// has no secret, and runs neither on the node that is fenced nor twice.
func TestJobRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, e := newJobCluster(t)
		var job *batchv1.Job
		c.answer = func(j *batchv1.Job, r execute.Request) { job = j; c.reports(t, execute.Done)(j, r) }
		o := jobOrder()
		e.act(o)
		time.Sleep(time.Minute)
		r := c.asked()[0]
		if got, want := r.NotAfter.Time, o.intent.Deadline.Add(-reportDelay); !got.Equal(want) || r.Timeout.Duration != time.Minute-reportDelay {
			t.Errorf("notAfter = %v, timeout %v; want %v, %v", got, r.Timeout.Duration, want, time.Minute-reportDelay)
		}
		if r.ID != o.intent.ID || r.Target != "n1" || r.Action != execute.Off || r.Parameters["password"] != "hunter2" || !slices.Equal(r.Secrets, []string{"password"}) {
			t.Errorf("request = %#v with %v; want off of n1, with the password as secret", r, r.Parameters)
		}
		wantJob(t, job)
	})
}

// wantJob fails the test unless a Job of n1 runs one pod once, on another node and without rights.
func wantJob(t *testing.T, job *batchv1.Job) {
	t.Helper()
	spec, pod := job.Spec, job.Spec.Template.Spec
	if *spec.BackoffLimit != 0 || *spec.Parallelism != 1 || *spec.PodReplacementPolicy != batchv1.Failed || *spec.ActiveDeadlineSeconds != 53 {
		t.Errorf("Job = %+v; want one try of one pod, and the deadline of the request", spec)
	}
	if pod.RestartPolicy != corev1.RestartPolicyNever || *pod.AutomountServiceAccountToken || len(pod.Tolerations) != 0 {
		t.Errorf("pod = %+v; want no restart, no token and no tolerations", pod)
	}
	if *pod.Volumes[0].Secret.DefaultMode != 0o400 || !pod.Containers[0].VolumeMounts[0].ReadOnly {
		t.Errorf("volumes = %+v; want the Secret read-only, with mode 0400", pod.Volumes)
	}
	elsewhere := pod.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchFields
	want := []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"n1"}}}
	if diff := cmp.Diff(want, elsewhere); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
	owner := job.OwnerReferences[0]
	if owner.UID != fenceUID || owner.Name != nodefence.ObjectName("n1") || owner.Kind != "NodeFence" {
		t.Errorf("owner = %+v; want the NodeFence", owner)
	}
	if strings.Contains(job.String(), "hunter2") {
		t.Error("the Job has the password")
	}
}

// TestJobReadings: each reading is a Job of its own, which is created after the reading began.
func TestJobReadings(t *testing.T) {
	for result, want := range map[execute.Result]fence.Power{
		execute.ReadOn: fence.PowerOn, execute.ReadOff: fence.PowerOff, execute.Failed: fence.PowerUnknown, execute.NotStarted: fence.PowerUnknown,
		execute.Done: fence.PowerUnknown,
	} {
		synctest.Test(t, func(t *testing.T) {
			c, e := newJobCluster(t)
			c.answer = c.reports(t, result)
			m := jobOrder().method
			for range 2 {
				began := time.Now()
				r := e.reading("n1", fenceUID, &m)
				if r.Power != want || (want == fence.PowerUnknown) != (r.Error != "") {
					t.Errorf("%s: reading = %+v; want %s", result, r, want)
				}
				if !r.Started.Time.Equal(began) || r.Ended.Sub(began) < 3*time.Second {
					t.Errorf("%s: reading from %v to %v; want from %v until its report", result, r.Started, r.Ended, began)
				}
			}
			if asked := c.asked(); len(asked) != 2 || asked[0].ID == asked[1].ID {
				t.Errorf("%s: requests %v; want two with ids of their own", result, asked)
			}
			if left := c.left(t); len(left) > 0 {
				t.Errorf("%s: left %v", result, left)
			}
		})
	}
}

// TestJobDeadlines: a reading by a Job may take as long as its method, and no Job begins shortly before a deadline.
func TestJobDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, e := newJobCluster(t)
		m := jobOrder().method
		began := time.Now()
		if r := e.reading("n1", fenceUID, &m); r.Power != fence.PowerUnknown || time.Since(began) < 58*time.Second {
			t.Errorf("reading = %+v after %v; want unknown after 58s", r, time.Since(began))
		}
		created := len(c.created())
		o := jobOrder()
		o.intent.Deadline = metav1.NewMicroTime(time.Now().Add(reportDelay))
		e.act(o)
		synctest.Wait()
		outcomes, _, _ := e.pending("n1", fenceUID)
		if len(outcomes) != 1 || outcomes[0].Kind != fence.Failed || !strings.Contains(outcomes[0].Message, "too little time") || len(c.created()) != created {
			t.Errorf("outcomes = %+v, created %v; want that nothing was created", outcomes, c.created()[created:])
		}
	})
}

// TestJobAdopted: at the end of the leadership the Job goes on. The next leader takes its report, creates none, and
// deletes it.
func TestJobAdopted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, first := newJobCluster(t)
		c.answer = c.reports(t, execute.Done)
		o := jobOrder()
		first.act(o)
		time.Sleep(time.Second)
		first.cancel()
		synctest.Wait()
		if outcomes, _, _ := first.pending("n1", fenceUID); len(outcomes) != 1 || outcomes[0].Kind != fence.Unknown {
			t.Errorf("outcomes of the first = %+v; want one, Unknown", outcomes)
		}
		if left := c.left(t); !slices.Equal(left, []string{"Job " + actJob, "Secret " + actJob}) {
			t.Fatalf("left %v; want Job and Secret", left)
		}
		second := testExecutor(t.Context(), nil)
		second.jobs = first.jobs
		second.pending("n1", fenceUID)
		created := len(c.created())
		second.adopt(o)
		second.adopt(o)
		time.Sleep(5 * time.Second)
		outcomes, _, inFlight := second.pending("n1", fenceUID)
		if len(outcomes) != 1 || outcomes[0].Kind != fence.Succeeded || outcomes[0].Intent != o.intent.ID || inFlight != "" {
			t.Errorf("outcomes of the second = %+v, in flight %q; want one, Succeeded", outcomes, inFlight)
		}
		if left := c.left(t); len(left) > 0 || len(c.created()) != created+1 { // the pod
			t.Errorf("left %v, created %v; want none and none", left, c.created()[created:])
		}
	})
}

// TestJobNotAdopted: without a Job there is no outcome: agent/fence waits for the deadline of the intent. A Job that is
// not that of the intent is no reason for one that says the act was done.
func TestJobNotAdopted(t *testing.T) {
	for name, foreign := range map[string]bool{"none": false, "foreign": true} {
		synctest.Test(t, func(t *testing.T) {
			c, e := newJobCluster(t)
			if foreign {
				job := jobUse("power-management-1-0-0").job("evictd", "agents:v1", "/agents", time.Minute, "n1")
				job.Annotations = nil
				if err := c.api.Create(t.Context(), job); err != nil {
					t.Fatal(err)
				}
			}
			created := len(c.created())
			e.adopt(jobOrder())
			time.Sleep(2 * time.Minute)
			outcomes, _, _ := e.pending("n1", fenceUID)
			if want := map[bool]int{false: 0, true: 1}[foreign]; len(outcomes) != want || foreign && outcomes[0].Kind != fence.Unknown {
				t.Errorf("%s: outcomes = %+v; want %d, Unknown", name, outcomes, want)
			}
			if len(c.created()) != created || len(c.left(t)) != created {
				t.Errorf("%s: created %v, left %v; want none, and the foreign one", name, c.created()[created:], c.left(t))
			}
		})
	}
}

// TestPassAdopts: a pass looks for the Job of an intent of another controller only.
func TestPassAdopts(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*fence.State, *fence.Inputs)
		want   bool
	}{
		"another controller": {func(*fence.State, *fence.Inputs) {}, true},
		"in flight":          {func(s *fence.State, in *fence.Inputs) { in.InFlight = s.Intent.ID }, false},
		"own":                {func(s *fence.State, _ *fence.Inputs) { s.Intent.Executor = "c1-0" }, false},
		"outcome": {func(s *fence.State, in *fence.Inputs) {
			in.Outcomes = []fence.Outcome{{Intent: s.Intent.ID}}
		}, false},
		"no intent": {func(s *fence.State, _ *fence.Inputs) { s.Intent = nil }, false},
		"local":     {func(s *fence.State, _ *fence.Inputs) { s.Plan.PowerManagement[0].Methods[0].Executor = "" }, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			c, e := newJobCluster(t)
			o := jobOrder()
			o.intent.Step, o.intent.Method, o.intent.Executor = fence.PowerManagement, o.method.Name, "c2-0"
			if err := c.api.Create(t.Context(), jobUse(o.intent.ID).job("evictd", "agents:v1", "/agents", time.Minute, "n1")); err != nil {
				t.Fatal(err)
			}
			s, in := fence.State{UID: fenceUID, Node: "n1"}, fence.Inputs{}
			s.Plan = fence.Plan{PowerManagement: []fence.Level{{Methods: []fence.Method{o.method}}}}
			s.Intent = &o.intent
			tt.change(&s, &in)
			p := &pass{reconciler: &reconciler{executor: e, identity: "c1-0"}, name: "n1"}
			p.adopt(&s, &in)
			synctest.Wait()
			e.mu.Lock()
			got := e.work("n1").adopted != ""
			e.mu.Unlock()
			if got != tt.want {
				t.Errorf("%s: adopted = %t; want %t", name, got, tt.want)
			}
			e.cancel()
		})
	}
}

// TestAvoid: after a Job without an answer the next one runs on another node, if there is one.
func TestAvoid(t *testing.T) {
	for name, tt := range map[string]struct {
		last  jobStatus
		nodes []client.Object
		want  []string
	}{
		"another node":    {jobStatus{node: "n2", err: context.DeadlineExceeded}, []client.Object{healthyNode("n2"), healthyNode("n3")}, []string{"n1", "n2"}},
		"agent failed":    {jobStatus{node: "n2", report: execute.Report{Result: execute.Failed}}, []client.Object{healthyNode("n3")}, []string{"n1", "n2"}},
		"clock wrong":     {jobStatus{node: "n2", report: execute.Report{Result: execute.NotStarted}}, []client.Object{healthyNode("n3")}, []string{"n1", "n2"}},
		"no other node":   {jobStatus{node: "n2", err: context.DeadlineExceeded}, []client.Object{healthyNode("n2"), deadNode()}, []string{"n1"}},
		"it answered":     {jobStatus{node: "n2", report: execute.Report{Result: execute.ReadOff}}, []client.Object{healthyNode("n3")}, []string{"n1"}},
		"never scheduled": {jobStatus{err: context.DeadlineExceeded}, []client.Object{healthyNode("n3")}, []string{"n1"}},
	} {
		_, e := newJobCluster(t, tt.nodes...)
		e.jobs.note("n1", &tt.last)
		if diff := cmp.Diff(tt.want, e.jobs.avoid(t.Context(), "n1")); diff != "" {
			t.Errorf("%s: avoid (-want +got):\n%s", name, diff)
		}
		if got := e.jobs.avoid(t.Context(), "n9"); !slices.Equal(got, []string{"n9"}) {
			t.Errorf("%s: avoid of another node = %v; want only that", name, got)
		}
		e.prune(map[string]bool{})
		if got := e.jobs.avoid(t.Context(), "n1"); !slices.Equal(got, []string{"n1"}) {
			t.Errorf("%s: avoid after the end of n1 = %v; want only n1", name, got)
		}
	}
}

// TestJobSecretsSwept: Secrets of Jobs are deleted when they have no use, and no others.
func TestJobSecretsSwept(t *testing.T) {
	secret := func(name, program, expires string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
			Namespace: "evictd", Name: name, UID: types.UID(name), Labels: map[string]string{labelName: program, labelExpires: expires},
		}}
	}
	synctest.Test(t, func(t *testing.T) { // it is the year 2000
		c, e := newJobCluster(t, secret("old", executorName, "1"), secret("new", executorName, "4000000000"),
			secret("strange", executorName, "soon"), secret("foreign", "other", "1"))
		ctx, cancel := context.WithTimeout(t.Context(), sweepInterval+time.Second)
		defer cancel()
		if err := e.jobs.Start(ctx); err != nil {
			t.Fatal(err)
		}
		if got, want := c.left(t), []string{"Secret foreign", "Secret new", "Secret strange"}; !slices.Equal(got, want) {
			t.Errorf("left %v; want %v", got, want)
		}
	})
}

// TestJobOpen: without an image, and for agents that are built in, there are no Jobs.
func TestJobOpen(t *testing.T) {
	_, e := newJobCluster(t)
	u := jobUse("1")
	u.method.Agent = "ipmi"
	if _, err := e.jobs.open(t.Context(), u); err == nil || !strings.Contains(err.Error(), "ipmi is built in") {
		t.Errorf("open of ipmi = %v; want that it is built in", err)
	}
	e.jobs.image = ""
	if _, err := e.jobs.open(t.Context(), jobUse("1")); err == nil || !strings.Contains(err.Error(), "start it with --executor-image") {
		t.Errorf("open without image = %v; want the remedy", err)
	}
}
