//go:build bench

package cluster

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	kernelprocess "github.com/evictd/evictd/kernel/process"
	"github.com/evictd/evictd/tests/hog/stamp"
	"github.com/evictd/evictd/tests/trace"
)

const (
	// measureTimeout bounds each wait of an eviction: the kubelet looks every 10 s, and waits up to
	// 30 s for the end of its last victim.
	measureTimeout = 2 * time.Minute
	// kubeletPeriod is how often the kubelet looks at the signals. Each hog starts at a random time
	// within such a period.
	kubeletPeriod = 10 * time.Second
	// sampleInterval is the pause between two samples, and samplerPriority above that of evictd.
	sampleInterval  = 100 * time.Microsecond
	samplerPriority = 80
)

// The kubelet's own evictions at the threshold that evictd has otherwise: the kubelet gives its
// threshold on memory.available to the memory of all pods, too.
var kubeletEviction = fmt.Sprintf("evictionHard: {memory.available: \"%d\"}", podsThreshold)

func TestMeasureEvictd(t *testing.T) {
	measure(t, "evictd and evictd-kube", kubeNodeOptions{}, unitNice)
}

// In the DaemonSet evictd-kube has no nice value of its own.
func TestMeasureEvictdNice0(t *testing.T) {
	measure(t, "evictd and evictd-kube, which has nice 0 as in the DaemonSet", kubeNodeOptions{}, 0)
}

func TestMeasureKubelet(t *testing.T) {
	measure(t, "kubelet", kubeNodeOptions{eviction: kubeletEviction}, 0)
}

func TestMeasureKubeletMemcg(t *testing.T) {
	measure(t, "kubelet, kernelMemcgNotification", kubeNodeOptions{eviction: kubeletEviction + "\nkernelMemcgNotification: true"}, 0)
}

// measure measures one contender on a cluster of its own. Without options evictd evicts, and evictd-kube has a nice value.
func measure(t *testing.T, contender string, o kubeNodeOptions, kubeNice int) {
	file, count := os.Getenv(ResultsEnv), 15
	if text := os.Getenv(EvictionsEnv); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			t.Fatalf("%s is %q; want a number of at least 1", EvictionsEnv, text)
		}
		count = n
	}
	if !inNamespaces(t) {
		return
	}
	withEvictd := o.eviction == ""
	o.audit = withEvictd
	c := startKubeNodeWith(t, o)
	c.transition = 5 * time.Minute // evictd's default
	c.kubeNice = kubeNice
	m := &measurement{kubeNode: c, Evictions: Evictions{Contender: contender}}
	m.trace()
	if withEvictd {
		c.startEnforcing()
	}
	m.calm()
	m.create(&hogs)
	for range count {
		m.evictOne(withEvictd)
	}
	m.finish()
	line, err := json.Marshal(&m.Evictions)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", line)
	if file == "" {
		return
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Write(append(line, '\n'))
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// anywhere is the specification of a pod that tolerates all taints: the replacement comes to the
// only node of the cluster, which is under pressure for minutes.
func anywhere(containers ...fields) fields {
	spec := podSpec("Always", containers...)
	spec["tolerations"] = []fields{{"operator": "Exists"}}
	return spec
}

// hogs is the workload whose pods are evicted.
var hogs = workload{"hog", "Deployment", anywhere(hogContainer("main"))}

// calmPods is the number of other pods.
const calmPods = 3

// measurement measures the evictions of one contender.
type measurement struct {
	*kubeNode
	Evictions
	events *trace.Instance
	known  []string                 // the UIDs of earlier victims
	ends   map[string]time.Duration // of each victim's last process, by the name of the pod
}

// trace starts to record the signals that end processes.
func (m *measurement) trace() {
	m.t.Helper()
	instance, err := trace.Open("evictd-bench-cluster")
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() {
		if err := instance.Close(); err != nil {
			m.t.Error(err)
		}
	})
	if err := instance.Record("signal/signal_generate", "sig==9 || sig==15"); err != nil {
		m.t.Fatal(err)
	}
	m.events, m.ends = instance, map[string]time.Duration{}
}

func calmName(i int) string { return fmt.Sprint("calm-", i) }

// calm starts the other pods.
func (m *measurement) calm() {
	m.t.Helper()
	for i := range calmPods {
		w := &workload{calmName(i), "Deployment", anywhere(hogWith("main", "hold", "-bytes", "33554432"))}
		m.create(w)
		m.until("running pod of "+w.name, func() bool {
			p, ok := m.kubeNode.events.running(w.name)
			return ok && len(m.processes(&p.Pod)) > 0
		})
	}
}

// evictOne makes one pod cross the threshold and adds what followed.
func (m *measurement) evictOne(withEvictd bool) {
	m.t.Helper()
	p := m.waitRunning(&hogs, m.known...)
	m.known = append(m.known, string(p.UID))
	if withEvictd {
		m.until("eligible pod", func() bool { return m.eligible(string(p.UID)) })
	}
	time.Sleep(2*time.Second + rand.N(kubeletPeriod))
	v := m.observe(&hogs, &p.Pod)
	pids := []int{}
	for _, process := range m.processes(&p.Pod) {
		pids = append(pids, process.pid)
	}
	if err := m.events.Clear(); err != nil {
		m.t.Fatal(err)
	}
	s := startPodsSampler(m.kubeNode)
	ended := awaitEnd(m.t, pids)
	m.grow(&p.Pod)
	var end time.Duration
	select {
	case end = <-ended:
	case <-time.After(measureTimeout):
	}
	seen := s.stop(m.t)
	if end == 0 {
		m.NotEvicted++
		m.must("DELETE", "/api/v1/namespaces/default/pods/"+p.Name, `{"gracePeriodSeconds":1}`)
		return
	}
	m.ends[p.Name] = end
	signalled, ok := m.firstSignal(pids)
	if !ok {
		m.t.Fatalf("victim %v ended at %v without a signal, samples %+v", pids, end, seen)
	}
	if seen.below.at == 0 {
		m.t.Logf("victim %v got a signal at %v before the crossing, samples %+v", pids, signalled, seen)
		m.Early++
	} else {
		crossed := seen.crossedAt()
		m.Signalled = append(m.Signalled, (signalled - crossed).Microseconds())
		m.Ended = append(m.Ended, (end - crossed).Microseconds())
		m.Overshoot = append(m.Overshoot, (podsThreshold-seen.lowest)>>10)
	}
	m.follow(v, end)
}

// follow adds what the API server has shown after the end of a victim's last process.
func (m *measurement) follow(v *victim, end time.Duration) {
	m.t.Helper()
	wall, clock := time.Now(), stamp.Now()
	after := func(t time.Time) int64 { return (clock + t.Sub(wall) - end).Microseconds() }
	var replaced time.Time
	m.until("replacement", func() bool {
		replaced = v.replacement()
		return !replaced.IsZero()
	})
	m.Replaced = append(m.Replaced, after(replaced))
	m.until("end of the cgroup", func() bool {
		select {
		case <-v.done:
			return true
		default:
			return false
		}
	})
	reported, ok := first(m.kubeNode.events.of(string(v.pod.UID)), func(s *podState) bool {
		return s.Status.Phase == corev1.PodFailed && s.Status.Reason == "Evicted"
	})
	if ok {
		m.Reported = append(m.Reported, after(reported.at))
	} else {
		m.Unreported++
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.revived)+len(m.restarted(&v.pod)) > 0 {
		m.Restarts++
	}
}

// firstSignal returns when a process of the victim first got a signal.
func (m *measurement) firstSignal(pids []int) (time.Duration, bool) {
	m.t.Helper()
	signals, err := m.events.Kills()
	if err != nil {
		m.t.Fatal(err)
	}
	at := slices.IndexFunc(signals, func(k trace.Kill) bool { return slices.Contains(pids, k.PID) })
	if at < 0 {
		return 0, false
	}
	return signals[at].At, true
}

// finish counts the other pods that were evicted, and adds when the reports were sent and received.
func (m *measurement) finish() {
	m.t.Helper()
	for i := range calmPods {
		for _, p := range m.kubeNode.events.last(calmName(i)) {
			if p.Status.Phase == corev1.PodFailed {
				m.Bystanders++
			}
		}
	}
	received := m.received()
	if len(received) == 0 {
		return
	}
	sent, seen := m.reportsSent(), map[string]time.Time{}
	for _, r := range m.status().Records {
		seen[path.Base(r.Pod)] = r.LastGone
	}
	wall, clock := time.Now(), stamp.Now()
	for name, end := range m.ends {
		after := func(t time.Time) time.Duration { return clock + t.Sub(wall) - end }
		if r, s := received[name], sent[name]; r.IsZero() || len(s) == 0 {
			m.t.Logf("report of %s is not in both logs: sent at %v, received at %v", name, s, r)
		} else {
			m.t.Logf("report of %s: evictd saw the end after %v, the report was sent after %v and received after %v", name, after(seen[name]), after(s[0]), after(r))
			m.Sent = append(m.Sent, after(s[0]).Microseconds())
			m.Received = append(m.Received, after(r).Microseconds())
		}
	}
}

// received returns when the API server has received the first report about each victim, by its audit log.
func (m *measurement) received() map[string]time.Time {
	m.t.Helper()
	at := map[string]time.Time{}
	for _, w := range m.statusWrites() {
		if m.ends[w.pod] != 0 && at[w.pod].IsZero() && strings.HasSuffix(w.user, ":evictd-kube") {
			at[w.pod] = w.received
		}
	}
	return at
}

// awaitEnd sends the time at which the last of the processes has ended. It waits on a real-time thread: what reacts to the
// same deaths would else run before it, and the report of the eviction be seen before the end.
func awaitEnd(t *testing.T, pids []int) <-chan time.Duration {
	t.Helper()
	var fds []int
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			t.Fatal(err)
		}
		fds = append(fds, fd)
	}
	ended := make(chan time.Duration, 1)
	go func() {
		// The thread must not end with the goroutine: see startPodsSampler.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		_, notFIFO := kernelprocess.SetFIFO(samplerPriority)
		for _, fd := range fds {
			poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			for _, err := unix.Poll(poll, -1); errors.Is(err, unix.EINTR); _, err = unix.Poll(poll, -1) {
			}
		}
		now := stamp.Now()
		if notFIFO == nil {
			notFIFO = kernelprocess.EndFIFO(unix.Gettid())
		}
		if notFIFO != nil {
			t.Errorf("see the end of processes in time: %v", notFIFO)
		}
		ended <- now
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	return ended
}

// podsSampler samples what is left of the memory of all pods, as evictd and the kubelet compute it
// (allocatableMemory.available), on a thread of its own.
type podsSampler struct {
	usage, stat *os.File
	done        atomic.Bool
	result      chan podsSamples
}

// podsSamples are the samples around the first crossing of the threshold.
type podsSamples struct {
	above, below struct {
		at        time.Duration // CLOCK_MONOTONIC
		available int64
	}
	lowest int64
	err    error
}

// samplesPerStat is the number of samples after which memory.stat is read again, for the file cache
// that counts as available: that takes longer than a sample.
const samplesPerStat = 20

func startPodsSampler(c *kubeNode) *podsSampler {
	c.t.Helper()
	dir, err := c.n.CgroupPath("memory", c.n.Kubepods())
	if err != nil {
		c.t.Fatal(err)
	}
	s := &podsSampler{result: make(chan podsSamples, 1)}
	var errs [2]error
	s.usage, errs[0] = os.Open(filepath.Join(dir, "memory.usage_in_bytes"))
	s.stat, errs[1] = os.Open(filepath.Join(dir, "memory.stat"))
	if err := errors.Join(errs[:]...); err != nil {
		c.t.Fatal(err)
	}
	go func() {
		// The thread must not end with the goroutine: it may have started a process of the cluster,
		// which the kernel would kill then (PR_SET_PDEATHSIG).
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if _, err := kernelprocess.SetFIFO(samplerPriority); err != nil {
			s.result <- podsSamples{err: err}
			return
		}
		r := s.sample()
		r.err = errors.Join(r.err, kernelprocess.EndFIFO(unix.Gettid()))
		s.result <- r
	}()
	return s
}

func (s *podsSampler) sample() (r podsSamples) {
	r.lowest = podsLimit
	buffer := make([]byte, 8<<10)
	pause := unix.NsecToTimespec(int64(sampleInterval))
	var inactive, used int64
	for i := 0; !s.done.Load(); i++ {
		_ = unix.Nanosleep(&pause, nil) // after EINTR the sample is only early
		if i%samplesPerStat == 0 {
			if inactive, r.err = readNumber(s.stat, buffer, "total_inactive_file "); r.err != nil {
				return r
			}
		}
		if used, r.err = readNumber(s.usage, buffer, ""); r.err != nil {
			return r
		}
		now, available := stamp.Now(), podsLimit-(used-inactive)
		switch {
		case r.below.at != 0:
		case available < podsThreshold:
			r.below.at, r.below.available = now, available
		default:
			r.above.at, r.above.available = now, available
		}
		r.lowest = min(r.lowest, available)
	}
	return r
}

// readNumber reads the number after a prefix at the beginning of a line.
func readNumber(f *os.File, buffer []byte, prefix string) (int64, error) {
	n, err := f.ReadAt(buffer, 0)
	if n == 0 {
		return 0, err
	}
	for line := range bytes.Lines(buffer[:n]) {
		if text, ok := bytes.CutPrefix(line, []byte(prefix)); ok {
			return strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64)
		}
	}
	return 0, fmt.Errorf("%s has no line %q", f.Name(), prefix)
}

// stop ends the sampling.
func (s *podsSampler) stop(t *testing.T) podsSamples {
	t.Helper()
	s.done.Store(true)
	r := <-s.result
	if err := errors.Join(r.err, s.usage.Close(), s.stat.Close()); err != nil {
		t.Fatal(err)
	}
	return r
}

// crossedAt interpolates the time of the crossing.
func (r *podsSamples) crossedAt() time.Duration {
	if r.above.at == 0 || r.above.available <= r.below.available {
		return r.below.at
	}
	share := float64(r.above.available-podsThreshold) / float64(r.above.available-r.below.available)
	return r.above.at + time.Duration(share*float64(r.below.at-r.above.at))
}
