package psi

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/internal/sys"
	"github.com/evictd/evictd/kernel/internal/text"
)

// Resource is what tasks wait for. The zero value is not a resource.
type Resource int

// The resources.
const (
	ForMemory Resource = iota + 1
	ForIO
	ForCPU
)

func (r Resource) String() string {
	switch r {
	case ForMemory:
		return "memory"
	case ForIO:
		return "io"
	case ForCPU:
		return "cpu"
	}
	return fmt.Sprintf("Resource(%d)", int(r))
}

// Kind is the line of a pressure file. The zero value is neither.
type Kind int

// The kinds.
const (
	Some Kind = iota + 1 // at least one task waits, while others may run
	Full                 // all non-idle tasks wait
)

func (k Kind) String() string {
	switch k {
	case Some:
		return "some"
	case Full:
		return "full"
	}
	return fmt.Sprintf("Kind(%d)", int(k))
}

// Stall is the total time since boot during which some, or all, tasks have
// stalled. Unlike the averages in the same file, it does not lag.
type Stall struct {
	Some, Full time.Duration
}

// Memory reads /proc/pressure/memory.
func Memory(proc kernel.FS) (Stall, error) { return read(proc, ForMemory) }

// CgroupMemory reads memory.pressure of the subtree of a cgroup of h. It fails with
// [kernel.ErrUnavailable] on v1, which has no such file.
func CgroupMemory(h *cgroup.Hierarchy, path string) (Stall, error) {
	if h.Version != cgroup.V2 {
		return Stall{}, fmt.Errorf("read memory pressure of cgroup %s: %w: a %s hierarchy has no pressure", path, kernel.ErrUnavailable, h.Version)
	}
	return readAt(h.Memory.Path(path, "memory.pressure"), ForMemory)
}

// IO reads /proc/pressure/io.
func IO(proc kernel.FS) (Stall, error) { return read(proc, ForIO) }

// CPU reads the time that some task has waited for a CPU, from
// /proc/pressure/cpu. It has no full time: the line does not exist before Linux
// 5.13 and is 0 for a whole node since then.
func CPU(proc kernel.FS) (time.Duration, error) {
	content, err := readFile(proc.Path("pressure", ForCPU.String()), ForCPU)
	if err != nil {
		return 0, err
	}
	some, err := parse(content, Some)
	if err != nil {
		return 0, fmt.Errorf("read cpu pressure: %w", err)
	}
	return some, nil
}

func read(proc kernel.FS, r Resource) (Stall, error) {
	return readAt(proc.Path("pressure", r.String()), r)
}

func readAt(path string, r Resource) (Stall, error) {
	content, err := readFile(path, r)
	if err != nil {
		return Stall{}, err
	}
	some, err1 := parse(content, Some)
	full, err2 := parse(content, Full)
	if err := errors.Join(err1, err2); err != nil {
		return Stall{}, fmt.Errorf("read %s pressure: %w", r, err)
	}
	return Stall{Some: some, Full: full}, nil
}

func readFile(path string, r Resource) ([]byte, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read %s pressure: %w", r, unavailable(err))
	}
	return content, nil
}

// unavailable adds kernel.ErrUnavailable to the errors of a kernel without PSI:
// built without it, there are no files; booted without it, opening them fails with
// EOPNOTSUPP.
func unavailable(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("%w: %w", kernel.ErrUnavailable, err)
	}
	return err
}

// Errors of parse. They are static because parse runs on the hot path, which must
// not allocate.
var (
	errNoLine  = errors.New("a line is missing")
	errNoTotal = errors.New("a line has no total in microseconds")
)

// parse returns the total of the line of a kind:
//
//	some avg10=0.00 avg60=0.00 avg300=0.00 total=0
//	full avg10=0.00 avg60=0.00 avg300=0.00 total=0
//
// Totals are in microseconds. It allocates nothing.
func parse(content []byte, kind Kind) (time.Duration, error) {
	for len(content) > 0 {
		line, rest, err := text.Line(content)
		if err != nil {
			return 0, err
		}
		content = rest
		name, values, _ := bytes.Cut(bytes.TrimSuffix(line, []byte{'\r'}), []byte{' '})
		if string(name) == kind.String() {
			return total(values)
		}
	}
	return 0, errNoLine
}

func total(values []byte) (time.Duration, error) {
	for more := true; more; {
		var field []byte
		field, values, more = bytes.Cut(values, []byte{' '})
		digits, ok := bytes.CutPrefix(field, []byte("total="))
		if !ok {
			continue
		}
		us, err := text.Uint(digits)
		if err != nil || us > math.MaxInt64/1000 {
			return 0, errNoTotal
		}
		return time.Duration(us) * time.Microsecond, nil
	}
	return 0, errNoTotal
}

// maxFile is the buffer size for a pressure file, several times the length of its
// two lines.
const maxFile = 512

// readTotal reads the total of a kind from an open pressure file.
func readTotal(fd *sys.FD, kind Kind) (time.Duration, error) {
	var buf [maxFile]byte
	content, err := fd.Read(buf[:])
	if err != nil {
		return 0, err
	}
	return parse(content, kind)
}
