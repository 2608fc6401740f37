package bpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// Via says how programs are attached to tracepoints.
type Via string

// The ways. The classic one needs tracefs, and tells of a [Victim] no more than
// its PID.
const (
	ViaRaw     Via = "raw_tp"
	ViaClassic Via = "tracepoint"
)

// hook is a tracepoint and the names of the programs for it.
type hook struct {
	group, name  string
	raw, classic string
}

func (h hook) program(via Via) string {
	if via == ViaRaw {
		return h.raw
	}
	return h.classic
}

// hooked is an object whose programs are attached.
type hooked struct {
	via        Via
	collection *ebpf.Collection
	links      []link.Link
}

// attachEither attaches raw, and classic where that fails. ring is nil for an object
// that has nothing to do with it.
func attachEither(spec *ebpf.CollectionSpec, ring *Ring, hooks []hook) (*hooked, error) {
	h, err := attach(spec.Copy(), ring, hooks, ViaRaw)
	if err == nil {
		return h, nil
	}
	h, classicErr := attach(spec, ring, hooks, ViaClassic)
	if classicErr != nil {
		return nil, errors.Join(err, classicErr)
	}
	return h, nil
}

// attach loads those programs of an object that are attached one way, so that the
// others can't keep it from loading, and attaches them all or none.
func attach(spec *ebpf.CollectionSpec, ring *Ring, hooks []hook, via Via) (_ *hooked, err error) {
	programs := map[string]*ebpf.ProgramSpec{}
	for _, hook := range hooks {
		programs[hook.program(via)] = spec.Programs[hook.program(via)]
	}
	spec.Programs = programs
	var options ebpf.CollectionOptions
	if ring != nil {
		options = *replacing(ring)
	}
	collection, err := ebpf.NewCollectionWithOptions(spec, options)
	if err != nil {
		return nil, err
	}
	h := &hooked{via: via, collection: collection}
	defer func() {
		if err != nil {
			_ = h.Close()
		}
	}()
	for _, hook := range hooks {
		program := collection.Programs[hook.program(via)]
		var l link.Link
		if via == ViaRaw {
			l, err = link.AttachRawTracepoint(link.RawTracepointOptions{Name: hook.name, Program: program})
		} else {
			l, err = link.Tracepoint(hook.group, hook.name, program, nil)
		}
		if err != nil {
			return nil, fmt.Errorf("attach to %s %s/%s: %w", via, hook.group, hook.name, err)
		}
		h.links = append(h.links, l)
	}
	return h, nil
}

// Close detaches the programs. Further calls do nothing.
func (h *hooked) Close() error {
	var errs []error
	for _, l := range h.links {
		errs = append(errs, l.Close())
	}
	h.links = nil
	if h.collection != nil {
		h.collection.Close()
		h.collection = nil
	}
	return errors.Join(errs...)
}
