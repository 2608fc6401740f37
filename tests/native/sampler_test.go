package native_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/bpf"
	"github.com/evictd/evictd/tests/hog/stamp"
)

// sampler accesses the BPF sampler of a running evictd: tests write records into its ring buffer and remove its
// thresholds. The layout of its structs is read from BTF.
type sampler struct {
	t        *testing.T
	inject   *ebpf.Program // writes a record into evictd's ring buffer
	controls *ebpf.Map     // the thresholds and settings of the timer
	crossing *btf.Struct
	control  *btf.Struct
}

// sampler opens evictd's BPF sampler. The BPF lane must be up.
func (d *daemon) sampler() *sampler {
	d.t.Helper()
	s := &sampler{t: d.t}
	for _, id := range d.openIDs("prog_id:") {
		p, err := ebpf.NewProgramFromID(ebpf.ProgramID(id))
		if err != nil {
			d.t.Fatal(err)
		}
		if info, err := p.Info(); err != nil {
			d.t.Fatal(err)
		} else if info.Name == "inject" {
			d.t.Cleanup(func() { p.Close() })
			s.inject, s.crossing = p, structOf(d.t, p, "crossing")
			continue
		}
		p.Close()
	}
	for _, id := range d.openIDs("map_id:") {
		m, err := ebpf.NewMapFromID(ebpf.MapID(id))
		if err != nil {
			d.t.Fatal(err)
		}
		if info, err := m.Info(); err != nil {
			d.t.Fatal(err)
		} else if info.Name == "controls" {
			d.t.Cleanup(func() { m.Close() })
			s.controls, s.control = m, structOf(d.t, m, "control")
			continue
		}
		m.Close()
	}
	if s.inject == nil || s.controls == nil {
		d.t.Fatalf("evictd has the program inject open: %t, the map controls: %t; want both", s.inject != nil, s.controls != nil)
	}
	return s
}

// openIDs lists the ids of BPF objects of one kind that evictd has open, from the line with key in its fdinfo files.
func (d *daemon) openIDs(key string) (ids []uint32) {
	d.t.Helper()
	dir := filepath.Join("/proc", strconv.Itoa(d.cmd.Process.Pid), "fdinfo")
	entries, err := os.ReadDir(dir)
	if err != nil {
		d.t.Fatal(err)
	}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // closed since the list was read
		}
		if err != nil {
			d.t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			if rest, ok := strings.CutPrefix(line, key); ok {
				id, err := strconv.ParseUint(strings.TrimSpace(rest), 10, 32)
				if err != nil {
					d.t.Fatal(err)
				}
				ids = append(ids, uint32(id))
			}
		}
	}
	return ids
}

// structOf returns a struct from the BTF of a program or a map.
func structOf(t *testing.T, of interface{ Handle() (*btf.Handle, error) }, name string) *btf.Struct {
	t.Helper()
	handle, err := of.Handle()
	if err != nil {
		t.Fatal(err)
	}
	defer handle.Close()
	types, err := handle.Spec(nil)
	if err != nil {
		t.Fatal(err)
	}
	var s *btf.Struct
	if err := types.TypeByName(name, &s); err != nil {
		t.Fatalf("struct %s of %v: %v", name, of, err)
	}
	return s
}

// putMembers sets members of a struct, of 4 or 8 bytes each.
func putMembers(t *testing.T, s *btf.Struct, into []byte, values map[string]uint64) {
	t.Helper()
	for _, m := range s.Members {
		value, ok := values[m.Name]
		if !ok {
			continue
		}
		delete(values, m.Name)
		size, err := btf.Sizeof(m.Type)
		if err != nil {
			t.Fatal(err)
		}
		switch at := into[m.Offset.Bytes():]; size {
		case 4:
			binary.NativeEndian.PutUint32(at, uint32(value))
		case 8:
			binary.NativeEndian.PutUint64(at, value)
		default:
			t.Fatalf("%s.%s has %d bytes; want 4 or 8", s.Name, m.Name, size)
		}
	}
	if len(values) > 0 {
		t.Fatalf("struct %s has no members for %v", s.Name, values)
	}
}

// getMember reads a member of 8 bytes.
func getMember(t *testing.T, s *btf.Struct, from []byte, name string) uint64 {
	t.Helper()
	for _, m := range s.Members {
		if m.Name == name {
			return binary.NativeEndian.Uint64(from[m.Offset.Bytes():])
		}
	}
	t.Fatalf("struct %s has no member %s", s.Name, name)
	return 0
}

// podsThresholdID identifies the hard threshold on allocatableMemory.available.
var podsThresholdID = signal.IDOf(&signal.Threshold{Signal: signal.AllocatableMemoryAvailable})

// write writes a record to the ring buffer as if the timer had just seen a threshold crossed. It returns false if the
// ring is full.
func (s *sampler) write(kind bpf.Kind, id signal.ThresholdID) bool {
	s.t.Helper()
	record := make([]byte, s.crossing.Size)
	now := uint64(stamp.Now())
	putMembers(s.t, s.crossing, record, map[string]uint64{
		"kind": uint64(kind), "source": uint64(bpf.SourcePods), "key": uint64(id), "seen": now, "sent": now, "last_above": now - 1e6,
		"available": 1, "threshold": 2,
	})
	code, err := s.inject.Run(&ebpf.RunOptions{Context: record})
	if err != nil {
		s.t.Fatal(err)
	}
	return code == 0
}

// clearThresholds removes all thresholds of the timer. The timer keeps running and raises no more alarms.
func (s *sampler) clearThresholds() {
	s.t.Helper()
	control, err := s.controls.LookupBytes(uint32(0))
	if err != nil || len(control) < int(s.control.Size) {
		s.t.Fatalf("read the sampler's control: %d bytes, %v; want %d", len(control), err, s.control.Size)
	}
	if n := getMember(s.t, s.control, control, "count"); n == 0 {
		s.t.Fatal("the sampler has no threshold to remove")
	}
	putMembers(s.t, s.control, control, map[string]uint64{
		// Far above the numbers that evictd itself uses.
		"seq": getMember(s.t, s.control, control, "seq") + 1<<40, "generation": getMember(s.t, s.control, control, "generation") + 1<<40,
		"count": 0,
	})
	if err := s.controls.Put(uint32(0), control); err != nil {
		s.t.Fatal(err)
	}
}

// lane returns the status of a lane.
func (d *daemon) lane(name string) (l control.Lane) {
	d.t.Helper()
	d.waitStatus(fmt.Sprintf("status of the lane %s", name), func(s *control.Status) bool {
		for _, l = range s.Lanes {
			if l.Name == name {
				return true
			}
		}
		return false
	})
	return l
}

// waitStopped waits until every thread of evictd is stopped by SIGSTOP.
func (d *daemon) waitStopped() {
	d.t.Helper()
	tasks := filepath.Join("/proc", strconv.Itoa(d.cmd.Process.Pid), "task")
	eventually(d.t, "stop of all threads", func() bool {
		entries, err := os.ReadDir(tasks)
		if err != nil {
			d.t.Fatal(err)
		}
		for _, e := range entries {
			// The state follows the name, which is in parentheses: 4711 (evictd) T 1 ...
			b, err := os.ReadFile(filepath.Join(tasks, e.Name(), "stat"))
			if err != nil {
				return false
			}
			if at := bytes.LastIndexByte(b, ')'); at < 0 || !bytes.HasPrefix(b[at:], []byte(") T ")) {
				return false
			}
		}
		return true
	})
}
