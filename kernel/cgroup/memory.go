package cgroup

import (
	"bytes"
	"fmt"
	"math/bits"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/internal/sys"
	"github.com/evictd/evictd/kernel/internal/text"
)

// Memory is the memory usage of a cgroup and its descendants, in bytes. The files
// are read one after the other, usage last, so the values of a busy cgroup are
// slightly inconsistent.
type Memory struct {
	Usage uint64
	// WorkingSet is Usage minus InactiveFile, at least 0. The kubelet ranks pods by
	// it.
	WorkingSet   uint64
	InactiveFile uint64
	ActiveFile   uint64
	File         uint64 // page cache, including Shmem
	Anon         uint64
	Shmem        uint64
	MappedFile   uint64
	Limit        uint64 // of this cgroup, not of an ancestor; 0 unless Limited
	Limited      bool
}

// The keys of memory.stat that are read, in the order of v1.
const (
	statFile = iota
	statAnon
	statShmem
	statMapped
	statInactive
	statActive
	statKeys
)

type stat [statKeys]uint64

// On v1, keys without "total_" do not include descendants (mm/memcontrol-v1.c:
// memcg1_stat_format), and rss is the anonymous memory.
var (
	keysV1 = [statKeys]string{"total_cache", "total_rss", "total_shmem", "total_mapped_file", "total_inactive_file", "total_active_file"}
	keysV2 = [statKeys]string{"file", "anon", "shmem", "file_mapped", "inactive_file", "active_file"}
)

// unlimited is the limit above which the kubelet treats a cgroup as unlimited: for no
// limit, v1 prints the largest number of pages, in bytes.
const unlimited = 1 << 62

// Memory reads the memory of the subtree. The v2 root has no usage file; its usage
// is the sum of anonymous memory and page cache, as on v1.
func (c *Cgroup) Memory() (Memory, error) {
	var m Memory
	err := c.ReadMemory(&m)
	return m, err
}

// ReadMemory is [Cgroup.Memory] without allocations. It leaves m unchanged on an
// error. Reading memory.stat can block while the kernel flushes its statistics
// (rstat).
func (c *Cgroup) ReadMemory(m *Memory) error {
	if err := c.readMemory(m); err != nil {
		return c.wrap("read memory", err)
	}
	return nil
}

func (c *Cgroup) readMemory(m *Memory) error {
	// memory.stat has at most one page, and usually half of 4 KiB. The buffer is on
	// the stack, so that concurrent readers share nothing.
	var buf [8 << 10]byte
	b, err := c.stat.Read(buf[:])
	if err != nil {
		return err
	}
	s, err := parseStat(b, c.keys())
	if err != nil {
		return err
	}
	got := Memory{
		InactiveFile: s[statInactive], ActiveFile: s[statActive], File: s[statFile],
		Anon: s[statAnon], Shmem: s[statShmem], MappedFile: s[statMapped],
	}
	if c.usage == nil {
		sum, carry := bits.Add64(got.Anon, got.File, 0)
		if carry != 0 {
			return fmt.Errorf("memory.stat: %w: anon and file", text.ErrRange)
		}
		got.Usage = sum
	} else {
		if got.Limit, got.Limited, err = readLimit(c.limit, buf[:]); err != nil {
			return err
		}
		if got.Usage, err = readUint(c.usage, buf[:]); err != nil {
			return fmt.Errorf("memory usage: %w", err)
		}
	}
	got.WorkingSet = got.Usage - min(got.Usage, got.InactiveFile)
	*m = got
	return nil
}

func (c *Cgroup) keys() *[statKeys]string {
	if c.h.v1() {
		return &keysV1
	}
	return &keysV2
}

// parseStat parses memory.stat:
//
//	anon 12185600
//	file 28033024
//	…
func parseStat(b []byte, keys *[statKeys]string) (stat, error) {
	var s stat
	var seen uint
	for len(b) > 0 {
		line, rest, err := text.Line(b)
		if err != nil {
			return stat{}, fmt.Errorf("memory.stat: %w", err)
		}
		b = rest
		key, value, _ := bytes.Cut(line, []byte{' '})
		for i := range keys {
			if string(key) != keys[i] {
				continue
			}
			if seen&(1<<i) != 0 {
				return stat{}, fmt.Errorf("memory.stat: duplicate key %s", keys[i])
			}
			if s[i], err = text.Uint(value); err != nil {
				return stat{}, fmt.Errorf("memory.stat: %s: %w: %q", keys[i], err, bytes.Clone(value))
			}
			seen |= 1 << i
			break
		}
	}
	for i := range keys {
		if seen&(1<<i) == 0 {
			return stat{}, fmt.Errorf("memory.stat: no line for %q", keys[i])
		}
	}
	return s, nil
}

// readLimit reads memory.limit_in_bytes or memory.max. limited is false for "max"
// and for the value by which v1 prints no limit.
func readLimit(fd *sys.FD, buf []byte) (limit uint64, limited bool, err error) {
	b, err := fd.Read(buf)
	if err != nil {
		return 0, false, err
	}
	b = bytes.TrimSuffix(b, []byte{'\n'})
	if string(b) == "max" {
		return 0, false, nil
	}
	n, err := text.Uint(b)
	if err != nil {
		return 0, false, fmt.Errorf("memory limit: %w: %q", err, bytes.Clone(b))
	}
	if n > unlimited {
		return 0, false, nil
	}
	return n, true, nil
}

// readUint reads a file with one number.
func readUint(fd *sys.FD, buf []byte) (uint64, error) {
	b, err := fd.Read(buf)
	if err != nil {
		return 0, err
	}
	b = bytes.TrimSuffix(b, []byte{'\n'})
	n, err := text.Uint(b)
	if err != nil {
		return 0, fmt.Errorf("%w: %q", err, bytes.Clone(b))
	}
	return n, nil
}

// OOMGroup reports whether the kernel's OOM killer kills all processes of the
// cgroup together (memory.oom.group, mm/memcontrol.c: mem_cgroup_get_oom_group).
// It fails with [kernel.ErrUnavailable] on v1.
func (c *Cgroup) OOMGroup() (bool, error) {
	if c.h.v1() {
		return false, fmt.Errorf("memory.oom.group on v1: %w", kernel.ErrUnavailable)
	}
	fd, err := c.dir.OpenAt("memory.oom.group", unix.O_RDONLY)
	if err != nil {
		return false, c.wrap("read memory.oom.group", err)
	}
	defer fd.Close()
	var buf [32]byte
	n, err := readUint(fd, buf[:])
	if err != nil {
		return false, c.wrap("read memory.oom.group", err)
	}
	return n != 0, nil
}
