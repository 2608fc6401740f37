package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strconv"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/fence/device"
	"github.com/evictd/evictd/agent/fence/execute"
	"github.com/evictd/evictd/agent/fence/plan"
)

const (
	// jobInterval is the time between two looks at a Job.
	jobInterval = 500 * time.Millisecond
	// reportDelay is how long before the deadline the agent of a Job is killed, so that its report arrives in time.
	reportDelay = 7 * time.Second
	// checkInterval is the time between two checks of whether an act whose pod has not started is still wanted.
	checkInterval = 2 * time.Second
	// cleanupDelay is how long before the deadline a Job is no longer waited for, and deleted.
	cleanupDelay = 2 * time.Second
	// sweepInterval is the time between two searches for Secrets of Jobs that are left of another controller.
	sweepInterval = time.Minute
)

// jobs runs fence agents in Jobs.
type jobs struct {
	live      liveReader
	cached    client.Reader
	writer    client.Writer
	namespace string
	// image has evictd-controller and the fence agents; empty: there are no Jobs.
	image string
	log   *slog.Logger

	mu sync.Mutex
	// last are the nodes of executors whose last Job gave no answer, by node that is fenced.
	last map[string]string
}

// jobDevice is the device of a use whose agent runs in a Job. Each call is a Job of its own.
type jobDevice struct {
	jobs       *jobs
	use        use
	parameters map[string]string
	secrets    []string
}

var _ device.Device = (*jobDevice)(nil)

// open returns the device of a use.
func (j *jobs) open(ctx context.Context, u *use) (device.Device, error) {
	switch {
	case !plan.FenceAgent(u.method.Agent):
		return nil, fmt.Errorf("open device of method %s: %s is built in; it does not run in a Job", u.method.Name, u.method.Agent)
	case j == nil || j.image == "":
		return nil, fmt.Errorf("open device of method %s: evictd-controller has no image for Jobs: start it with --executor-image", u.method.Name)
	}
	read := func(s plan.Source) (plan.Data, error) { return j.live.source(ctx, s) }
	parameters, secrets, err := j.live.agents.resolve(ctx, u.method, read)
	if err != nil {
		return nil, err
	}
	return &jobDevice{jobs: j, use: *u, parameters: parameters, secrets: secrets}, nil
}

// openDevice returns what opens the device of a use.
func (e *executor) openDevice(live liveReader) func(context.Context, *use) (device.Device, error) {
	return func(ctx context.Context, u *use) (device.Device, error) {
		if u.method.Executor == fence.InJob {
			return e.jobs.open(ctx, u)
		}
		return live.open(ctx, u.method)
	}
}

// Status implements device.Device.
func (d *jobDevice) Status(ctx context.Context) (fence.Power, error) {
	r, err := d.run(ctx, execute.Status)
	switch {
	case err != nil:
		return fence.PowerUnknown, err
	case r.Result == execute.ReadOn:
		return fence.PowerOn, nil
	case r.Result == execute.ReadOff:
		return fence.PowerOff, nil
	}
	return fence.PowerUnknown, reportError(r)
}

// Off implements device.Device.
func (d *jobDevice) Off(ctx context.Context) error { return d.control(ctx, execute.Off) }

// On implements device.Device.
func (d *jobDevice) On(ctx context.Context) error { return d.control(ctx, execute.On) }

// UUID returns no UUID: fence agents do not report that of the machine.
func (d *jobDevice) UUID(context.Context) (string, error) { return "", nil }

func (d *jobDevice) control(ctx context.Context, action execute.Action) error {
	r, err := d.run(ctx, action)
	if err != nil {
		return err
	}
	return reportError(r)
}

// reportError returns the error of a report, nil if the action was done.
func reportError(r execute.Report) error {
	switch r.Result {
	case execute.Done, execute.ReadOn, execute.ReadOff:
		return nil
	case execute.NotStarted:
		return fmt.Errorf("%w: %s", device.ErrRefused, r.Error)
	case execute.Failed:
	}
	return errors.New(r.Error)
}

// run creates the Job of an action and waits for its report. If the leadership ends, the Job goes on.
func (d *jobDevice) run(ctx context.Context, action execute.Action) (execute.Report, error) {
	j, u := d.jobs, &d.use
	deadline, ok := ctx.Deadline()
	timeout := time.Until(deadline) - reportDelay
	if !ok || timeout < time.Second {
		return execute.Report{}, fmt.Errorf("%w: too little time is left for a Job", device.ErrRefused)
	}
	r := execute.Request{
		ID: u.id, Target: u.node, Agent: u.method.Agent, Action: action, NotAfter: metav1.NewMicroTime(deadline.Add(-reportDelay)),
		Timeout: metav1.Duration{Duration: timeout}, Parameters: d.parameters, Secrets: d.secrets,
	}
	text, err := r.Marshal()
	if err != nil {
		return execute.Report{}, fmt.Errorf("%w: %w", device.ErrRefused, err)
	}
	// The Secret first: without it the pod would wait for its volume.
	if err := j.writer.Create(ctx, u.secret(j.namespace, text, deadline)); err != nil {
		return execute.Report{}, fmt.Errorf("%w: create Secret %s/%s: %w", device.ErrRefused, j.namespace, u.name(), err)
	}
	job := u.job(j.namespace, j.image, j.live.agents.directory, timeout, j.avoid(ctx, u.node)...)
	switch err := j.writer.Create(ctx, job); {
	case err == nil, apierrors.IsAlreadyExists(err):
	case refusedByServer(err):
		j.clean(ctx, u)
		return execute.Report{}, fmt.Errorf("%w: create Job %s/%s: %w", device.ErrRefused, j.namespace, job.Name, err)
	default: // it may have been created
		j.log.Warn("could not create Job; it is looked for", "job", job.Name, "error", err)
	}
	s := j.await(ctx, u, action, deadline.Add(-cleanupDelay))
	if errors.Is(ctx.Err(), context.Canceled) {
		return execute.Report{}, fmt.Errorf("wait for Job %s, which goes on without this controller: %w", job.Name, ctx.Err())
	}
	j.note(u.node, &s)
	j.clean(ctx, u)
	return s.report, s.err
}

// refusedByServer reports whether the API server certainly did not create an object.
func refusedByServer(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsNotFound(err) || apierrors.IsBadRequest(err) ||
		apierrors.IsUnauthorized(err) || apierrors.IsTooManyRequests(err)
}

// await looks at the Job of a use until it has ended, or until a time. A Job that has not ended then has failed. While
// its pod has not started, it is checked whether the act is still wanted: the node may be back by then.
func (j *jobs) await(ctx context.Context, u *use, action execute.Action, until time.Time) jobStatus {
	last, checked := jobStatus{waits: "it is not there"}, time.Now()
	for {
		s, err := j.look(ctx, u, action)
		switch {
		case err == nil && s.ended:
			return s
		case err == nil:
			last = s
		default:
			last.waits = err.Error()
		}
		if u.check != nil && !last.started && time.Since(checked) >= checkInterval {
			if err := u.check(ctx); err != nil {
				last.err = fmt.Errorf("wait for Job %s: it is deleted before its pod has started: %w", u.name(), err)
				return last
			}
			checked = time.Now()
		}
		wait := min(jobInterval, time.Until(until))
		if wait <= 0 {
			last.err = fmt.Errorf("wait for Job %s: it has no report before its deadline: %s", u.name(), last.waits)
			return last
		}
		select {
		case <-ctx.Done():
			last.err = fmt.Errorf("wait for Job %s: %w", u.name(), ctx.Err())
			return last
		case <-time.After(wait):
		}
	}
}

// look reads the Job of a use and its pods.
func (j *jobs) look(ctx context.Context, u *use, action execute.Action) (jobStatus, error) {
	job := &batchv1.Job{}
	if err := j.live.reader.Get(ctx, types.NamespacedName{Namespace: j.namespace, Name: u.name()}, job); err != nil {
		return jobStatus{}, fmt.Errorf("read it: %w", err)
	}
	if !u.ours(job) {
		return jobStatus{ended: true, err: fmt.Errorf("wait for Job %s: %w", job.Name, errNotOurs)}, nil
	}
	pods := &corev1.PodList{}
	if err := j.live.reader.List(ctx, pods, client.InNamespace(j.namespace),
		client.MatchingLabels{batchv1.JobNameLabel: job.Name}); err != nil {
		return jobStatus{}, fmt.Errorf("list its pods: %w", err)
	}
	return statusOf(u, action, job, pods.Items), nil
}

// adopt waits for the Job that another controller created for an act. found is false if it has not seen one until the
// deadline. The Job is then deleted, so that it does not begin later.
func (j *jobs) adopt(ctx context.Context, u *use, until time.Time) (report execute.Report, found bool, err error) {
	action := execute.Off
	if u.method.Action == fence.On {
		action = execute.On
	}
	s := j.await(ctx, u, action, until)
	if errors.Is(ctx.Err(), context.Canceled) {
		return execute.Report{}, false, ctx.Err()
	}
	j.note(u.node, &s)
	j.clean(ctx, u)
	return s.report, s.ended, s.err
}

// clean deletes the Job and the Secret of a use. The pod is killed if it still runs, and one that has not started is
// without its Secret. What is left is swept.
func (j *jobs) clean(ctx context.Context, u *use) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupDelay)
	defer cancel()
	key := types.NamespacedName{Namespace: j.namespace, Name: u.name()}
	secret := &metav1.PartialObjectMetadata{}
	secret.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	for _, o := range []client.Object{secret, &batchv1.Job{}} {
		err := j.live.reader.Get(ctx, key, o)
		if err == nil && !u.ours(o) {
			continue
		}
		if err == nil {
			err = j.writer.Delete(ctx, o, client.Preconditions{UID: new(o.GetUID())}, client.PropagationPolicy(metav1.DeletePropagationBackground))
		}
		if err != nil && !apierrors.IsNotFound(err) {
			j.log.Warn("could not delete object of a Job; it is tried again", "object", key, "error", err)
		}
	}
}

// avoid returns the nodes that the pod of a Job must not run on: the one that is fenced, and that of the last executor
// which gave no answer, if another node is Ready.
func (j *jobs) avoid(ctx context.Context, node string) []string {
	j.mu.Lock()
	last := j.last[node]
	j.mu.Unlock()
	nodes := &corev1.NodeList{}
	if last == "" || last == node || j.cached.List(ctx, nodes) != nil {
		return []string{node}
	}
	for i := range nodes.Items {
		if n := &nodes.Items[i]; n.Name != node && n.Name != last && ready(n) {
			return []string{node, last}
		}
	}
	return []string{node}
}

// note remembers the node of an executor without an answer. That of a pod that was not scheduled is forgotten: no other
// node may have had room.
func (j *jobs) note(node string, s *jobStatus) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.last == nil {
		j.last = make(map[string]string)
	}
	j.last[node] = s.node
	failed := s.report.Result == execute.Failed || s.report.Result == execute.NotStarted
	if s.err == nil && !failed || s.node == "" {
		delete(j.last, node)
	}
}

// prune forgets nodes that are not present.
func (j *jobs) prune(present map[string]bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	maps.DeleteFunc(j.last, func(node, _ string) bool { return !present[node] })
}

// Start implements manager.Runnable. It deletes the Secrets of Jobs of controllers that ended before they could.
func (j *jobs) Start(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(sweepInterval): // the cache may not have Secrets before
		}
		j.sweep(ctx)
	}
}

// sweep deletes the Secrets that have no use. Kubernetes deletes the Jobs after jobTTL.
func (j *jobs) sweep(ctx context.Context) {
	list := &corev1.SecretList{}
	err := j.cached.List(ctx, list, client.InNamespace(j.namespace), client.MatchingLabels{labelName: executorName})
	if err != nil {
		j.log.Warn("could not list Secrets of Jobs", "error", err)
		return
	}
	for i := range list.Items {
		s := &list.Items[i]
		expires, err := strconv.ParseInt(s.Labels[labelExpires], 10, 64)
		if err != nil || time.Now().Before(time.Unix(expires, 0)) {
			continue
		}
		if err := j.writer.Delete(ctx, s, client.Preconditions{UID: new(s.UID)}); err != nil && !apierrors.IsNotFound(err) {
			j.log.Warn("could not delete Secret of a Job; it is tried again", "secret", s.Name, "error", err)
		}
	}
}
