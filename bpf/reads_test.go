package bpf

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// readsVariable makes a test process use only one method to read.
const readsVariable = "EVICTD_TEST_READS"

func init() {
	if only := os.Getenv(readsVariable); only != "" {
		readMethods = []ReadMethod{ReadMethod(only)}
	}
}

// The next method is tried if the verifier refuses a program, but not for other errors,
// such as missing privileges.
func TestReadMethods(t *testing.T) {
	spec := func() (*ebpf.CollectionSpec, error) { return &ebpf.CollectionSpec{}, nil }
	both := object{ReadByHelper: spec, ReadTyped: spec}
	refused := fmt.Errorf("load program: %w", &ebpf.VerifierError{Cause: unix.EINVAL, Log: []string{"unknown func bpf_probe_read_kernel#113"}})
	forbidden := fmt.Errorf("load program: %w", &ebpf.VerifierError{Cause: unix.EPERM})
	for _, test := range []struct {
		name    string
		answers []error
		want    ReadMethod
		err     error
	}{
		{"taken", []error{nil}, readMethods[0], nil},
		{"refused at first", []error{refused, nil}, ReadTyped, nil},
		{"refused", []error{refused, refused}, "", refused},
		{"no privileges", []error{forbidden}, "", forbidden},
		{"no memory", []error{unix.ENOMEM}, "", unix.ENOMEM},
	} {
		if len(test.answers) > len(readMethods) {
			continue // the process uses only one method
		}
		tries := 0
		got, err := both.load(func(*ebpf.CollectionSpec) error {
			tries++
			return test.answers[tries-1]
		})
		if got != test.want || !errors.Is(err, test.err) || tries != len(test.answers) {
			t.Errorf("%s: load() = %q, %v after %d tries; want %q, %v after %d", test.name, got, err, tries, test.want, test.err, len(test.answers))
		}
	}
}

// The objects for a kernel under lockdown call none of the helpers that it refuses: with
// one call the verifier refuses the whole program.
func TestTypedObjectsCallNoProbeRead(t *testing.T) {
	probeReads := map[asm.BuiltinFunc]bool{
		asm.FnProbeRead: true, asm.FnProbeReadStr: true, asm.FnProbeReadUser: true,
		asm.FnProbeReadKernel: true, asm.FnProbeReadUserStr: true, asm.FnProbeReadKernelStr: true,
	}
	calls := func(o object, reads ReadMethod) (list []string) {
		spec, err := o[reads]()
		if err != nil {
			t.Fatal(err)
		}
		for name, program := range spec.Programs {
			for _, ins := range program.Instructions {
				if f := asm.BuiltinFunc(ins.Constant); ins.IsBuiltinCall() && probeReads[f] {
					list = append(list, name+": "+f.String())
				}
			}
		}
		return list
	}
	for name, o := range map[string]object{
		"sampler": samplerObject, "anchor": anchorObject, "reclaim": reclaimObject, "oom": oomObject,
	} {
		if got := calls(o, ReadTyped); len(got) != 0 {
			t.Errorf("typed %s calls %v; want none", name, got)
		}
		if got := calls(o, ReadByHelper); len(got) == 0 {
			t.Errorf("%s calls none of %v; want the helper called", name, probeReads)
		}
	}
}

// TestTypedReads runs other tests with the objects that read by typed loads, the only ones
// that a kernel under lockdown accepts.
func TestTypedReads(t *testing.T) {
	openSampler(t, Options{})
	if len(readMethods) == 1 {
		t.Skip("needs both methods to read: this process has one")
	}
	saved := readMethods
	defer func() { readMethods = saved }()
	readMethods = []ReadMethod{ReadTyped}
	ring := openRing(t)
	s, err := OpenSampler(ring, Options{})
	if err != nil {
		t.Skip("needs Linux 6.2 for bpf_rdonly_cast: ", err)
	}
	if got := s.ReadMethod(); got != ReadTyped {
		t.Errorf("ReadMethod() = %q; want %q", got, ReadTyped)
	}
	if err := s.Close(); err != nil {
		t.Errorf("Close() = %v; want nil", err)
	}
	const tests = "TestNodeFigures|TestPodsFigures|TestRows|TestPodsCrossing|TestPodsRemoved|TestWalk|TestUncertain|TestSurvey|TestReclaim|TestOOM|TestCrossing|TestSetPods"
	cmd := exec.Command(os.Args[0], "-test.run=^("+tests+")", "-test.v", "-test.timeout="+(4*time.Minute).String())
	cmd.Env = append(os.Environ(), readsVariable+"="+string(ReadTyped))
	out, err := cmd.CombinedOutput()
	passed := len(regexp.MustCompile(`(?m)^--- PASS`).FindAll(out, -1))
	if err != nil || passed < strings.Count(tests, "|") {
		t.Errorf("the tests with typed reads: %v, %d passed; want most of %s:\n%s", err, passed, tests, out)
	}
}
