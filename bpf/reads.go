package bpf

import (
	"errors"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Reads says how programs read the kernel's memory.
type Reads string

// The ways. The helper tells of a fault, which a load reads as zero; but under
// lockdown=confidentiality there is no helper. Typed loads need Linux 6.2.
const (
	ReadsByHelper Reads = "bpf_probe_read_kernel"
	ReadsTyped    Reads = "bpf_rdonly_cast"
)

// ways lists what is tried, in this order.
var ways = []Reads{ReadsByHelper, ReadsTyped}

// object is one source file's object, built for each way to read.
type object map[Reads]func() (*ebpf.CollectionSpec, error)

var (
	samplerObject = object{ReadsByHelper: loadSampler, ReadsTyped: loadSamplerTyped}
	anchorObject  = object{ReadsByHelper: loadAnchor, ReadsTyped: loadAnchorTyped}
	reclaimObject = object{ReadsByHelper: loadReclaim, ReadsTyped: loadReclaimTyped}
	oomObject     = object{ReadsByHelper: loadOom, ReadsTyped: loadOomTyped}
)

// load has the kernel take the object that reads in the first way which the
// verifier does not refuse, and returns that way.
func (o object) load(load func(*ebpf.CollectionSpec) error) (Reads, error) {
	var refused []error
	for _, reads := range ways {
		spec, err := o[reads]()
		if err == nil {
			err = load(spec)
		}
		if err == nil {
			return reads, nil
		}
		refused = append(refused, err)
		if !refuses(err) {
			break
		}
	}
	return "", errors.Join(refused...)
}

// refuses reports whether an error is the verifier's word on a program, which
// another program may not get, and not one on privileges or on what there is.
func refuses(err error) bool {
	var rejected *ebpf.VerifierError
	return errors.As(err, &rejected) && !errors.Is(err, unix.EPERM)
}
