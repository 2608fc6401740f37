package bpf

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// OOM writes a [Victim] into its ring for each process that the kernel's OOM
// killer takes.
type OOM struct {
	hooked *hooked
	ring   *Ring
}

// OOMCounts are totals since the ring was opened.
type OOMCounts struct {
	Victims uint64 // written into the ring
	Lost    uint64 // for want of room in it
}

var oomHooks = []hook{{"oom", "mark_victim", oomProgMarkVictim, oomProgMarkVictimClassic}}

// OpenOOM attaches to the tracepoint of the kernel's OOM killer. Attached in the
// classic way, as it is without BTF, a [Victim] has a PID and no more. An error
// wraps [ErrUnavailable].
func OpenOOM(ring *Ring) (*OOM, error) {
	var hooked *hooked
	if _, err := oomObject.load(func(spec *ebpf.CollectionSpec) (err error) {
		if err = tellPrototype(spec); err == nil {
			hooked, err = attachEither(spec, ring, oomHooks)
			return err
		}
		// Without BTF the classic form is left: it reads nothing but the tracepoint's record.
		var classicErr error
		if hooked, classicErr = attach(spec, ring, oomHooks, ViaClassic); classicErr != nil {
			return errors.Join(err, classicErr)
		}
		return nil
	}); err != nil {
		return nil, unavailable("watch the oom killer", err)
	}
	return &OOM{hooked, ring}, nil
}

// tellPrototype tells the object of this kernel's prototype of the tracepoint.
func tellPrototype(spec *ebpf.CollectionSpec) error {
	types, err := btf.LoadKernelSpec()
	if err != nil {
		return err
	}
	isTask, err := victimIsTask(types)
	if err != nil {
		return err
	}
	var value uint64
	if isTask {
		value = 1
	}
	return spec.Variables[oomVarVictimIsTask].Set(value)
}

// victimIsTask says whether mark_victim hands over a task, as in
//
//	typedef void (*btf_trace_mark_victim)(void *, struct task_struct *, uid_t);
//
// and not a PID as in older kernels.
func victimIsTask(types *btf.Spec) (bool, error) {
	var probe *btf.Typedef
	if err := types.TypeByName("btf_trace_mark_victim", &probe); err != nil {
		return false, fmt.Errorf("look up the tracepoint's prototype: %w", err)
	}
	pointer, ok := probe.Type.(*btf.Pointer)
	if !ok {
		return false, fmt.Errorf("the tracepoint's prototype is %v", probe.Type)
	}
	proto, ok := pointer.Target.(*btf.FuncProto)
	if !ok || len(proto.Params) < 2 {
		return false, errors.New("the tracepoint's prototype has no parameter")
	}
	_, isTask := btf.UnderlyingType(proto.Params[1].Type).(*btf.Pointer)
	return isTask, nil
}

// Via says how the program is attached.
func (o *OOM) Via() Via { return o.hooked.via }

// Counts reads the totals, without a system call.
func (o *OOM) Counts() (OOMCounts, error) {
	if o.hooked.collection == nil {
		return OOMCounts{}, fmt.Errorf("read oom counts: %w", os.ErrClosed)
	}
	p := o.ring.pressure.first()
	return OOMCounts{Victims: atomic.LoadUint64(&p.Victims), Lost: atomic.LoadUint64(&p.VictimsLost)}, nil
}

// Close detaches from the tracepoint. No other method may run at the same time.
// Further calls do nothing.
func (o *OOM) Close() error {
	if err := o.hooked.Close(); err != nil {
		return fmt.Errorf("close oom: %w", err)
	}
	return nil
}
