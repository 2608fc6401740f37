package bpf

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// OOM writes a [Victim] into its ring for each process that the kernel's OOM killer
// chooses.
type OOM struct {
	attached *attachedObject
	ring     *Ring
}

// OOMCounts are totals since the ring was opened.
type OOMCounts struct {
	Victims uint64 // records written into the ring
	Lost    uint64 // victims without a record, because the ring was full
}

var oomHooks = []hook{{"oom", "mark_victim", oomProgMarkVictim, oomProgMarkVictimClassic}}

// OpenOOM attaches to the tracepoint of the kernel's OOM killer. Without BTF it can only
// use the classic attachment, where a [Victim] has nothing but a PID. The error wraps
// [ErrUnavailable] if a retry can't help.
func OpenOOM(ring *Ring) (*OOM, error) {
	var attached *attachedObject
	if _, err := oomObject.load(func(spec *ebpf.CollectionSpec) (err error) {
		if err = setVictimPrototype(spec); err == nil {
			attached, err = attachEither(spec, ring, oomHooks)
			return err
		}
		// The classic program needs no BTF: it reads only the tracepoint's own record.
		var classicErr error
		if attached, classicErr = attach(spec, ring, oomHooks, AttachClassic); classicErr != nil {
			return errors.Join(err, classicErr)
		}
		return nil
	}); err != nil {
		return nil, unavailable("watch the oom killer", err)
	}
	return &OOM{attached, ring}, nil
}

// setVictimPrototype sets the object's variable for this kernel's prototype of the
// tracepoint. It fails if the kernel has no BTF.
func setVictimPrototype(spec *ebpf.CollectionSpec) error {
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

// victimIsTask reports whether the argument of mark_victim is a task, as in
//
//	typedef void (*btf_trace_mark_victim)(void *, struct task_struct *, uid_t);
//
// In older kernels it is a PID.
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

// Attachment returns how the program is attached.
func (o *OOM) Attachment() Attachment { return o.attached.attachment }

// Counts returns the totals. It takes no system call, and fails after Close.
func (o *OOM) Counts() (OOMCounts, error) {
	if o.attached.collection == nil {
		return OOMCounts{}, fmt.Errorf("read oom counts: %w", os.ErrClosed)
	}
	p := o.ring.pressure.first()
	return OOMCounts{Victims: atomic.LoadUint64(&p.Victims), Lost: atomic.LoadUint64(&p.VictimsLost)}, nil
}

// Close detaches the program. It must not run concurrently with another method. Further
// calls do nothing.
func (o *OOM) Close() error {
	if err := o.attached.Close(); err != nil {
		return fmt.Errorf("close oom: %w", err)
	}
	return nil
}
