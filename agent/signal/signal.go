package signal

import "k8s.io/apimachinery/pkg/api/resource"

// Signal is one of the kubelet's eviction signals. Its numeric value is its
// place in the order in which signals are listed and acted upon.
type Signal uint8

// The signals, in order.
const (
	MemoryAvailable Signal = iota
	AllocatableMemoryAvailable
	NodeFsAvailable
	NodeFsInodesFree
	ImageFsAvailable
	ImageFsInodesFree
	ContainerFsAvailable
	ContainerFsInodesFree
	PIDAvailable

	// Count is the number of signals, for arrays indexed by Signal.
	Count
)

// Resource is the name of what a signal's shortage starves, as it stands in
// eviction messages.
type Resource string

// The resources that signals are about.
const (
	Memory           Resource = "memory"
	EphemeralStorage Resource = "ephemeral-storage"
	Inodes           Resource = "inodes"
	PIDs             Resource = "pids"
)

// Condition is the name of a node condition.
type Condition string

// The node conditions that signals raise.
const (
	MemoryPressure Condition = "MemoryPressure"
	DiskPressure   Condition = "DiskPressure"
	PIDPressure    Condition = "PIDPressure"
)

// The conditions of stalls on memory, by the names that Kubernetes has planned
// (KEP-5394). No signal raises them.
const (
	SystemMemoryContentionPressure   Condition = "SystemMemoryContentionPressure"
	KubepodsMemoryContentionPressure Condition = "KubepodsMemoryContentionPressure"
)

// NodeShutdown is the condition of a node that is about to go down. No signal
// raises it either.
const NodeShutdown Condition = "NodeShutdown"

var traits = [Count]struct {
	name      string
	resource  Resource
	condition Condition
}{
	MemoryAvailable:            {"memory.available", Memory, MemoryPressure},
	AllocatableMemoryAvailable: {"allocatableMemory.available", Memory, MemoryPressure},
	NodeFsAvailable:            {"nodefs.available", EphemeralStorage, DiskPressure},
	NodeFsInodesFree:           {"nodefs.inodesFree", Inodes, DiskPressure},
	ImageFsAvailable:           {"imagefs.available", EphemeralStorage, DiskPressure},
	ImageFsInodesFree:          {"imagefs.inodesFree", Inodes, DiskPressure},
	ContainerFsAvailable:       {"containerfs.available", EphemeralStorage, DiskPressure},
	ContainerFsInodesFree:      {"containerfs.inodesFree", Inodes, DiskPressure},
	PIDAvailable:               {"pid.available", PIDs, PIDPressure},
}

// All returns every signal in order.
func All() []Signal {
	all := make([]Signal, Count)
	for i := range all {
		all[i] = Signal(i)
	}
	return all
}

// Parse returns the signal of that name, and whether there is one.
func Parse(name string) (Signal, bool) {
	for i, t := range traits {
		if t.name == name {
			return Signal(i), true
		}
	}
	return 0, false
}

// String returns the signal's name, for example "memory.available".
func (s Signal) String() string {
	if s >= Count {
		return "unknown"
	}
	return traits[s].name
}

// MarshalText writes the signal's name.
func (s Signal) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads a signal's name.
func (s *Signal) UnmarshalText(text []byte) error {
	parsed, ok := Parse(string(text))
	if !ok {
		return &UnknownError{Name: string(text)}
	}
	*s = parsed
	return nil
}

// Resource returns what a shortage of the signal starves.
func (s Signal) Resource() Resource { return traits[s].resource }

// Condition returns the node condition that the signal raises.
func (s Signal) Condition() Condition { return traits[s].condition }

// IsMemory reports whether the signal is one of the two about memory, which
// are acted upon as one.
func (s Signal) IsMemory() bool { return traits[s].resource == Memory }

// IsDisk reports whether the signal is about a filesystem's bytes or inodes.
func (s Signal) IsDisk() bool { return traits[s].condition == DiskPressure }

// IsInodes reports whether the signal counts inodes.
func (s Signal) IsInodes() bool { return traits[s].resource == Inodes }

// Format returns how quantities of the signal print: binary suffixes for
// bytes, decimal ones for inodes and PIDs.
func (s Signal) Format() resource.Format {
	switch traits[s].resource {
	case Inodes, PIDs:
		return resource.DecimalSI
	}
	return resource.BinarySI
}

// Quantity returns n, in the signal's unit, as it prints.
func (s Signal) Quantity(n int64) string { return resource.NewQuantity(n, s.Format()).String() }

// UnknownError tells of a name that is no signal.
type UnknownError struct{ Name string }

func (e *UnknownError) Error() string { return "unsupported eviction signal " + e.Name }
