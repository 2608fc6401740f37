package signal

import "k8s.io/apimachinery/pkg/api/resource"

// Signal is one of the kubelet's eviction signals. Its numeric value is its position in
// the order in which signals are listed and acted on.
type Signal uint8

// The eviction signals, in order.
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

// Resource is the name of the resource that a signal measures, as in eviction messages.
type Resource string

// The resources that signals measure.
const (
	Memory           Resource = "memory"
	EphemeralStorage Resource = "ephemeral-storage"
	Inodes           Resource = "inodes"
	PIDs             Resource = "pids"
)

// Condition is the name of a node condition.
type Condition string

// The node conditions that signals set.
const (
	MemoryPressure Condition = "MemoryPressure"
	DiskPressure   Condition = "DiskPressure"
	PIDPressure    Condition = "PIDPressure"
)

// The conditions for stalls on memory, with the names that KEP-5394 plans. No signal
// sets them.
const (
	SystemMemoryContentionPressure   Condition = "SystemMemoryContentionPressure"
	KubepodsMemoryContentionPressure Condition = "KubepodsMemoryContentionPressure"
)

// NodeShutdown is the condition of a node that is about to shut down. No signal sets
// it.
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

// Parse returns the signal with that name, and whether there is one.
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

// MarshalText returns the signal's name.
func (s Signal) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText parses a signal's name. It returns an [*UnknownError] for any other
// text.
func (s *Signal) UnmarshalText(text []byte) error {
	parsed, ok := Parse(string(text))
	if !ok {
		return &UnknownError{Name: string(text)}
	}
	*s = parsed
	return nil
}

// Resource returns the resource that the signal measures.
func (s Signal) Resource() Resource { return traits[s].resource }

// Condition returns the node condition that the signal sets.
func (s Signal) Condition() Condition { return traits[s].condition }

// IsMemory reports whether the signal is one of the two memory signals, which are acted
// on as one.
func (s Signal) IsMemory() bool { return traits[s].resource == Memory }

// IsDisk reports whether the signal measures a filesystem's bytes or inodes.
func (s Signal) IsDisk() bool { return traits[s].condition == DiskPressure }

// IsInodes reports whether the signal counts inodes.
func (s Signal) IsInodes() bool { return traits[s].resource == Inodes }

// Format returns the format of the signal's quantities: binary suffixes for bytes,
// decimal suffixes for inodes and PIDs.
func (s Signal) Format() resource.Format {
	switch traits[s].resource {
	case Inodes, PIDs:
		return resource.DecimalSI
	}
	return resource.BinarySI
}

// Quantity formats n, an amount in the signal's unit.
func (s Signal) Quantity(n int64) string { return resource.NewQuantity(n, s.Format()).String() }

// UnknownError is the error for a name that is not a signal's.
type UnknownError struct{ Name string }

func (e *UnknownError) Error() string { return "unsupported eviction signal " + e.Name }
