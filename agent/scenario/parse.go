package scenario

import (
	"maps"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/config/strict"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
)

// APIVersion and Kind are the header of a scenario file.
const (
	APIVersion = "evictd.io/v1alpha1"
	Kind       = "Scenario"
)

// Parse parses a scenario. name is the file's name for messages. The error is a
// [strict.Problems] with all errors.
func Parse(name string, data []byte) (*Scenario, error) {
	d, root, err := strict.Parse(name, data)
	if err != nil {
		return nil, err
	}
	var f file
	d.Decode(root, &f)
	s := f.build(d)
	if err := d.Err(); err != nil {
		return nil, err
	}
	s.Notices = d.Notices()
	return s, nil
}

// build returns the scenario of the file and reports errors to d.
func (f *file) build(d *strict.Decoder) *Scenario {
	checkHeader(d, "apiVersion", f.APIVersion, APIVersion)
	checkHeader(d, "kind", f.Kind, Kind)
	configuration := f.configuration(d)
	capacity := f.Node.Capacity.bySignal(f.Node.Filesystems.Layout)
	s := &Scenario{capacity: capacity, oomCapacity: f.Node.CapacityForOOMScore.or(f.Node.Capacity.Memory.or(0))}
	if configuration != nil {
		s.policy = configuration.Policy(f.Node.Filesystems.Layout)
		checkPercentages(d.At("node.capacity"), s.policy.Thresholds, &capacity)
	}
	f.Node.check(d.At("node"))
	f.buildLoop(d, s)
	s.pods = buildPods(d, "pods", f.Pods)
	f.buildSteps(d, s)
	f.checkRunningPods(d, s)
	return s
}

func checkHeader(d *strict.Decoder, field, found, want string) {
	switch {
	case d.Failed(field) || found == want:
	case !d.Has(field):
		d.Errorf(field, "is missing; want %s", want)
	default:
		d.Errorf(field, "is %s; want %s", strict.Quote(found), want)
	}
}

// configuration returns the file's configuration, the defaults if it has none, and nil
// if it has errors.
func (f *file) configuration(d *strict.Decoder) *config.Config {
	if f.Config == nil {
		return config.FromNode(d.At("config"), nil)
	}
	return f.Config.Config
}

// check reports capacities of 0.
func (n *fileNode) check(d *strict.Decoder) {
	c := &n.Capacity
	for _, one := range []struct {
		field string
		value *amount
	}{
		{"capacity.memory", c.Memory}, {"capacity.allocatableMemory", c.AllocatableMemory},
		{"capacity.nodefs", c.NodeFs}, {"capacity.nodefsInodes", c.NodeFsInodes},
		{"capacity.imagefs", c.ImageFs}, {"capacity.imagefsInodes", c.ImageFsInodes},
		{"capacity.containerfs", c.ContainerFs}, {"capacity.containerfsInodes", c.ContainerFsInodes},
		{"capacity.pids", c.PIDs}, {"capacityForOOMScore", n.CapacityForOOMScore},
	} {
		if one.value != nil && *one.value == 0 && !d.Failed(one.field) {
			d.Errorf(one.field, "is 0; want a quantity above 0")
		}
	}
}

// bySignal returns the capacity of each signal, nil if unknown. A filesystem that is
// part of another one has the other's capacity.
func (c *fileCapacity) bySignal(l evict.Layout) [signal.Count]*int64 {
	either := func(a, b *amount) *amount {
		if a != nil {
			return a
		}
		return b
	}
	image, imageInodes := c.ImageFs, c.ImageFsInodes
	if l == evict.SingleFs {
		image, imageInodes = either(image, c.NodeFs), either(imageInodes, c.NodeFsInodes)
	}
	below, belowInodes := c.NodeFs, c.NodeFsInodes
	if l == evict.ImageFs {
		below, belowInodes = image, imageInodes
	}
	var capacity [signal.Count]*int64
	for s, a := range map[signal.Signal]*amount{
		signal.MemoryAvailable:            c.Memory,
		signal.AllocatableMemoryAvailable: either(c.AllocatableMemory, c.Memory),
		signal.NodeFsAvailable:            c.NodeFs,
		signal.NodeFsInodesFree:           c.NodeFsInodes,
		signal.ImageFsAvailable:           image,
		signal.ImageFsInodesFree:          imageInodes,
		signal.ContainerFsAvailable:       either(c.ContainerFs, below),
		signal.ContainerFsInodesFree:      either(c.ContainerFsInodes, belowInodes),
		signal.PIDAvailable:               c.PIDs,
	} {
		capacity[s] = (*int64)(a)
	}
	return capacity
}

// capacityFields has the field name of each signal's capacity.
var capacityFields = [signal.Count]string{
	signal.MemoryAvailable:            "memory",
	signal.AllocatableMemoryAvailable: "allocatableMemory",
	signal.NodeFsAvailable:            "nodefs",
	signal.NodeFsInodesFree:           "nodefsInodes",
	signal.ImageFsAvailable:           "imagefs",
	signal.ImageFsInodesFree:          "imagefsInodes",
	signal.ContainerFsAvailable:       "containerfs",
	signal.ContainerFsInodesFree:      "containerfsInodes",
	signal.PIDAvailable:               "pids",
}

// checkPercentages reports missing capacities that a percentage threshold needs, each
// once. A derived threshold uses the capacity of its source.
func checkPercentages(d *strict.Decoder, thresholds []evict.Threshold, capacity *[signal.Count]*int64) {
	var reported [signal.Count]bool
	for _, t := range thresholds {
		if t.Derived || capacity[t.Signal] != nil || reported[t.Signal] || d.Failed(capacityFields[t.Signal]) {
			continue
		}
		switch {
		case t.Value.IsPercentage():
			d.Errorf(capacityFields[t.Signal], "is missing; the threshold of %s is %s of it", t.Signal, t.Value)
		case t.MinReclaim.IsPercentage():
			d.Errorf(capacityFields[t.Signal], "is missing; the minimum reclaim of %s is %s of it", t.Signal, t.MinReclaim)
		default:
			continue
		}
		reported[t.Signal] = true
	}
}

// buildLoop sets up the closed loop if the file has one.
func (f *file) buildLoop(d *strict.Decoder, s *Scenario) {
	if !f.ClosedLoop {
		return
	}
	if f.Node.Capacity.Memory == nil {
		if !d.Failed("node.capacity.memory") {
			d.Errorf("node.capacity.memory", "is missing; a closed loop computes memory.available from it")
		}
		return
	}
	s.closedLoop = &closedLoop{
		memory:      *s.capacity[signal.MemoryAvailable],
		allocatable: *s.capacity[signal.AllocatableMemoryAvailable],
		system:      f.Node.System.Memory.or(0),
	}
	notice := func(path string, given signals) {
		for _, sig := range slices.Sorted(maps.Keys(given)) {
			if sig.IsMemory() {
				d.Noticef(strict.Key(path, sig.String()), "is ignored: a closed loop computes it")
			}
		}
	}
	for i := range f.Steps {
		at := strict.Index("steps", i)
		notice(at+".signals", f.Steps[i].Signals)
		notice(at+".afterReclaim.containers", f.Steps[i].AfterReclaim.Containers)
		notice(at+".afterReclaim.images", f.Steps[i].AfterReclaim.Images)
	}
}

func buildPods(d *strict.Decoder, path string, files []filePod) []pod {
	pods := make([]pod, 0, len(files))
	for i := range files {
		pods = append(pods, files[i].build(d.At(strict.Index(path, i))))
	}
	return pods
}

func (f *file) buildSteps(d *strict.Decoder, s *Scenario) {
	var order stepOrder
	for i := range f.Steps {
		from := &f.Steps[i]
		path := strict.Index("steps", i)
		at := order.next(d, path, from.At)
		from.FileCache.check(d, path+".fileCache")
		s.steps = append(s.steps, step{
			at: at, gone: from.Gone, deleted: from.Deleted, usage: from.Usage, signals: from.Signals,
			cache: from.FileCache, stalled: from.Stalled,
			add:   buildPods(d, path+".add", from.Add),
			admit: buildPods(d, path+".admit", from.Admit),
			after: map[evict.ReclaimKind]signals{
				evict.ReclaimContainers: from.AfterReclaim.Containers,
				evict.ReclaimImages:     from.AfterReclaim.Images,
			},
		})
	}
}

// check reports signals that do not count file cache.
func (c fileCache) check(d *strict.Decoder, path string) {
	for _, sig := range slices.Sorted(maps.Keys(c)) {
		if !sig.IsMemory() {
			d.Errorf(strict.Key(path, sig.String()), "does not count file cache; want %s or %s", signal.MemoryAvailable, signal.AllocatableMemoryAvailable)
		}
	}
}

// stepOrder checks that steps are in time order.
type stepOrder struct{ last time.Duration }

// next returns the time of the step at path.
func (o *stepOrder) next(d *strict.Decoder, path string, given *instant) time.Duration {
	var at time.Duration
	switch {
	case given != nil:
		at = time.Duration(*given)
	case !d.Failed(path + ".at"):
		d.Errorf(path+".at", "is missing; want a duration from the start such as 90s")
	}
	if at < o.last && !d.Failed(path+".at") {
		d.Errorf(path+".at", "%v is earlier than the step above, at %v; want steps in time order", at, o.last)
	}
	o.last = max(o.last, at)
	return at
}

// checkRunningPods tracks the running pods through the steps. It reports pods that are
// added twice, and steps that refer to pods that are not running.
func (f *file) checkRunningPods(d *strict.Decoder, s *Scenario) {
	running := map[string]*pod{}
	uids := map[string]string{} // namespace/name by UID of the running pods
	add := func(path string, pods []pod) {
		for i := range pods {
			p := &pods[i]
			at := d.At(strict.Index(path, i))
			switch other, taken := uids[p.UID]; {
			case p.Name == "" || p.Namespace == "":
				continue
			case running[p.Key()] != nil:
				at.Errorf("name", "pod %s is already running", p.Key())
				continue
			case taken:
				at.Errorf("uid", "%s is the UID of the running pod %s", strict.Quote(p.UID), other)
				continue
			}
			running[p.Key()], uids[p.UID] = p, p.Key()
		}
	}
	add("pods", s.pods)
	for i := range s.steps {
		st := &s.steps[i]
		path := strict.Index("steps", i)
		left := map[string]*pod{}
		for j, key := range st.gone {
			p := running[key]
			if p == nil {
				d.Errorf(strict.Index(path+".gone", j), "no pod %s is running; want the namespace/name of a running pod", strict.Quote(key))
				continue
			}
			left[key] = p
			delete(running, key)
			delete(uids, p.UID)
		}
		add(path+".add", st.add)
		for _, key := range slices.Sorted(maps.Keys(st.usage)) {
			usage := st.usage[key]
			at := strict.Key(path+".usage", key)
			switch {
			case running[key] != nil:
				usage.check(d.At(at), running[key])
			case left[key] != nil:
				usage.check(d.At(at), left[key])
				d.Noticef(at, "has no effect: the pod is gone in this step")
			default:
				d.Errorf(at, "no pod of this name is running; want the namespace/name of a running pod")
			}
		}
		for _, key := range slices.Sorted(maps.Keys(st.deleted)) {
			if running[key] == nil {
				d.Errorf(strict.Key(path+".deleted", key), "no pod of this name is running; want the namespace/name of a running pod")
			}
		}
		seen := map[string]bool{}
		for j := range st.admit {
			if p := &st.admit[j]; seen[p.Key()] {
				d.Errorf(strict.Index(path+".admit", j)+".name", "pod %s is listed twice", p.Key())
			} else {
				seen[p.Key()] = true
			}
		}
	}
}
