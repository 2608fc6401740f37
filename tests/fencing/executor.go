package fencing

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/evictd/evictd/tests/controlplane"
)

// Executors run the pods of Jobs on the machines: the first container's command as a process. What they do not do of a
// kubelet: pull images, isolate the process.
type Executors struct {
	// Program is run in place of the container's program.
	Program string
	// Dir gets the volumes of the pods.
	Dir string
	// Hook is called before a process starts, with the name of its Job. An error is why the pod stays Pending.
	Hook func(job string) error

	args []string // of evictd-controller
	mu   sync.Mutex
	pods []ExecutedPod
}

// ExecutedPod is a pod whose process has ended.
type ExecutedPod struct {
	Job, Node, Message, Output string
	ExitCode                   int
	Started, Ended             time.Time
	// Environment is that of the process, Arguments those of it.
	Environment, Arguments []string
}

// Pods returns the pods that have ended.
func (e *Executors) Pods() []ExecutedPod {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.pods)
}

// executorPod is a pod with a process.
type executorPod struct {
	cancel context.CancelFunc
	done   chan struct{}
	result ExecutedPod // after done
}

// syncExecutor starts the process of a pod of a Job, and writes the pod's status.
func (k *kubelet) syncExecutor(ctx context.Context, pod *corev1.Pod) error {
	path := "/api/v1/namespaces/" + pod.Namespace + "/pods/" + pod.Name
	p := k.executors[pod.UID]
	switch {
	case pod.DeletionTimestamp != nil:
		if p != nil {
			p.cancel()
			<-p.done
			delete(k.executors, pod.UID)
		}
		return k.machine.client.Delete(ctx, path, metav1.DeleteOptions{
			GracePeriodSeconds: new(int64), Preconditions: &metav1.Preconditions{UID: &pod.UID},
		})
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		return nil
	case p == nil:
		started, err := k.startExecutor(ctx, pod)
		if err != nil {
			waiting := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: err.Error()}}
			return k.writeExecutor(ctx, path, pod, corev1.PodPending, waiting)
		}
		k.executors[pod.UID] = started
		running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}
		return k.writeExecutor(ctx, path, pod, corev1.PodRunning, running)
	}
	select {
	case <-p.done:
	default:
		return nil
	}
	phase := corev1.PodSucceeded
	if p.result.ExitCode != 0 {
		phase = corev1.PodFailed
	}
	return k.writeExecutor(ctx, path, pod, phase, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		ExitCode: int32(p.result.ExitCode), Message: p.result.Message,
		StartedAt: metav1.NewTime(p.result.Started), FinishedAt: metav1.NewTime(p.result.Ended),
	}})
}

func (k *kubelet) writeExecutor(ctx context.Context, path string, pod *corev1.Pod, phase corev1.PodPhase, state corev1.ContainerState) error {
	container := corev1.ContainerStatus{Name: pod.Spec.Containers[0].Name, Image: pod.Spec.Containers[0].Image, State: state}
	return k.machine.client.Patch(ctx, path+"/status", controlplane.StrategicMergePatch, fields{"status": corev1.PodStatus{
		Phase: phase, ContainerStatuses: []corev1.ContainerStatus{container},
	}})
}

// startExecutor starts the process of a pod, with its Secret and nothing but the environment of its container.
func (k *kubelet) startExecutor(ctx context.Context, pod *corev1.Pod) (*executorPod, error) {
	e := k.machine.executors
	if e.Hook != nil {
		if err := e.Hook(pod.Labels["batch.kubernetes.io/job-name"]); err != nil {
			return nil, err
		}
	}
	dir := filepath.Join(e.Dir, string(pod.UID))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	container := &pod.Spec.Containers[0]
	report := filepath.Join(dir, "termination-log")
	replaced := []string{container.TerminationMessagePath, report}
	for _, v := range pod.Spec.Volumes {
		if v.Secret == nil {
			continue
		}
		var secret corev1.Secret
		if err := k.machine.client.Get(ctx, "/api/v1/namespaces/"+pod.Namespace+"/secrets/"+v.Secret.SecretName, &secret); err != nil {
			return nil, err
		}
		for _, m := range container.VolumeMounts {
			if m.Name == v.Name {
				replaced = append(replaced, m.MountPath, dir)
			}
		}
		for name, value := range secret.Data {
			if err := os.WriteFile(filepath.Join(dir, name), value, os.FileMode(*v.Secret.DefaultMode)); err != nil {
				return nil, err
			}
		}
	}
	var args []string
	for _, a := range slices.Concat(container.Command[1:], container.Args) {
		args = append(args, strings.NewReplacer(replaced...).Replace(a))
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	cmd := exec.CommandContext(ctx, e.Program, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	cmd.Env = []string{}
	for _, v := range container.Env {
		if v.ValueFrom == nil || v.ValueFrom.FieldRef == nil || v.ValueFrom.FieldRef.FieldPath != "spec.nodeName" {
			cancel()
			return nil, fmt.Errorf("variable %s is not known here", v.Name)
		}
		cmd.Env = append(cmd.Env, v.Name+"="+pod.Spec.NodeName)
	}
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	p := &executorPod{cancel: cancel, done: make(chan struct{})}
	p.result = ExecutedPod{Job: pod.Labels["batch.kubernetes.io/job-name"], Node: k.machine.Name, Started: time.Now(), Environment: cmd.Env, Arguments: cmd.Args}
	if err := cmd.Start(); err != nil {
		cancel()
		return nil, err
	}
	go func() {
		defer cancel()
		defer close(p.done)
		err := cmd.Wait()
		p.result.ExitCode = cmd.ProcessState.ExitCode()
		if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
			p.result.ExitCode = 137
		}
		message, _ := os.ReadFile(report) // the message of a container without one is empty
		p.result.Message, p.result.Output, p.result.Ended = string(message), output.String(), time.Now()
		e.mu.Lock()
		e.pods = append(e.pods, p.result)
		e.mu.Unlock()
		_ = os.RemoveAll(dir)
	}()
	return p, nil
}

// stopExecutors ends the processes of the pods, as the end of the machine does.
func (k *kubelet) stopExecutors() {
	for _, p := range k.executors {
		p.cancel()
		<-p.done
	}
	clear(k.executors)
}
