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

// Options are what an Inventory is made of.
type Options struct {
	// Runtime lists the pods; nil says that there is no runtime, and so no pods.
	Runtime Runtime
	// Specifications says what the pods are; nil where nothing does.
	Specifications Specifications
	// Hierarchy is the tree in which the pods' cgroups are.
	Hierarchy *cgroup.Hierarchy
	Procfs    kernel.FS
	// CgroupRoot is the kubelet's setting of that name; empty is "/".
	CgroupRoot string
	// TrustAnnotations and KubeletAbsent are as for [Inventory.Configure].
	TrustAnnotations []string
	KubeletAbsent    bool
	// Tree makes it cheap to measure what does not move, and tells when to list. It
	// may be nil.
	Tree Tree
	Log  *slog.Logger // nil writes none
}

// Inventory knows what runs on the node. Its methods are safe for concurrent
// use; all but Run, Sync, Outside, NotOurs, WatchKubelets and KubeletProcesses answer at once.
type Inventory struct {
	runtime    *tracked // nil where there is none
	specs      Specifications
	hierarchy  *cgroup.Hierarchy
	procfs     kernel.FS
	cgroupRoot string
	log        *slog.Logger

	rules   atomic.Pointer[rules]
	world   atomic.Pointer[world]
	status  atomic.Pointer[Status]
	refresh chan struct{} // a list is wanted now
	changed chan struct{} // the runtime says that something changed

	mu          sync.Mutex // held by Sync and Close
	places      map[string]*place
	groups      *groups
	kubelets    []evict.KubeletProcess
	trusted     []evict.KubeletProcess // replaced, never changed
	kubeletsErr error                  // why they could not be looked for
	scanned     time.Time              // when kubelets was found
	sighted     atomic.Pointer[sighting]
	lookAgain   chan struct{} // kubelets are to be looked for
	// stat returns the owner and the mode of the file that a path leads to.
	stat func(path string) (owner uint32, mode fs.FileMode, err error)

	// Of whoever measures.
	readings readings
	measured *world // last
	last     Snapshot
	walk     atomic.Pointer[walk] // nil while there is none

	nextMu sync.Mutex
	next   chan struct{} // closed when the world is next replaced
}

// tracked is the runtime with what it said last. It belongs to Sync, but for
// watched.
type tracked struct {
	Runtime
	list    List
	partial map[string]time.Time      // by sandbox, since when it is kept although lists lack some of it
	listed  time.Time                 // when a list was last complete, and
	asked   time.Time                 // when that was asked for
	tried   time.Time                 // when the last list was, complete or not
	answers bool                      // the last list came, complete or not
	err     error                     // of the last list
	watched atomic.Pointer[time.Time] // since when changes are told; nil while they are not
}

// rules are the configuration's part in what is believed.
type rules struct {
	trusted       []string
	kubeletAbsent bool
}

// New returns an Inventory that knows nothing yet. It asks nobody and starts
// nothing.
func New(o Options) *Inventory {
	log := o.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	i := &Inventory{
		specs: o.Specifications, hierarchy: o.Hierarchy, procfs: o.Procfs, cgroupRoot: o.CgroupRoot, log: log,
		refresh: make(chan struct{}, 1), changed: make(chan struct{}, 1), next: make(chan struct{}), lookAgain: make(chan struct{}, 1),
		places: map[string]*place{}, groups: newGroups(o.Hierarchy), stat: statFile,
		readings: readings{tree: o.Tree, known: map[uint64]*reading{}},
	}
	if o.Runtime != nil {
		i.runtime = &tracked{Runtime: o.Runtime}
	}
	i.rules.Store(&rules{trusted: slices.Clone(o.TrustAnnotations), kubeletAbsent: o.KubeletAbsent})
	i.world.Store(&world{guard: i.guard(nil, nil)})
	i.note()
	return i
}

// Configure says in which namespaces annotations are believed even on a
// kubelet's pods, and whether it is declared that no kubelet runs here, so that
// what one has left behind is evictd's. It counts from the next list on.
func (i *Inventory) Configure(trustAnnotations []string, kubeletAbsent bool) {
	i.rules.Store(&rules{trusted: slices.Clone(trustAnnotations), kubeletAbsent: kubeletAbsent})
	i.Refresh()
}

// Refresh asks for a new list now.
func (i *Inventory) Refresh() { poke(i.refresh) }

// Changed returns a channel that is closed when what is listed is next brought
// up to date.
func (i *Inventory) Changed() <-chan struct{} {
	i.nextMu.Lock()
	defer i.nextMu.Unlock()
	return i.next
}

// Tried returns when the runtime had last been asked for a list that has come, or
// that it has failed to give; zero for never. What runs since before then is known
// as far as it can be.
func (i *Inventory) Tried() time.Time { return i.world.Load().tried }

// Close gives all descriptors up. What is measured afterwards has no pods.
func (i *Inventory) Close() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.publish(&world{guard: i.world.Load().guard, trusted: i.trusted})
	return i.groups.close()
}

func (i *Inventory) publish(w *world) {
	i.world.Store(w)
	i.nextMu.Lock()
	defer i.nextMu.Unlock()
	close(i.next)
	i.next = make(chan struct{})
}

// Sync brings the list up to date once: what Run does again and again. The error
// says what could not be listed; what was known of that stays.
func (i *Inventory) Sync(ctx context.Context) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	var err error
	if i.runtime != nil {
		err = i.list(ctx, i.runtime)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	i.publish(i.build(time.Now()))
	i.groups.closeUnused()
	i.note()
	return err
}

// list asks the runtime, and logs when that begins or ends to fail.
func (i *Inventory) list(ctx context.Context, s *tracked) error {
	asked := time.Now()
	list, err := s.List(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	now := time.Now()
	s.tried = asked
	s.answers = err == nil || errors.Is(err, ErrPartial)
	switch {
	case err == nil:
		s.list, s.partial, s.listed, s.asked = list, nil, now, asked
	case errors.Is(err, ErrPartial):
		s.complete(list, now)
	}
	if err != nil {
		err = fmt.Errorf("list pods of %s: %w", s.Name(), err)
	}
	switch {
	case err != nil && (s.err == nil || s.err.Error() != err.Error()):
		if s.listed.IsZero() {
			i.log.Warn("pods can't be listed, none is known yet", "source", s.Name(), "error", err)
		} else {
			i.log.Warn("pods can't be listed, going on with what was known", "source", s.Name(), "error", err, "known_since", s.listed)
		}
	case err == nil && (s.err != nil || s.listed == now && i.world.Load().listed.IsZero()):
		i.log.Info("pods are listed", "source", s.Name(), "runtime", list.Software, "version", list.Version, "pods", len(list.Pods))
	}
	s.err = err
	return err
}

// keepMissing is how long what an incomplete list lacks is taken to be there
// still. What has a cgroup goes earlier, with that.
const keepMissing = time.Minute

// complete takes an incomplete list and adds to it what was known before of
// what it lacks.
func (s *tracked) complete(list List, now time.Time) {
	since := make(map[string]time.Time)
	keep := func(id string) bool {
		if since[id] = s.partial[id]; since[id].IsZero() {
			since[id] = now
		}
		return now.Sub(since[id]) < keepMissing
	}
	index := make(map[string]int, len(list.Pods))
	for n := range list.Pods {
		index[list.Pods[n].Sandbox.ID] = n
	}
	for _, before := range s.list.Pods {
		n, ok := index[before.Sandbox.ID]
		if !ok {
			if keep(before.Sandbox.ID) {
				list.Pods = append(list.Pods, before)
			}
			continue
		}
		p := &list.Pods[n]
		for _, c := range before.Containers {
			if c.live() && !slices.ContainsFunc(p.Containers, func(o Container) bool { return o.ID == c.ID }) && keep(before.Sandbox.ID) {
				p.Containers = append(p.Containers, c)
			}
		}
	}
	s.list, s.partial = list, since
}

// Status is how the Inventory fares.
type Status struct {
	// DeclaredAbsent tells that there is no runtime.
	DeclaredAbsent bool
	// Endpoint names the runtime. Connected tells that it answers, if not with
	// everything; Error is what went wrong last, empty where nothing did.
	Endpoint  string
	Connected bool
	Error     string
	// LastSync is when the list was last complete; zero for never.
	LastSync time.Time
	// RuntimeName and RuntimeVersion are what the runtime says of itself.
	RuntimeName    string
	RuntimeVersion string
	// Watched tells that changes are told at once and not found by listing.
	Watched bool
	// Pods and Containers count what runs, Unproven those of the containers
	// whose cgroup could not be proven to be theirs alone.
	Pods, Containers, Unproven int
}

// Status returns how the Inventory fares.
func (i *Inventory) Status() Status {
	s := *i.status.Load()
	s.Watched = i.watched()
	return s
}

// note keeps the status of the runtime and of the world.
func (i *Inventory) note() {
	w := i.world.Load()
	s := Status{DeclaredAbsent: i.runtime == nil, LastSync: w.listed}
	if r := i.runtime; r != nil {
		s.Endpoint, s.Connected, s.RuntimeName, s.RuntimeVersion = r.Name(), r.answers, r.list.Software, r.list.Version
		switch {
		case r.err != nil:
			s.Error = r.err.Error()
		case !r.answers:
			s.Error = "not asked yet"
		}
	}
	s.Pods = len(w.pods)
	for _, p := range w.pods {
		s.Containers += len(p.members)
		for _, m := range p.members {
			if m.unproven != "" {
				s.Unproven++
			}
		}
	}
	i.status.Store(&s)
}
