package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/evictd/evictd/tests/node"
)

// workload is an object that has one pod with the label app: NAME.
type workload struct {
	name string
	kind string
	// template is the pod's specification. Its first container, or init container if that
	// is not a sidecar, is the hog.
	template map[string]any
}

type fields = map[string]any

// workloadPaths are the paths of the objects of each kind below /apis.
var workloadPaths = map[string]string{
	"Deployment": "/apis/apps/v1/namespaces/default/deployments", "StatefulSet": "/apis/apps/v1/namespaces/default/statefulsets",
	"DaemonSet": "/apis/apps/v1/namespaces/default/daemonsets", "Job": "/apis/batch/v1/namespaces/default/jobs", "Pod": "/api/v1/namespaces/default/pods",
}

// hogContainer is a container that takes hogSize when it receives SIGUSR1.
func hogContainer(name string) fields {
	return hogWith(name, "grow", "-bytes", strconv.Itoa(hogSize), "-delay", "24h")
}

// hogWith is a container that runs the hog with other arguments.
func hogWith(name string, args ...string) fields {
	return fields{"name": name, "image": node.HogImage, "imagePullPolicy": "Never", "args": args}
}

// podSpec returns the specification of a pod on the node's network.
func podSpec(restartPolicy string, containers ...fields) fields {
	return fields{
		"hostNetwork": true, "restartPolicy": restartPolicy, "automountServiceAccountToken": false, "enableServiceLinks": false,
		"containers": containers,
	}
}

// manifest returns the object.
func (w *workload) manifest() fields {
	labels := fields{"app": w.name}
	meta := fields{"name": w.name, "labels": labels}
	template := fields{"metadata": fields{"labels": labels}, "spec": w.template}
	set := fields{"selector": fields{"matchLabels": labels}, "template": template}
	switch w.kind {
	case "Deployment", "DaemonSet":
	case "StatefulSet":
		set["serviceName"] = w.name
	case "Job":
		set = fields{"backoffLimit": 0, "template": template, "podFailurePolicy": fields{"rules": []fields{
			{"action": "Ignore", "onPodConditions": []fields{{"type": "DisruptionTarget", "status": "True"}}},
		}}}
	case "Pod":
		set = w.template
	}
	return fields{"metadata": meta, "spec": set}
}

// create creates the workload.
func (c *kubeNode) create(w *workload) {
	c.t.Helper()
	body, err := json.Marshal(w.manifest())
	if err != nil {
		c.t.Fatal(err)
	}
	c.must("POST", workloadPaths[w.kind], string(body))
}

// remove deletes the workload and its pods, and waits until these are gone.
func (c *kubeNode) remove(w *workload) {
	c.t.Helper()
	// "Orphan" would leave the pods, "Foreground" the object until the pods are gone.
	c.must("DELETE", workloadPaths[w.kind]+"/"+w.name, `{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"Background","gracePeriodSeconds":1}`)
	c.until("end of the pods of "+w.name, func() bool {
		return !slices.ContainsFunc(c.events.last(w.name), func(s podState) bool { return !s.deleted })
	})
}

// waitRunning waits until a pod of the workload runs that is none of the others, and returns
// it.
func (c *kubeNode) waitRunning(w *workload, others ...string) podState {
	c.t.Helper()
	var found podState
	c.until("running pod of "+w.name, func() bool {
		for _, s := range c.events.last(w.name) {
			if !s.deleted && s.DeletionTimestamp == nil && !slices.Contains(others, string(s.UID)) && w.runs(&s.Pod) && len(c.hogs(&s.Pod)) > 0 {
				found = s
				return true
			}
		}
		return false
	})
	return found
}

// runs reports whether all containers of a pod of the workload run. While its hog is an init
// container, that and the sidecars do.
func (w *workload) runs(p *corev1.Pod) bool {
	statuses := p.Status.ContainerStatuses
	if w.hogIsInit() {
		statuses = p.Status.InitContainerStatuses
	} else if p.Status.Phase != corev1.PodRunning {
		return false
	}
	return len(statuses) > 0 && !slices.ContainsFunc(statuses, func(s corev1.ContainerStatus) bool { return s.State.Running == nil })
}

// hogIsInit reports whether the hog is an init container.
func (w *workload) hogIsInit() bool { return w.name == "init" }

// podCgroup returns the pod's cgroup in the hierarchy of a controller.
func (c *kubeNode) podCgroup(controller string, p *corev1.Pod) string {
	path, err := c.n.CgroupPath(controller, c.n.PodCgroup(node.QoS(p.Status.QOSClass), string(p.UID)))
	if err != nil {
		c.t.Fatal(err)
	}
	return path
}

// process is a process that runs the image.
type process struct {
	pid  int
	args []string // nothing or nonsense while it dies and its memory is released
}

// pids returns the processes of a pod, with those of its sandbox.
func (c *kubeNode) pids(p *corev1.Pod) []int {
	dir := c.podCgroup("pids", p)
	files, _ := filepath.Glob(filepath.Join(dir, "*", "cgroup.procs")) // fails for a malformed pattern
	var pids []int
	for _, file := range append(files, filepath.Join(dir, "cgroup.procs")) {
		content, err := os.ReadFile(file)
		if err != nil {
			continue // removed
		}
		for text := range strings.FieldsSeq(string(content)) {
			if pid, err := strconv.Atoi(text); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// image returns a process if it runs the image and is not the pause process. Before runc
// executes the image, it does not.
func image(pid int) (process, bool) {
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil || filepath.Base(exe) != "hog" {
		return process{}, false
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	args := strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
	return process{pid, args}, err == nil && !slices.Equal(args, []string{"/hog", "pause"})
}

// processes returns the processes of the pod that run the image.
func (c *kubeNode) processes(p *corev1.Pod) []process {
	var all []process
	for _, pid := range c.pids(p) {
		if process, ok := image(pid); ok {
			all = append(all, process)
		}
	}
	return all
}

// hogs returns the processes of the pod that take hogSize when they receive SIGUSR1.
func (c *kubeNode) hogs(p *corev1.Pod) []process {
	return slices.DeleteFunc(c.processes(p), func(p process) bool { return len(p.args) < 2 || p.args[1] != "grow" })
}

// grow makes the hog of a pod grow.
func (c *kubeNode) grow(p *corev1.Pod) {
	c.t.Helper()
	hogs := c.hogs(p)
	if len(hogs) != 1 {
		c.t.Fatalf("pod %s has %d hogs; want 1", p.Name, len(hogs))
	}
	fd, err := unix.PidfdOpen(hogs[0].pid, 0)
	c.check(err)
	defer unix.Close(fd)
	// A hog that has just started ignores the signal until it waits for it.
	c.until("growth of the hog of "+p.Name, func() bool {
		err := unix.PidfdSendSignal(fd, unix.SIGUSR1, nil, 0)
		return errors.Is(err, unix.ESRCH) || resident(hogs[0].pid) >= grownSize
	})
}

// grownSize is more than a hog uses before it grows.
const grownSize = 32 * mebibyte

// restarted returns the logs of containers of a pod that the kubelet has started more than
// once: each start has a log, which the kubelet numbers. With an empty log the runtime had
// created the container but the image did not run.
func (c *kubeNode) restarted(p *corev1.Pod) []string {
	logs, err := filepath.Glob(filepath.Join("/var/log/pods", p.Namespace+"_"+p.Name+"_"+string(p.UID), "*", "[1-9]*.log"))
	if err != nil {
		c.t.Fatal(err)
	}
	return slices.DeleteFunc(logs, func(log string) bool {
		st, err := os.Stat(log)
		return err != nil || st.Size() == 0
	})
}
