package bpf

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Options are the options of a [Sampler]. Zero means the default.
type Options struct {
	// MinPeriod and MaxPeriod bound the time between two ticks. Defaults: 200 µs and 50 ms.
	MinPeriod, MaxPeriod time.Duration
	// CPUs is the number of online CPUs. Until a fill rate has been measured, it
	// determines the rate that is assumed. It also bounds the drift of the kernel's
	// counters. Default: the number of CPUs that this process may use.
	CPUs int
	// Rows is the number of cgroups that the table of a walk has room for. Default: 4096.
	Rows int
	// WalkLimit is the time after which a walk, which runs in a softirq, gives up.
	// Default: 5 ms.
	WalkLimit time.Duration
}

// Sampler is the timer in the kernel. It ticks from [OpenSampler] until Close.
//
// Arm, SetPods, SetWalk and Close must not be called concurrently with each other.
// Rearm, Kick, Walk, Rows, Sample and Stats may be called concurrently, but not while
// Close runs.
type Sampler struct {
	programs samplerPrograms
	maps     samplerMaps

	control mapped[samplerControl]
	orders  mapped[samplerOrder]
	latest  mapped[samplerLatest]
	table   mapped[samplerTable]
	rows    mapped[samplerRow]

	mu     sync.Mutex
	want   samplerControl // the content of control
	pods   *anchor
	closed atomic.Bool
	cpus   int
	nodes  uint64 // NUMA nodes with memory when the sampler was opened, one bit each
	reads  ReadMethod
}

// The defaults of [Options].
const (
	// A tick that only reads the node takes less than 1 µs: less than 0.5 % of a CPU.
	defaultMinPeriod = 200 * time.Microsecond
	// Bounds the age of the latest sample, which readers get without a tick of their own.
	defaultMaxPeriod = 50 * time.Millisecond
	defaultRows      = 4096
	// A softirq delays everything else on its CPU.
	defaultWalkLimit = 5 * time.Millisecond
)

const (
	// The fill rates that periods are computed from, in bytes per second. At first each
	// CPU is assumed to clear pages at 3 GiB/s. The rate is at least 1 GiB/s in all, and
	// at most 12 GiB/s per CPU even if a counter jumps.
	rateStart   = 3 << 30
	rateFloor   = 1 << 30
	rateCeiling = 12 << 30
)

// OpenSampler loads the sampler and starts its timer, with no threshold armed. The
// sampler writes its records into ring. The error wraps [ErrUnavailable] if this kernel
// or this process can't run it.
func OpenSampler(ring *Ring, o Options) (_ *Sampler, err error) {
	if o.MinPeriod == 0 {
		o.MinPeriod = defaultMinPeriod
	}
	if o.MaxPeriod == 0 {
		o.MaxPeriod = defaultMaxPeriod
	}
	if o.CPUs == 0 {
		o.CPUs = runtime.NumCPU()
	}
	if o.Rows == 0 {
		o.Rows = defaultRows
	}
	if o.WalkLimit == 0 {
		o.WalkLimit = defaultWalkLimit
	}
	if o.MinPeriod < 0 || o.MaxPeriod < o.MinPeriod || o.CPUs < 0 || o.Rows < 0 || o.Rows > 1<<16 || o.WalkLimit < 0 {
		return nil, fmt.Errorf("open sampler: options %+v are out of range", o)
	}
	s := &Sampler{cpus: o.CPUs}
	defer func() {
		if err != nil {
			_ = s.Close()
		}
	}()
	if err := s.load(ring, o); err != nil {
		return nil, err
	}
	s.want = samplerControl{
		Floor: uint64(o.MinPeriod), Ceiling: uint64(o.MaxPeriod),
		RateStart: uint64(o.CPUs) * rateStart, RateFloor: rateFloor, RateCeiling: uint64(o.CPUs) * rateCeiling,
	}
	s.publish()
	code, err := run(s.programs.Start, nil, 0)
	if err != nil {
		return nil, unavailable("start sampler", err)
	}
	if err := startError(code); err != nil {
		return nil, unavailable("start sampler", err)
	}
	return s, nil
}

func (s *Sampler) load(ring *Ring, o Options) error {
	online, err := readNodes(nodesOnline)
	if err != nil {
		return fmt.Errorf("open sampler: %w", err)
	}
	// Read before the program start finds the nodes: if a node gets memory between the
	// two, NUMANodesChanged reports it.
	if s.nodes, err = readNodes(nodesWithMemory); err != nil {
		return fmt.Errorf("open sampler: %w", err)
	}
	if s.reads, err = samplerObject.load(func(spec *ebpf.CollectionSpec) error {
		return s.loadObject(spec, ring, o, online)
	}); err != nil {
		return unavailable("load sampler", err)
	}
	return s.mapObject()
}

func (s *Sampler) loadObject(spec *ebpf.CollectionSpec, ring *Ring, o Options, online uint64) error {
	for name, value := range map[string]uint64{
		samplerVarPageSize:    uint64(os.Getpagesize()),
		samplerVarOnlineNodes: online,
		samplerVarMaxRows:     uint64(o.Rows),
		samplerVarWalkLimit:   uint64(o.WalkLimit),
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	spec.Maps[samplerMapRows].MaxEntries = 2 * uint32(o.Rows)
	spec.Maps[samplerMapCgroups].MaxEntries = 4 * uint32(o.Rows)
	var objects struct {
		samplerPrograms
		samplerMaps
	}
	if err := spec.LoadAndAssign(&objects, withMapsOf(ring)); err != nil {
		return err
	}
	s.programs, s.maps = objects.samplerPrograms, objects.samplerMaps
	return nil
}

func (s *Sampler) mapObject() (err error) {
	const readWrite = unix.PROT_READ | unix.PROT_WRITE
	if s.control, err = mapArray[samplerControl](s.maps.Controls, readWrite); err != nil {
		return fmt.Errorf("open sampler: %w", err)
	}
	if s.orders, err = mapArray[samplerOrder](s.maps.Orders, readWrite); err != nil {
		return fmt.Errorf("open sampler: %w", err)
	}
	if s.latest, err = mapArray[samplerLatest](s.maps.Latests, unix.PROT_READ); err != nil {
		return fmt.Errorf("open sampler: %w", err)
	}
	if s.table, err = mapArray[samplerTable](s.maps.Tables, unix.PROT_READ); err != nil {
		return fmt.Errorf("open sampler: %w", err)
	}
	if s.rows, err = mapArray[samplerRow](s.maps.Rows, unix.PROT_READ); err != nil {
		return fmt.Errorf("open sampler: %w", err)
	}
	return nil
}

// startError returns the error for a return value of the programs start and kick, which
// is an enum in sampler.bpf.c.
func startError(code uint32) error {
	switch code {
	case 0:
		return nil
	case 1:
		return errors.New("the memory controller is off")
	case 2:
		return errors.New("no NUMA node found")
	case 3:
		return errNoTimer
	}
	return fmt.Errorf("unknown return value %d", code)
}

// ReadMethod returns the method by which the sampler reads the kernel's memory.
func (s *Sampler) ReadMethod() ReadMethod { return s.reads }

// publish writes want into the shared map. The sequence number is odd during the write,
// so that the timer never uses a part of it.
func (s *Sampler) publish() {
	s.want.Seq += 2
	shared := s.control.first()
	atomic.StoreUint64(&shared.Seq, s.want.Seq-1)
	odd := s.want
	odd.Seq--
	storeWords(shared, &odd)
	atomic.StoreUint64(&shared.Seq, s.want.Seq)
}

// SetPods sets the cgroup of all pods, by a descriptor of its directory in the tree of
// the memory controller; -1 sets none. The caller may close the descriptor afterwards.
// When the cgroup is removed, the sampler writes a [PodsRemoved], and the pods' figures are
// not valid until another cgroup is set.
func (s *Sampler) SetPods(dir int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Load() {
		return fmt.Errorf("set pods' cgroup: %w", os.ErrClosed)
	}
	var pods *anchor
	if dir >= 0 {
		found, err := openAnchor(dir)
		if err != nil {
			return fmt.Errorf("set pods' cgroup: %w", err)
		}
		pods = found
	}
	old := s.pods
	s.want.Pods, s.want.PodsId = 0, 0
	if s.pods = pods; pods != nil {
		s.want.Pods, s.want.PodsId = pods.cgroup, pods.id
	}
	s.publish()
	if err := old.close(); err != nil { // after publish, see take_control in sampler.bpf.c
		return fmt.Errorf("set pods' cgroup: %w", err)
	}
	return s.Kick()
}

// Kick makes the next tick happen now. It takes one system call. It does not allocate,
// even if it fails.
func (s *Sampler) Kick() error {
	if s.closed.Load() {
		return errKickClosed
	}
	code, err := run(s.programs.Kick, nil, 0)
	if err != nil {
		return err
	}
	return startError(code)
}

// Sample stores the figures of the latest tick in sample. It returns [ErrNoTick] before
// the first tick. It takes no system call and does not allocate, even if it fails.
func (s *Sampler) Sample(sample *Sample) error {
	var raw samplerLatest
	if err := s.read(&raw); err != nil {
		return err
	}
	sample.set(&raw.Sample)
	return nil
}

// read copies the latest tick. It retries while a tick changes it: the writer is a
// softirq that runs for microseconds.
func (s *Sampler) read(raw *samplerLatest) error {
	if s.closed.Load() {
		return errReadClosed
	}
	shared := s.latest.first()
	for range 1 << 16 {
		seq := atomic.LoadUint64(&shared.Seq)
		if seq == 0 {
			return ErrNoTick
		}
		if seq%2 != 0 {
			continue
		}
		loadWords(raw, shared)
		if atomic.LoadUint64(&shared.Seq) == seq {
			return nil
		}
	}
	return errReadBusy
}

// Inject writes a crossing into the ring as if the sampler had found it, so that
// everything behind the ring can be tested without memory pressure. It returns
// [ErrFull] if the ring has no room.
func (s *Sampler) Inject(c Crossing) error {
	raw := samplerCrossing{
		Kind: uint32(KindCrossing), Source: uint32(c.Source), Key: c.Key,
		LastAbove: uint64(c.LastAbove), Seen: uint64(c.Seen), Sent: uint64(c.Sent),
		Available: c.Available, Threshold: c.Threshold, Period: uint64(c.Period),
		Reference: c.Reference.raw(), At: c.First.raw(), Recent: c.Previous.raw(), Now: c.Latest.raw(),
		Sample: c.Sample.raw(),
	}
	if c.Waiting {
		raw.Waiting = 1
	}
	code, err := run(s.programs.Inject, unsafe.Pointer(&raw), unsafe.Sizeof(raw))
	if err != nil {
		return fmt.Errorf("inject crossing: %w", err)
	}
	if code != 0 {
		return fmt.Errorf("inject crossing: %w", ErrFull)
	}
	return nil
}

// ErrFull means that the ring has no room for a record.
var ErrFull = errors.New("the ring buffer is full")

// Close stops the timer and frees the sampler. Further calls do nothing.
func (s *Sampler) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Swap(true) {
		return nil
	}
	var errs []error
	// The timer's map is closed first: the kernel cancels the timer with the map's last
	// descriptor, and the timer reads the other maps until then.
	if s.maps.Clocks != nil {
		errs = append(errs, s.maps.Clocks.Close(), s.programs.Close())
	}
	errs = append(errs, s.pods.close(), s.control.unmap(), s.orders.unmap(), s.latest.unmap(), s.table.unmap(), s.rows.unmap())
	if s.maps.Clocks != nil {
		errs = append(errs, s.maps.Close())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close sampler: %w", err)
	}
	return nil
}
