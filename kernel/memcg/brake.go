package memcg

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/internal/sys"
	"github.com/evictd/evictd/kernel/internal/text"
)

// Unlimited is the limit that the kernel writes "max".
const Unlimited = math.MaxUint64

// ErrTaken says that another has written the limit since the brake did: theirs
// was left.
var ErrTaken = errors.New("memory.high was written by another")

// Brake is the memory.high of a v2 cgroup. Above it, tasks that want memory have
// to reclaim first, and then sleep, the longer the further it is passed, up to
// 2 s at a time (mm/memcontrol.c: calculate_high_delay). Nobody is killed.
//
// The limit belongs to whoever manages the cgroup. A brake moves it where it is
// told, in one direction at a time, and gives it back. Its methods may be called
// concurrently.
type Brake struct {
	place place
	fd    *sys.FD

	mu  sync.Mutex
	on  bool   // it has moved the limit, and not given it back
	set uint64 // what it moved it to
	was uint64 // what it found before
}

// OpenBrake opens memory.high. It writes nothing. It is [kernel.ErrUnavailable]
// on v1, and for the root, which has none.
func OpenBrake(h *cgroup.Hierarchy, c *cgroup.Cgroup) (*Brake, error) {
	p := place{h, c}
	if err := p.v2(); err != nil {
		return nil, p.failed("open memory.high", err)
	}
	return openBrake(p, "memory.high")
}

func openBrake(p place, name string) (*Brake, error) {
	// A writer that sets the limit below the usage has to reclaim the difference,
	// unless its file is non-blocking (mm/memcontrol.c: memory_high_write, since
	// Linux 6.16; not seen).
	fd, err := p.file(name, unix.O_RDWR|unix.O_NONBLOCK)
	if err != nil {
		return nil, p.failed("open "+name, err)
	}
	b := &Brake{place: p, fd: fd}
	if _, err := b.High(); err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

// High reads the limit as it is now, in bytes.
func (b *Brake) High() (uint64, error) {
	var buf [32]byte
	content, err := b.fd.Read(buf[:])
	if err != nil {
		return 0, b.place.failed("read memory.high", err)
	}
	high, err := parseHigh(content)
	if err != nil {
		return 0, b.place.failed("read memory.high", err)
	}
	return high, nil
}

// parseHigh reads a number of bytes, or
//
//	max
func parseHigh(content []byte) (uint64, error) {
	line, rest, err := text.Line(content)
	if err != nil {
		return 0, err
	}
	if len(rest) > 0 {
		return 0, fmt.Errorf("%w: %q", text.ErrSyntax, bytes.Clone(content))
	}
	if string(line) == "max" {
		return Unlimited, nil
	}
	n, err := text.Uint(line)
	if err != nil {
		return 0, fmt.Errorf("%w: %q", err, bytes.Clone(line))
	}
	return n, nil
}

// Lower sets the limit to so many bytes, unless it is as low already, and returns
// what it is afterwards: the kernel rounds down to whole pages.
//
// Before Linux 6.16 the kernel reclaims in this call what the cgroup has above
// the limit, which can take as long as reclaim does.
func (b *Brake) Lower(to uint64) (uint64, error) {
	return b.move(to, func(now uint64) bool { return to < now })
}

// Raise sets the limit to so many bytes, unless it is as high already, and
// returns what it is afterwards. [Unlimited] takes it away.
func (b *Brake) Raise(to uint64) (uint64, error) {
	return b.move(to, func(now uint64) bool { return to > now })
}

func (b *Brake) move(to uint64, should func(now uint64) bool) (uint64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now, err := b.High()
	if err != nil || !should(now) {
		return now, err
	}
	if err := b.write(to); err != nil {
		return now, err
	}
	if !b.on || now != b.set {
		b.was = now
	}
	b.on = true
	b.set, err = b.High()
	return b.set, err
}

// Held reads the limit, and tells what [Brake.Restore] would set it to. on is false
// where the brake has not moved it, or another has written it since: Restore would
// leave it then.
func (b *Brake) Held() (now, was uint64, on bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now, err = b.High(); err != nil {
		return 0, 0, false, err
	}
	return now, b.was, b.on && now == b.set, nil
}

// Adopt takes over from a brake that ended without giving the limit back: what it
// found, and where it may have moved it to. It is [ErrTaken] where the limit is
// none of these.
func (b *Brake) Adopt(was uint64, set ...uint64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	now, err := b.High()
	if err != nil {
		return err
	}
	if !slices.Contains(set, now) {
		return b.place.failed("adopt memory.high", fmt.Errorf("%w: it is %d", ErrTaken, now))
	}
	b.on, b.set, b.was = true, now, was
	return nil
}

// Restore gives the limit back as the brake has found it, if it has moved it.
// What another has written since is left: [ErrTaken]. Further calls do nothing,
// until it is moved again.
func (b *Brake) Restore() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.on {
		return nil
	}
	now, err := b.High()
	if err != nil {
		return err
	}
	if now != b.set {
		b.on = false
		return b.place.failed("restore memory.high", fmt.Errorf("%w: it is %d, not %d", ErrTaken, now, b.set))
	}
	if err := b.write(b.was); err != nil {
		return err
	}
	b.on = false
	return nil
}

func (b *Brake) write(high uint64) error {
	order := []byte("max")
	if high != Unlimited {
		order = strconv.AppendUint(order[:0], high, 10)
	}
	if err := b.fd.Write(order); err != nil {
		return b.place.failed("write memory.high", err)
	}
	return nil
}

// Close gives the file up, and leaves the limit as it is. Further calls do
// nothing.
func (b *Brake) Close() error { return b.fd.Close() }
