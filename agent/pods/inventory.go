package pods

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
)

// Options configure an Inventory.
type Options struct {
	// Runtime lists the pods; nil means that there is no runtime, and so no pods.
	Runtime Runtime
	// Specifications describe the pods; may be nil.
	Specifications Specifications
	// Forbidden reports whether the API server has refused the report of an eviction of the pod
	// with this UID. It answers without I/O; nil means never.
	Forbidden func(uid string) bool
	// Hierarchy is the tree with the pods' cgroups.
	Hierarchy *cgroup.Hierarchy
	Procfs    kernel.FS
	// CgroupRoot is the kubelet's setting of that name; empty is "/".
	CgroupRoot string
	// TrustAnnotations and KubeletAbsent are the arguments of [Inventory.Configure].
	TrustAnnotations []string
	KubeletAbsent    bool
	// Tree makes repeated measurements cheap and shows when to list. It may be nil.
	Tree Tree
	Log  *slog.Logger // nil discards the log
}

// Inventory is the list of pods on the node. Its methods are safe for concurrent use. All
// return at once except Run, Sync, WatchKubelets, KubeletProcesses,
// [Inventory.SystemCgroups] and [Inventory.ForeignContainers].
type Inventory struct {
	runtime    *trackedRuntime // nil if there is none
	specs      Specifications
	forbidden  func(uid string) bool // nil means never
	hierarchy  *cgroup.Hierarchy
	procfs     kernel.FS
	cgroupRoot string
	log        *slog.Logger

	rules          atomic.Pointer[rules]
	current        atomic.Pointer[listSnapshot]
	status         atomic.Pointer[Status]
	refresh        chan struct{} // a list is requested
	runtimeChanged chan struct{} // the runtime or a walk reported a change

	mu              sync.Mutex // locked by Sync and Close
	locations       map[string]*location
	cgroups         *cgroupCache
	kubelets        []evict.KubeletProcess
	trustedKubelets []evict.KubeletProcess // never changed in place: snapshots share it
	kubeletsErr     error                  // why kubelets could not be looked for
	kubeletsScanned time.Time              // when kubelets was found
	kubeletScan     atomic.Pointer[kubeletScan]
	scanRequests    chan struct{} // a scan for kubelets is requested
	// stat returns the owner and the mode of the file that a path leads to.
	stat func(path string) (owner uint32, mode fs.FileMode, err error)

	// Used by the goroutine that measures.
	readings        readings
	measuredOf      *listSnapshot // last
	lastMeasurement Snapshot
	lastWalk        atomic.Pointer[walkResult] // nil while there are no walks

	listReplacedMu sync.Mutex
	listReplaced   chan struct{} // closed when current is next replaced: see Changed
}

// trackedRuntime is the runtime with its last answers. Only Sync uses its fields, except
// watched.
type trackedRuntime struct {
	Runtime
	list      List
	partial   map[string]time.Time      // by sandbox ID: since when lists lack the pod or a container of it
	listed    time.Time                 // when a list was last complete
	requested time.Time                 // when that list was requested
	attempted time.Time                 // when the last list was requested, whatever the result
	answered  bool                      // the last list arrived, complete or not
	err       error                     // of the last list
	watched   atomic.Pointer[time.Time] // since when the runtime reports changes; nil while it does not
}

// rules are the settings of [Inventory.Configure].
type rules struct {
	trustedNamespaces []string
	kubeletAbsent     bool
}

// New returns an empty Inventory. It performs no I/O and starts no goroutine.
func New(o Options) *Inventory {
	log := o.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	i := &Inventory{
		specs: o.Specifications, forbidden: o.Forbidden, hierarchy: o.Hierarchy, procfs: o.Procfs, cgroupRoot: o.CgroupRoot, log: log,
		refresh: make(chan struct{}, 1), runtimeChanged: make(chan struct{}, 1), listReplaced: make(chan struct{}), scanRequests: make(chan struct{}, 1),
		locations: map[string]*location{}, cgroups: newCgroupCache(o.Hierarchy), stat: statFile,
		readings: readings{tree: o.Tree, known: map[uint64]*reading{}},
	}
	if o.Runtime != nil {
		i.runtime = &trackedRuntime{Runtime: o.Runtime}
	}
	i.rules.Store(&rules{trustedNamespaces: slices.Clone(o.TrustAnnotations), kubeletAbsent: o.KubeletAbsent})
	i.current.Store(&listSnapshot{guard: i.guard(nil, nil)})
	i.updateStatus()
	return i
}

// Configure sets in which namespaces annotations are trusted even on a kubelet's pods, and
// whether no kubelet is declared to run here. Pods that an earlier kubelet made then belong to
// evictd. It applies from the next list.
func (inv *Inventory) Configure(trustAnnotations []string, kubeletAbsent bool) {
	inv.rules.Store(&rules{trustedNamespaces: slices.Clone(trustAnnotations), kubeletAbsent: kubeletAbsent})
	inv.Refresh()
}

// Refresh requests a new list.
func (inv *Inventory) Refresh() { notify(inv.refresh) }

// Changed returns a channel that is closed when the list is next updated.
func (inv *Inventory) Changed() <-chan struct{} {
	inv.listReplacedMu.Lock()
	defer inv.listReplacedMu.Unlock()
	return inv.listReplaced
}

// LastAttempt returns when the last finished list was requested, whether or not it succeeded;
// zero before the first. A pod that was started before then is known, unless that list failed or
// was incomplete.
func (inv *Inventory) LastAttempt() time.Time { return inv.current.Load().attempted }

// Close closes all descriptors. Later measurements have no pods.
func (inv *Inventory) Close() error {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	inv.publish(&listSnapshot{guard: inv.current.Load().guard, trustedKubelets: inv.trustedKubelets})
	return inv.cgroups.close()
}

func (inv *Inventory) publish(snap *listSnapshot) {
	inv.current.Store(snap)
	inv.listReplacedMu.Lock()
	defer inv.listReplacedMu.Unlock()
	close(inv.listReplaced)
	inv.listReplaced = make(chan struct{})
}

// Sync updates the list once; Run calls it repeatedly. The error is what could not be
// listed; the last known state of that stays.
func (inv *Inventory) Sync(ctx context.Context) error {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	var err error
	if inv.runtime != nil {
		err = inv.listRuntime(ctx, inv.runtime)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	inv.publish(inv.buildSnapshot(time.Now()))
	inv.cgroups.closeUnused()
	inv.updateStatus()
	return err
}

// listRuntime lists the runtime, and logs when that starts or stops failing.
func (inv *Inventory) listRuntime(ctx context.Context, r *trackedRuntime) error {
	requested := time.Now()
	list, err := r.List(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	now := time.Now()
	r.attempted = requested
	r.answered = err == nil || errors.Is(err, ErrPartial)
	switch {
	case err == nil:
		r.list, r.partial, r.listed, r.requested = list, nil, now, requested
	case errors.Is(err, ErrPartial):
		r.mergePartial(list, now)
	}
	if err != nil {
		err = fmt.Errorf("list pods of %s: %w", r.Name(), err)
	}
	switch {
	case err != nil && (r.err == nil || r.err.Error() != err.Error()):
		if r.listed.IsZero() {
			inv.log.Warn("could not list pods; none is known yet", "endpoint", r.Name(), "error", err)
		} else {
			inv.log.Warn("could not list pods; using the last known list", "endpoint", r.Name(), "error", err, "known_since", r.listed)
		}
	case err == nil && (r.err != nil || r.listed == now && inv.current.Load().listed.IsZero()):
		inv.log.Info("listed pods", "endpoint", r.Name(), "runtime", list.Software, "version", list.Version, "pods", len(list.Pods))
	}
	r.err = err
	return err
}

// missingRetention is how long a pod or container is kept that is missing in incomplete
// lists. If its cgroup is removed, it is not kept so long.
const missingRetention = time.Minute

// mergePartial replaces the last list by an incomplete one, and adds to that the pods and live
// containers that only the last list has, for missingRetention. The time is kept by sandbox, on
// purpose: it is a pod's ([Explanation].KeptSince), so all that a pod lacks is kept equally
// long.
func (r *trackedRuntime) mergePartial(list List, now time.Time) {
	since := make(map[string]time.Time)
	keep := func(id string) bool {
		if since[id] = r.partial[id]; since[id].IsZero() {
			since[id] = now
		}
		return now.Sub(since[id]) < missingRetention
	}
	index := make(map[string]int, len(list.Pods))
	for i := range list.Pods {
		index[list.Pods[i].Sandbox.ID] = i
	}
	for _, before := range r.list.Pods {
		i, ok := index[before.Sandbox.ID]
		if !ok {
			if keep(before.Sandbox.ID) {
				list.Pods = append(list.Pods, before)
			}
			continue
		}
		p := &list.Pods[i]
		for _, c := range before.Containers {
			if c.live() && !slices.ContainsFunc(p.Containers, func(o Container) bool { return o.ID == c.ID }) && keep(before.Sandbox.ID) {
				p.Containers = append(p.Containers, c)
			}
		}
	}
	r.list, r.partial = list, since
}

// Status is the state of an Inventory.
type Status struct {
	// DeclaredAbsent reports that the configuration has no runtime.
	DeclaredAbsent bool
	// Endpoint names the runtime. Connected reports that it answers, even if incompletely.
	// Error is the last error, empty if there was none.
	Endpoint  string
	Connected bool
	Error     string
	// LastSync is when the list was last complete; zero for never.
	LastSync time.Time
	// RuntimeName and RuntimeVersion are the runtime's own.
	RuntimeName    string
	RuntimeVersion string
	// Watched reports that the runtime reports changes, so that they are not found by listing.
	Watched bool
	// Pods and Containers count what runs. Unproven counts the containers whose cgroup is not
	// proven to be theirs alone.
	Pods, Containers, Unproven int
}

// Status returns the state of the Inventory.
func (inv *Inventory) Status() Status {
	s := *inv.status.Load()
	s.Watched = inv.watched()
	return s
}

// updateStatus computes the Status from the runtime and the current list.
func (inv *Inventory) updateStatus() {
	snap := inv.current.Load()
	s := Status{DeclaredAbsent: inv.runtime == nil, LastSync: snap.listed}
	if r := inv.runtime; r != nil {
		s.Endpoint, s.Connected, s.RuntimeName, s.RuntimeVersion = r.Name(), r.answered, r.list.Software, r.list.Version
		switch {
		case r.err != nil:
			s.Error = r.err.Error()
		case !r.answered:
			s.Error = "not listed yet"
		}
	}
	s.Pods = len(snap.pods)
	for _, p := range snap.pods {
		s.Containers += len(p.containers)
		for _, c := range p.containers {
			if c.unproven != "" {
				s.Unproven++
			}
		}
	}
	inv.status.Store(&s)
}
