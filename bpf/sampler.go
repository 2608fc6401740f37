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

// Options of a [Sampler]. Zero means the default.
type Options struct {
	// Floor and Ceiling bound the time between two ticks: 200 µs and 50 ms.
	Floor, Ceiling time.Duration
	// CPUs of the node that are online: as many as this process may use. They say how fast memory
	// can fill until it is known, and by how much the kernel's counters may drift.
	CPUs int
	// Rows is how many cgroups the table of a walk has room for: 4096.
	Rows int
	// WalkLimit is how long a walk may take, in a softirq, before it gives up: 5 ms.
	WalkLimit time.Duration
}

// Sampler is the timer in the kernel. It ticks from [OpenSampler] on.
//
// Arm, SetPods, SetWalk, Close are for one goroutine at a time among themselves.
// Rearm, Kick, Walk, Rows, Sample and Stats may be called at any time by any, but
// not while Close runs.
type Sampler struct {
	programs samplerPrograms
	maps     samplerMaps

	control mapped[samplerControl]
	orders  mapped[samplerOrder]
	latest  mapped[samplerLatest]
	table   mapped[samplerTable]
	rows    mapped[samplerRow]

	mu     sync.Mutex
	want   samplerControl // what control says
	pods   *anchor
	closed atomic.Bool
	cpus   int
	nodes  uint64 // those with memory, when it was opened
	reads  Reads
}

const (
	defaultFloor   = 200 * time.Microsecond
	defaultCeiling = 50 * time.Millisecond
	defaultRows    = 4096
	defaultLimit   = 5 * time.Millisecond

	// How fast memory fills: at first each CPU is thought to clear pages at 3 GiB/s;
	// never is it thought to be less than 1 GiB/s in all, nor more than 12 GiB/s a
	// CPU, whatever a counter that jumps looks like.
	rateStart   = 3 << 30
	rateFloor   = 1 << 30
	rateCeiling = 12 << 30
)

// OpenSampler loads the sampler and starts its timer, with no threshold armed. It
// writes its records into ring. An error wraps [ErrUnavailable] where this kernel
// or this process can't have it.
func OpenSampler(ring *Ring, o Options) (_ *Sampler, err error) {
	if o.Floor == 0 {
		o.Floor = defaultFloor
	}
	if o.Ceiling == 0 {
		o.Ceiling = defaultCeiling
	}
	if o.CPUs == 0 {
		o.CPUs = runtime.NumCPU()
	}
	if o.Rows == 0 {
		o.Rows = defaultRows
	}
	if o.WalkLimit == 0 {
		o.WalkLimit = defaultLimit
	}
	if o.Floor < 0 || o.Ceiling < o.Floor || o.CPUs < 0 || o.Rows < 0 || o.Rows > 1<<16 || o.WalkLimit < 0 {
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
		Floor: uint64(o.Floor), Ceiling: uint64(o.Ceiling),
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
	// Before the nodes are looked for, so that one which comes meanwhile shows later.
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
	if err := spec.LoadAndAssign(&objects, replacing(ring)); err != nil {
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

// startError says what start's answer means, an enum of sampler.bpf.c.
func startError(code uint32) error {
	switch code {
	case 0:
		return nil
	case 1:
		return errors.New("the memory controller is off")
	case 2:
		return errors.New("no NUMA node was found")
	case 3:
		return errNoTimer
	}
	return fmt.Errorf("answer %d", code)
}

// Reads says how the sampler reads the kernel's memory.
func (s *Sampler) Reads() Reads { return s.reads }

// publish hands want over to the timer as a whole.
func (s *Sampler) publish() {
	s.want.Seq += 2
	shared := s.control.first()
	atomic.StoreUint64(&shared.Seq, s.want.Seq-1)
	odd := s.want
	odd.Seq--
	storeWords(shared, &odd)
	atomic.StoreUint64(&shared.Seq, s.want.Seq)
}

// SetPods makes the sampler follow the cgroup of a directory in the tree of the
// memory controller; -1 is none. The descriptor may be closed afterwards. When
// the cgroup is removed, a [Gone] is written and the pods' figures are not valid
// until another is set.
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
	if err := old.close(); err != nil { // only now, see take_control
		return fmt.Errorf("set pods' cgroup: %w", err)
	}
	return s.Kick()
}

// Kick makes the next tick happen now. It takes one system call and allocates
// nothing, nor when it fails.
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

// Sample reads the latest tick into sample, without a system call. It allocates nothing,
// nor when it fails.
func (s *Sampler) Sample(sample *Sample) error {
	var raw samplerLatest
	if err := s.read(&raw); err != nil {
		return err
	}
	sample.set(&raw.Sample)
	return nil
}

// read copies the latest tick. The writer is a softirq that runs for microseconds,
// so that a reader which meets it need not try often.
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

// Inject writes a crossing into the ring as if it had been seen, so that all that
// comes after can be tested without pressure.
func (s *Sampler) Inject(c Crossing) error {
	raw := samplerCrossing{
		Kind: uint32(KindCrossing), Source: uint32(c.Source), Key: c.Key,
		LastAbove: uint64(c.LastAbove), Seen: uint64(c.Seen), Sent: uint64(c.Sent),
		Available: c.Available, Threshold: c.Threshold, Period: uint64(c.Period),
		Reference: c.Reference.raw(), At: c.At.raw(), Recent: c.Recent.raw(), Now: c.Now.raw(),
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

// ErrFull says that the ring has no room for a record.
var ErrFull = errors.New("the ring buffer is full")

// Close stops the timer and gives everything back. Further calls do nothing.
func (s *Sampler) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Swap(true) {
		return nil
	}
	var errs []error
	// The map of the timer goes first: with its last descriptor the timer is
	// cancelled, and none of what it reads is gone before.
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
