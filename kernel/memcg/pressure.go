package memcg

import (
	"fmt"

	"github.com/evictd/evictd/kernel/cgroup"
)

// Level is how hard reclaim has become: by which part of the pages that it
// looked at it could not free (mm/vmpressure.c). The zero value is none.
type Level int

// The levels. A notice of one comes for the higher ones too.
const (
	Low      Level = iota + 1 // reclaim goes on
	Medium                    // 60 % or more were looked at in vain
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

// Mode says who hears of pressure in a cgroup: it and those above it. The zero
// value is the kernel's default.
type Mode int

// The modes.
const (
	Default   Mode = iota // only the nearest that listens
	Hierarchy             // all that listen so
	Local                 // only the cgroup itself
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

// Pressure is a notice of reclaim in a v1 cgroup. Its descriptor becomes readable
// when reclaim has reached the level, which the kernel finds out every 512 pages
// that it looks at, in a worker: under pressure that may be late. While nothing
// is reclaimed there is no pressure.
type Pressure struct {
	notice
	level Level
	mode  Mode
}

// ArmPressure arms a notice of reclaim. Its errors are those of [ArmUsage]. Newer
// kernels say in their log, once, that this one is deprecated.
func ArmPressure(h *cgroup.Hierarchy, c *cgroup.Cgroup, level Level, mode Mode) (*Pressure, error) {
	p := place{h, c}
	arguments, err := pressureArguments(level, mode)
	if err != nil {
		return nil, p.failed("arm pressure notice", err)
	}
	n, err := p.notify("memory.pressure_level", arguments)
	if err != nil {
		return nil, p.failed("arm pressure notice", err)
	}
	return &Pressure{notice: n, level: level, mode: mode}, nil
}

// pressureArguments writes "critical,hierarchy"; the default mode may go without
// a word.
func pressureArguments(level Level, mode Mode) (string, error) {
	if level < Low || level > Critical {
		return "", fmt.Errorf("%v is no level of pressure", level)
	}
	switch mode {
	case Default:
		return level.String(), nil
	case Hierarchy, Local:
		return level.String() + "," + mode.String(), nil
	}
	return "", fmt.Errorf("%v is no mode of pressure", mode)
}

// Level returns the level that it was armed for.
func (p *Pressure) Level() Level { return p.level }

// Mode returns the mode that it was armed with.
func (p *Pressure) Mode() Mode { return p.mode }
