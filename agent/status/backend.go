package status

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/disks"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/execute"
	"github.com/evictd/evictd/agent/kube"
	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/agent/loop"
	"github.com/evictd/evictd/agent/metrics"
	"github.com/evictd/evictd/agent/pods"
	"github.com/evictd/evictd/agent/reclaim"
	selffencing "github.com/evictd/evictd/agent/selffence/driver"
	"github.com/evictd/evictd/agent/shutdown"
	"github.com/evictd/evictd/agent/shutdown/driver"
	"github.com/evictd/evictd/agent/shutdown/logind"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/agent/state"
	"github.com/evictd/evictd/agent/version"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/meminfo"
)

// Options are the sources of a [Backend].
type Options struct {
	Procfs, Cgroupfs, StateDir string // paths
	Hierarchy                  *cgroup.Hierarchy
	// View returns the loop's last view, nil before its first iteration.
	View       func() *loop.View
	Inventory  *pods.Inventory
	Disks      *disks.Watch
	UsageMeter *disks.UsageMeter
	Reclaimer  *reclaim.Reclaimer
	Records    *execute.Records
	Store      *state.Store
	Lanes      *lanes.Set
	Shutdown   *driver.Driver
	DelayLock  *logind.DelayLock
	// WebWarning returns why metrics are not served; "" if they are.
	WebWarning func() string
	// Accounting is the memory accounting in force: that of the start.
	Accounting   config.MemoryAccounting
	LastShutdown shutdown.LastBoot // how the previous boot ended
	Warnings     []string          // of the start
	Facts        *kube.Facts       // of evictd-kube; nil if none is configured
	// Orders returns the evictions that evictd-kube reports, and Fences the state of the evicted
	// pods' fences; nil if there are none.
	Orders func() kube.OrdersStatus
	Fences func() FenceStatus
	// NodeObject returns what evictd-kube maintains on the Node object; nil if there is none.
	NodeObject func() kube.NodeStatus
	// SelfFencing returns the state of self-fencing; nil if there is none.
	SelfFencing func() selffencing.Status
	// Reload reads the configuration again, and returns when it is in force.
	Reload func(context.Context) error
}

// Backend serves the loop's last view and the state of the other parts to the control
// socket and the readiness checks. It never waits for the loop.
type Backend struct {
	o          Options
	started    time.Time
	proactive  proactiveReports
	loadResult atomic.Pointer[LoadResult]
}

// New returns a [Backend] of a daemon that starts now.
func New(o Options) *Backend {
	b := &Backend{o: o, started: time.Now()}
	b.loadResult.Store(&LoadResult{At: b.started})
	return b
}

// Status implements control.Source.
func (b *Backend) Status() control.Status {
	now := time.Now()
	s := control.Status{
		Version: version.Of().String(), PID: os.Getpid(), Started: b.started, At: now,
		Node: control.Node{
			Name: hostname(), ProcFS: b.o.Procfs, CgroupFS: b.o.Cgroupfs,
			CgroupVersion: b.o.Hierarchy.Version.String(),
		},
		Records: b.o.Records.List(),
	}
	s.Missing = b.missing()
	s.Ready = len(s.Missing) == 0
	for _, l := range b.o.Lanes.Statuses(now) {
		s.Lanes = append(s.Lanes, laneStatus(&l))
	}
	s.Warnings = append(s.Warnings, b.o.Warnings...)
	if err := b.o.Store.Err(); err != nil {
		s.Warnings = append(s.Warnings, state.NotSavedMessage+": "+err.Error())
	}
	if why := b.o.WebWarning(); why != "" {
		s.Warnings = append(s.Warnings, why)
	}
	s.Runtime = runtimeStatus(b.o.Inventory.Status())
	if b.o.Facts != nil {
		s.Kubernetes = b.kubernetesStatus(now)
		s.Warnings = append(s.Warnings, b.kubernetesWarnings(now)...)
	}
	if b.o.SelfFencing != nil {
		fencing := b.o.SelfFencing()
		s.SelfFencing = selfFencingStatus(fencing)
		s.Warnings = append(s.Warnings, selfFencingWarnings(fencing)...)
	}
	s.Shutdown = b.shutdownStatus()
	for _, r := range append(b.o.Reclaimer.Reports(), b.proactive.snapshot()...) {
		s.Reclaims = append(s.Reclaims, reclaimStatus(&r))
	}
	slices.SortStableFunc(s.Reclaims, func(a, b control.Reclaim) int { return a.At.Compare(b.At) })
	filesystems := b.o.Disks.Statuses(now)
	s.Layout = layoutOf(b.o.Disks.Layout(), filesystems)
	for _, f := range filesystems {
		s.Filesystems = append(s.Filesystems, filesystemStatus(&f, now))
	}
	s.Config = b.configStatus()
	v := b.o.View()
	if v == nil {
		s.Mode = control.Mode{DryRun: true, Why: control.List[string]{"the first observation is not complete yet"}}
		return s
	}
	s.Mode = control.Mode{DryRun: v.Mode.DryRun, Why: v.Mode.Reasons, Reporting: v.Mode.Reporting}
	s.Signals = signals(v, now)
	if s.Kubernetes != nil {
		b.compareKubelet(&s, v)
	}
	s.Conditions = v.Orders.Conditions
	if s.Shutdown.Phase != phaseIdle {
		s.Conditions = append(slices.Clone(s.Conditions), signal.NodeShutdown)
		slices.Sort(s.Conditions)
	}
	s.Victims = v.State.Victims
	s.DryRunVictims = dryRunVictims(v)
	s.Futile = v.Futile
	s.Config.Files = v.Config.Files
	s.Pods = control.Pods{Count: len(v.Snapshot.Pods), Eligible: v.Eligible()}
	s.Warnings = append(s.Warnings, warnings(v)...)
	return s
}

// missing returns the readiness checks that fail, each with its detail.
func (b *Backend) missing() (list control.List[string]) {
	for _, c := range b.Checks() {
		if result, detail := c.Run(); result == metrics.Fail {
			list = append(list, c.Name+": "+detail)
		}
	}
	return list
}

// signals returns the status of every signal, with the amount that dry run adds.
func signals(v *loop.View, now time.Time) []control.SignalStatus {
	statuses := control.SignalStatuses(v.Policy, v.Observations, &v.State, v.Orders.Waiting, now)
	control.AddKubelet(statuses, v.Policy, v.KubeletHard, &v.Observations, now)
	control.AddDryRun(statuses, v.Policy.WouldFree(&v.State, v.Snapshot.Pods))
	return statuses
}

// dryRunVictims returns the pods that dry run counts as gone, in the order in
// which they were chosen.
func dryRunVictims(v *loop.View) (list control.List[control.DryRunVictim]) {
	for _, p := range v.State.DryRunVictims {
		at := slices.IndexFunc(v.Snapshot.Pods, func(pod evict.Pod) bool { return pod.UID == p.UID })
		if at >= 0 {
			list = append(list, control.DryRunVictim{Pod: v.Snapshot.Pods[at].Key(), UID: p.UID, Cause: p.Cause})
		}
	}
	return list
}

func warnings(v *loop.View) []string {
	var w []string
	for _, n := range v.Config.Notices {
		w = append(w, n.String())
	}
	if len(v.Snapshot.Pods) > 0 && v.Eligible() == 0 {
		w = append(w, "no pod is eligible for eviction: pressure can't be relieved")
	}
	if warning := notObserved(v); warning != "" {
		w = append(w, warning)
	}
	return w
}

// notObserved returns a warning that lists the configured signals that are not
// observed on this node; "" if all are.
func notObserved(v *loop.View) string {
	names := ""
	var seen [signal.Count]bool
	for _, t := range v.Policy.Thresholds {
		if v.Observations[t.Signal].Status == signal.NotObserved && !t.Derived && !seen[t.Signal] {
			seen[t.Signal] = true
			if names != "" {
				names += ", "
			}
			names += t.Signal.String()
		}
	}
	if names == "" {
		return ""
	}
	return "configured but not observed here: " + names
}

// laneStatus converts a lane's status for the control socket.
func laneStatus(l *lanes.Status) control.Lane {
	lane := control.Lane{
		Name: l.Name, Up: l.State == lanes.Up, State: string(l.State), Why: l.Reason, Since: l.Since,
		Raised: l.Alarms, Missed: l.Missed, Reopened: l.Reopened,
	}
	if l.Interval > 0 {
		period := l.Interval.Seconds()
		lane.PeriodSeconds = &period
	}
	return lane
}

func runtimeStatus(s pods.Status) control.Runtime {
	return control.Runtime{
		Endpoint: s.Endpoint, DeclaredAbsent: s.DeclaredAbsent, Connected: s.Connected,
		Name: s.RuntimeName, Version: s.RuntimeVersion, Error: s.Error, LastSync: s.LastSync,
	}
}

func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return name
}

var errNoView = errors.New("the first observation is not complete yet; try again in a second")

// Explain implements control.Source. It ranks the pods of the last view for a
// signal.
func (b *Backend) Explain(s signal.Signal) (control.Explanation, error) {
	v := b.o.View()
	if v == nil {
		return control.Explanation{}, errNoView
	}
	now := time.Now()
	ranked, exempt := v.Policy.Rank(v.Snapshot.Pods, s, &v.State, now)
	e := control.Explanation{
		At: v.Time, Signal: s, Exempt: b.explainFacts(v, exempt),
		Observation: signals(v, now)[s],
	}
	for i, r := range ranked {
		e.Ranking = append(e.Ranking, b.candidate(s, v, ranked, i, r))
	}
	if s.IsMemory() {
		if err := b.addReclaim(v, e.Ranking); err != nil {
			e.Notes = append(e.Notes, "could not read the reclaim stalls of pods: "+err.Error())
		}
	}
	for _, c := range b.o.Inventory.ForeignContainers() {
		e.ForeignContainers = append(e.ForeignContainers, control.ForeignContainer{Cgroup: c.Cgroup, Processes: c.Processes, MemoryBytes: c.Memory, Command: c.Command})
	}
	if note := b.systemDirectories(s, v); note != "" {
		e.Notes = append(e.Notes, note)
	}
	if s.IsMemory() {
		e.OOMScores = b.oomScores(v)
		e.Memory = b.uncountedMemory()
		if cgroups := b.o.Inventory.SystemCgroups(loop.MaxSystemCgroups); len(cgroups) > 0 {
			note := "the largest cgroups outside the pods:"
			for _, c := range cgroups {
				note += " " + c.Cgroup + " " + control.Bytes(c.Memory)
			}
			e.Notes = append(e.Notes, note)
		}
		e.Notes = append(e.Notes, "swap is ignored, as in the kubelet")
		if b.o.Accounting == config.AccountingKubelet {
			e.Notes = append(e.Notes, "active file cache counts as used, as in the kubelet; memoryAccounting: available counts it as reclaimable")
		}
	}
	e.Notes = append(e.Notes, kubeletNotes(&e.Observation)...)
	e.Notes = append(e.Notes, b.reportNotes(v, now)...)
	e.Notes = append(e.Notes, arrivalNotes(v, now)...)
	e.Notes = append(e.Notes, endingNotes(v, now)...)
	if v.Mode.DryRun {
		e.Notes = append(e.Notes, "dry run: nothing is evicted")
		for _, p := range dryRunVictims(v) {
			e.Notes = append(e.Notes, "dry run: "+p.Pod+" would have been evicted for "+p.Cause+" and counts as gone")
		}
	}
	if o := v.Observations[s]; o.Status == signal.NotObserved {
		e.Notes = append(e.Notes, "the signal is not observed on this node; the ranking is hypothetical")
	}
	return e, nil
}

func (b *Backend) candidate(s signal.Signal, v *loop.View, ranked []evict.Ranked, i int, r evict.Ranked) control.Candidate {
	pod := &v.Snapshot.Pods[r.Index()]
	description := b.o.Inventory.Describe(r.UID)
	c := control.Candidate{
		Ranked: r, QoS: pod.QoSClass(), RequestOrigin: description.RequestOrigin,
		IgnoredAnnotations: description.Ignored, Why: control.RankReason(s, ranked, i),
		Facts: factsOf(b.o.Facts, r.UID, time.Now()),
	}
	if usage := v.DiskUsage[r.UID]; s.IsDisk() {
		c.Disk = &control.DiskUsage{By: usage.Methods, Incomplete: usage.Incomplete}
		if !usage.Oldest.IsZero() {
			c.Disk.AgeSeconds = new(time.Since(usage.Oldest).Seconds())
		}
	}
	for j := range pod.Containers {
		container := &pod.Containers[j]
		status := control.Container{Name: container.Name}
		for _, h := range v.Snapshot.Handles[r.UID].Containers {
			if h.Name == container.Name {
				status.Cgroup = h.Cgroup
			}
		}
		if u := &container.Usage; s.IsDisk() && !pod.DiskUnknown {
			status.Usage = new(u.Rootfs + u.Logs)
			if s.IsInodes() {
				status.Usage = new(u.Inodes + u.LogsInodes)
			}
		}
		if s.IsMemory() {
			if pod.HasStats {
				usage := container.Usage.Memory
				status.Usage = &usage
			}
			if q := container.Resources.Requests.Memory; q != nil {
				request := q.Value()
				status.Request = &request
			}
		}
		c.Containers = append(c.Containers, status)
	}
	return c
}

// systemDirectories returns a note with the largest directories outside the pods
// if a disk signal is futile, else "".
func (b *Backend) systemDirectories(s signal.Signal, v *loop.View) string {
	if !s.IsDisk() || !slices.ContainsFunc(v.Futile, func(f evict.Futility) bool { return f.Signal == s }) {
		return ""
	}
	note := ""
	for _, d := range LargestDirectories(b.o.Disks, b.o.UsageMeter, s) {
		amount := d.Bytes
		if s.IsInodes() {
			amount = d.Inodes
		}
		note += " " + d.Path + " " + control.Amount(s, amount)
	}
	if note == "" {
		return "the search for the largest directories outside the pods is in progress; try again in a few minutes"
	}
	return "the largest directories outside the pods:" + note
}

// addReclaim adds the stalls in direct reclaim of each pod.
func (b *Backend) addReclaim(v *loop.View, ranking []control.Candidate) error {
	stalls, err := b.o.Lanes.ReclaimStalls()
	if err != nil || stalls == nil {
		return err
	}
	for i := range ranking {
		r := &control.ReclaimStalls{}
		for _, c := range v.Snapshot.Handles[ranking[i].UID].Containers {
			s := stalls[c.CgroupID]
			r.Count += s.Count
			r.Seconds += s.Time.Seconds()
			r.LongestSeconds = max(r.LongestSeconds, s.Longest.Seconds())
		}
		ranking[i].Reclaim = r
	}
	return nil
}

// uncountedMemory reads the memory outside the memory signals.
func (b *Backend) uncountedMemory() *control.UncountedMemory {
	info, err := meminfo.Read(kernel.FS(b.o.Procfs))
	if err != nil {
		return &control.UncountedMemory{}
	}
	unaccounted, total, free := int64(info.Unaccounted()), int64(info.SwapTotal), int64(info.SwapFree)
	return &control.UncountedMemory{UnaccountedBytes: &unaccounted, SwapTotalBytes: &total, SwapFreeBytes: &free}
}
