package bpf

import (
	"errors"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// ReadMethod is the method by which programs read the kernel's memory.
type ReadMethod string

// The methods. The helper returns an error on a fault, where a load reads zero. But the
// kernel refuses the helper under lockdown=confidentiality. Typed loads need Linux 6.2.
const (
	ReadByHelper ReadMethod = "bpf_probe_read_kernel"
	ReadTyped    ReadMethod = "bpf_rdonly_cast"
)

// readMethods lists the methods in the order in which they are tried.
var readMethods = []ReadMethod{ReadByHelper, ReadTyped}

// object has the loaders of one source file's object, one for each method to read.
type object map[ReadMethod]func() (*ebpf.CollectionSpec, error)

var (
	samplerObject = object{ReadByHelper: loadSampler, ReadTyped: loadSamplerTyped}
	anchorObject  = object{ReadByHelper: loadAnchor, ReadTyped: loadAnchorTyped}
	reclaimObject = object{ReadByHelper: loadReclaim, ReadTyped: loadReclaimTyped}
	oomObject     = object{ReadByHelper: loadOom, ReadTyped: loadOomTyped}
)

// load loads the object with the first method that the verifier does not refuse, and
// returns that method. It fails with the errors of all methods tried.
func (o object) load(load func(*ebpf.CollectionSpec) error) (ReadMethod, error) {
	var refused []error
	for _, reads := range readMethods {
		spec, err := o[reads]()
		if err == nil {
			err = load(spec)
		}
		if err == nil {
			return reads, nil
		}
		refused = append(refused, err)
		if !verifierRefused(err) {
			break
		}
	}
	return "", errors.Join(refused...)
}

// verifierRefused reports whether the verifier refused a program. The verifier may
// accept the program with another method to read; missing privileges or memory are
// no reason to try that.
func verifierRefused(err error) bool {
	var rejected *ebpf.VerifierError
	return errors.As(err, &rejected) && !errors.Is(err, unix.EPERM)
}
