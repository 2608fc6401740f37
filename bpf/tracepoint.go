package bpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// Attachment is how programs are attached to tracepoints.
type Attachment string

// The kinds of attachment. The classic one needs tracefs, and a [Victim] has only a PID
// with it.
const (
	AttachRaw     Attachment = "raw_tp"
	AttachClassic Attachment = "tracepoint"
)

// hook is a tracepoint and the names of its two programs.
type hook struct {
	group, name  string
	raw, classic string
}

func (h hook) program(attachment Attachment) string {
	if attachment == AttachRaw {
		return h.raw
	}
	return h.classic
}

// attachedObject is a loaded object whose programs are attached.
type attachedObject struct {
	attachment Attachment
	collection *ebpf.Collection
	links      []link.Link
}

// attachEither attaches the raw programs of an object, or the classic ones if that fails.
// ring is nil for an object that does not use the ring.
func attachEither(spec *ebpf.CollectionSpec, ring *Ring, hooks []hook) (*attachedObject, error) {
	h, err := attach(spec.Copy(), ring, hooks, AttachRaw)
	if err == nil {
		return h, nil
	}
	h, classicErr := attach(spec, ring, hooks, AttachClassic)
	if classicErr != nil {
		return nil, errors.Join(err, classicErr)
	}
	return h, nil
}

// attach loads and attaches the programs of an object for one kind of attachment. It does
// not load the others, which the kernel may refuse. It attaches all of them or none.
func attach(spec *ebpf.CollectionSpec, ring *Ring, hooks []hook, attachment Attachment) (_ *attachedObject, err error) {
	programs := map[string]*ebpf.ProgramSpec{}
	for _, hook := range hooks {
		programs[hook.program(attachment)] = spec.Programs[hook.program(attachment)]
	}
	spec.Programs = programs
	var options ebpf.CollectionOptions
	if ring != nil {
		options = *withMapsOf(ring)
	}
	collection, err := ebpf.NewCollectionWithOptions(spec, options)
	if err != nil {
		return nil, err
	}
	h := &attachedObject{attachment: attachment, collection: collection}
	defer func() {
		if err != nil {
			_ = h.Close()
		}
	}()
	for _, hook := range hooks {
		program := collection.Programs[hook.program(attachment)]
		var l link.Link
		if attachment == AttachRaw {
			l, err = link.AttachRawTracepoint(link.RawTracepointOptions{Name: hook.name, Program: program})
		} else {
			l, err = link.Tracepoint(hook.group, hook.name, program, nil)
		}
		if err != nil {
			return nil, fmt.Errorf("attach to %s %s/%s: %w", attachment, hook.group, hook.name, err)
		}
		h.links = append(h.links, l)
	}
	return h, nil
}

// Close detaches the programs. Further calls do nothing.
func (h *attachedObject) Close() error {
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
