package cluster

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// load is what other pods do while pods are evicted. No pod of it uses much memory, so none is evicted.
type load struct {
	c       *kubeNode
	lasting []*workload
	began   time.Time
	stop    chan struct{}
	churn   sync.WaitGroup
	halt    func() // ends the churn

	mu     sync.Mutex
	made   int     // pods that have come and gone
	failed []error // requests
}

// churners is the number of pods that come and go at a time, churnPause the pause before the next one, and
// churnTimeout bounds each wait for one.
const churners, churnPause, churnTimeout = 2, 500 * time.Millisecond, 30 * time.Second

// startLoad starts pods that use the CPU and the disk, and begins to create and delete others. Of the first, one
// computes on as much of one CPU as a pod of class BestEffort gets, and one up to its limit; two others write records
// and sync each.
func (c *kubeNode) startLoad() *load {
	c.t.Helper()
	c.weighNode()
	journal := func() fields {
		return hogWith("main", "journal", "-path", "/journal", "-bytes", strconv.Itoa(4*mebibyte), "-rate", strconv.Itoa(mebibyte))
	}
	l := &load{c: c, began: time.Now(), stop: make(chan struct{}), lasting: []*workload{
		{"burn", "Deployment", podSpec("Always", hogWith("main", "burn"))},
		{"burn-limited", "Deployment", podSpec("Always", limited(hogWith("main", "burn", "-threads", "2"), "200m", "500m"))},
		{"journal", "Deployment", podSpec("Always", journal())},
		{"journal-limited", "Deployment", podSpec("Always", limited(journal(), "100m", "300m"))},
	}}
	l.halt = sync.OnceFunc(func() {
		close(l.stop)
		l.churn.Wait()
	})
	c.t.Cleanup(l.halt)
	for _, w := range l.lasting {
		c.create(w)
	}
	for _, w := range l.lasting {
		c.until("running pod of "+w.name, func() bool {
			p, ok := c.events.running(w.name)
			return ok && len(c.processes(&p.Pod)) > 0
		})
	}
	for i := range churners {
		l.churn.Go(func() {
			for n := 0; l.turn(fmt.Sprintf("churn-%d-%d", i, n)); n++ {
			}
		})
	}
	return l
}

// weighNode gives the cgroup of the node the CPU weight of that of this process. With a greater one the pods would take
// the CPU from the control plane, which stands for other machines.
func (c *kubeNode) weighNode() {
	c.t.Helper()
	content, err := os.ReadFile("/proc/self/cgroup")
	c.check(err)
	own := "/"
	for line := range strings.Lines(string(content)) { // of the unified hierarchy last
		if f := strings.SplitN(strings.TrimSpace(line), ":", 3); len(f) == 3 && (slices.Contains(strings.Split(f[1], ","), "cpu") || f[1] == "" && own == "/") {
			own = f[2]
		}
	}
	from, err := c.n.CgroupPath("cpu", own)
	c.check(err)
	to, err := c.n.CgroupPath("cpu", c.n.CgroupRoot())
	c.check(err)
	for _, file := range []string{"cpu.shares", "cpu.weight"} { // of cgroup v1 and v2; the root of v2 has none
		if weight, err := os.ReadFile(filepath.Join(from, file)); err == nil {
			c.check(os.WriteFile(filepath.Join(to, file), weight, 0))
			c.t.Logf("load: %s of %s is %s", file, to, bytes.TrimSpace(weight))
		}
	}
}

// limited gives a container a request and a limit of CPU, and more memory than it uses.
func limited(container fields, request, limit string) fields {
	container["resources"] = fields{
		"requests": fields{"cpu": request, "memory": "16Mi"},
		"limits":   fields{"cpu": limit, "memory": "64Mi"},
	}
	return container
}

// turn creates a pod and deletes it when it runs. It returns false when the load must stop.
func (l *load) turn(name string) bool {
	w := workload{name, "Pod", podSpec("Always", hogWith("main", "hold", "-bytes", strconv.Itoa(8*mebibyte)))}
	body, err := json.Marshal(w.manifest())
	if err == nil {
		_, err = l.c.request(http.MethodPost, workloadPaths[w.kind], "application/json", string(body))
	}
	if err == nil {
		l.await(func() bool {
			_, ok := l.c.events.running(name)
			return ok
		})
		_, err = l.c.request(http.MethodDelete, workloadPaths[w.kind]+"/"+name, "application/json", `{"gracePeriodSeconds":1}`)
	}
	gone := err == nil && l.await(func() bool {
		pods := l.c.events.last(name)
		return len(pods) > 0 && pods[0].deleted
	})
	if pods := l.c.events.last(name); len(pods) > 0 && pods[0].Status.Reason == "Evicted" {
		l.c.t.Errorf("load: pod %s was evicted: %s", name, pods[0].Status.Message)
	}
	l.note(gone, err)
	select {
	case <-l.stop:
		return false
	case <-time.After(churnPause):
		return true
	}
}

// note counts a pod that has come and gone, or a request that has failed.
func (l *load) note(gone bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err != nil:
		l.failed = append(l.failed, err)
	case gone:
		l.made++
	}
}

// await waits until ok, and returns false after a time or when the load must stop.
func (l *load) await(ok func() bool) bool {
	for deadline := time.Now().Add(churnTimeout); !ok(); {
		select {
		case <-l.stop:
			return false
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// end stops the load, and fails the test unless it lasted until now.
func (l *load) end() {
	t := l.c.t
	t.Helper()
	l.halt()
	lasted := time.Since(l.began)
	for _, w := range l.lasting {
		pods := l.c.events.last(w.name)
		last := pods[len(pods)-1]
		var used time.Duration
		for _, p := range l.c.processes(&last.Pod) {
			used += cpuTime(p.pid)
		}
		t.Logf("load %s (%s): %v of CPU in %v", w.name, last.Status.QOSClass, used, lasted.Round(time.Second))
		if len(pods) != 1 || last.Status.Phase != corev1.PodRunning || last.Status.ContainerStatuses[0].RestartCount > 0 || used == 0 {
			t.Errorf("load %s: %d pods, the last %s with status %+v; want one that runs all the time", w.name, len(pods), last.Name, last.Status)
		}
	}
	t.Logf("load: %d other pods came and went", l.made)
	if l.made == 0 || len(l.failed) > l.made/10 {
		t.Errorf("load: %d pods came and went, and %d requests failed: %v; want some pods, and few failures", l.made, len(l.failed), l.failed)
	}
}

// cpuTime returns the CPU time that a process has used; 0 if it does not exist.
func cpuTime(pid int) time.Duration {
	content, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(content), ") ")
	var ticks int64
	if f := strings.Fields(rest); len(f) > 12 { // from the third one on; utime and stime are the 14th and 15th (proc_pid_stat(5))
		for _, field := range f[11:13] {
			n, _ := strconv.ParseInt(field, 10, 64)
			ticks += n
		}
	}
	return time.Duration(ticks) * time.Second / 100 // USER_HZ
}
