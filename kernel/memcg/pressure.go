package memcg

import (
	"fmt"

	"github.com/evictd/evictd/kernel/cgroup"
)

// Level is a vmpressure level: the share of scanned pages that the kernel could
// not reclaim (mm/vmpressure.c). The zero value is not a level.
type Level int

// The levels. A notification for one is also sent for the higher ones.
const (
	Low      Level = iota + 1 // pages are being reclaimed
	Medium                    // 60 % or more of the scanned pages were not reclaimed
	Critical                  // 95 % or more
)

func (l Level) String() string {
	switch l {
	case Low:
		return "low"
	case Medium:
		return "medium"
	case Critical:
		return "critical"
	}
	return fmt.Sprintf("Level(%d)", int(l))
}

// Mode is the propagation of pressure from a cgroup to its ancestors. The zero
// value is the kernel's default.
type Mode int

// The modes.
const (
	Default   Mode = iota // notify the nearest cgroup with a listener
	Hierarchy             // notify all ancestors with such a listener
	Local                 // notify only the cgroup itself
)

func (m Mode) String() string {
	switch m {
	case Default:
		return "default"
	case Hierarchy:
		return "hierarchy"
	case Local:
		return "local"
	}
	return fmt.Sprintf("Mode(%d)", int(m))
}

// Pressure is a subscription to vmpressure of a v1 cgroup. Its descriptor becomes
// readable when reclaim has reached the level. The kernel computes the level in a
// worker for every 512 scanned pages, which may be late under pressure. There is no
// notification while nothing is reclaimed.
type Pressure struct {
	notifier
}

// ArmPressure subscribes to vmpressure of a cgroup. It fails as [ArmUsage] does.
// Newer kernels log once that this interface is deprecated.
func ArmPressure(h *cgroup.Hierarchy, c *cgroup.Cgroup, level Level, mode Mode) (*Pressure, error) {
	t := target{h, c}
	arguments, err := pressureArguments(level, mode)
	if err != nil {
		return nil, t.wrap("arm pressure notification", err)
	}
	n, err := t.register("memory.pressure_level", arguments)
	if err != nil {
		return nil, t.wrap("arm pressure notification", err)
	}
	return &Pressure{n}, nil
}

// pressureArguments returns the arguments of a registration, such as
// "critical,hierarchy", or "critical" for the default mode.
func pressureArguments(level Level, mode Mode) (string, error) {
	if level < Low || level > Critical {
		return "", fmt.Errorf("%v is not a pressure level", level)
	}
	switch mode {
	case Default:
		return level.String(), nil
	case Hierarchy, Local:
		return level.String() + "," + mode.String(), nil
	}
	return "", fmt.Errorf("%v is not a pressure mode", mode)
}
