package probe

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/process"
)

// capabilities is the effective set of this process.
type capabilities struct {
	effective uint64
	// namespaced means that this process is not in the initial user namespace. The
	// kernel does not honour its capabilities for operations on the node.
	namespaced bool
}

func (c capabilities) has(bit int) bool { return !c.namespaced && c.effective>>bit&1 != 0 }

// wanted lists the capabilities that evictd uses, and what does not work without
// each.
var wanted = []struct {
	bit           int
	name, without string
}{
	{unix.CAP_KILL, "CAP_KILL", "processes of other users can't be killed"},
	{unix.CAP_IPC_LOCK, "CAP_IPC_LOCK", "memory is locked only up to RLIMIT_MEMLOCK"},
	{unix.CAP_SYS_RESOURCE, "CAP_SYS_RESOURCE", "oom_score_adj can't be lowered, and psi triggers take only windows that are multiples of 2 s"},
	{unix.CAP_SYS_NICE, "CAP_SYS_NICE", "evictd runs at normal priority"},
	{unix.CAP_SYS_PTRACE, "CAP_SYS_PTRACE", "the executables and namespaces of other users' processes can't be read"},
	{unix.CAP_BPF, "CAP_BPF", "no BPF program can be loaded"},
	{unix.CAP_PERFMON, "CAP_PERFMON", "no BPF program can be attached to a tracepoint"},
	{unix.CAP_DAC_OVERRIDE, "CAP_DAC_OVERRIDE", "only root can kill and freeze cgroups"},
	{unix.CAP_DAC_READ_SEARCH, "CAP_DAC_READ_SEARCH", "directories of other users can be read only with CAP_DAC_OVERRIDE"},
}

// features returns one Feature per wanted capability.
func (c capabilities) features(err error) []Feature {
	features := make([]Feature, len(wanted))
	for i, w := range wanted {
		missing := fmt.Sprintf("%s: without it, %s", w.name, w.without)
		switch {
		case err != nil:
			features[i] = unknown(w.name, err)
		case c.has(w.bit):
			features[i] = yes(w.name, "")
		case c.namespaced && c.effective>>w.bit&1 != 0:
			features[i] = no(w.name, "effective only in a user namespace", missing)
		default:
			features[i] = no(w.name, "", missing)
		}
	}
	return features
}

// readCapabilities reads the capabilities of this process.
func readCapabilities(proc kernel.FS) (capabilities, error) {
	c, err := capabilitiesOf(proc)
	if err != nil {
		return capabilities{}, fmt.Errorf("read own capabilities: %w", err)
	}
	return c, nil
}

func capabilitiesOf(proc kernel.FS) (capabilities, error) {
	status, err := os.ReadFile(proc.Path("self", "status"))
	if err != nil {
		return capabilities{}, err
	}
	effective, err := parseEffective(string(status))
	if err != nil {
		return capabilities{}, err
	}
	ns, err := os.Readlink(proc.Path("self", "ns", "user"))
	if errors.Is(err, os.ErrNotExist) {
		// The kernel has no user namespaces.
		if _, statErr := os.Stat(proc.Path("self", "ns")); statErr == nil {
			return capabilities{effective: effective}, nil
		}
	}
	if err != nil {
		return capabilities{}, err
	}
	return capabilities{effective: effective, namespaced: ns != process.InitUserNamespace}, nil
}

// parseEffective returns the effective capabilities in /proc/PID/status
// (fs/proc/array.c: task_cap):
//
//	CapEff:	000001fffeffffff
func parseEffective(status string) (uint64, error) {
	for line := range strings.Lines(status) {
		value, ok := strings.CutPrefix(line, "CapEff:\t")
		if !ok {
			continue
		}
		digits, ok := strings.CutSuffix(value, "\n")
		if !ok || len(digits) != 16 {
			return 0, fmt.Errorf("CapEff is %q, not 16 digits", value)
		}
		return strconv.ParseUint(digits, 16, 64)
	}
	return 0, errors.New(`no line for "CapEff"`)
}
