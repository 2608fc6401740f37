package podfence

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/evictd/evictd/kernel/cgroup"
)

// MaxNote is the maximum length of a note in a mark, in bytes.
const MaxNote = 512

// The layout of the file: a header and maxFences records, all of recordSize bytes, with
// numbers in little endian. A free record is all zero.
const (
	maxFences  = 256
	recordSize = 1024
	fileSize   = (1 + maxFences) * recordSize

	maxUID   = 64
	maxOrder = 64
	maxPath  = recordSize - MaxNote - 48 - maxUID - maxOrder
)

// The offsets in a record, and the bits of its flags.
const (
	atChecksum = 0  // uint32: of the boot id and the rest of the record
	atFlags    = 4  // uint8
	atUIDLen   = 5  // uint8
	atOrderLen = 6  // uint8
	atPathLen  = 8  // uint16
	atNoteLen  = 10 // uint16
	atID       = 16 // uint64
	atOld      = 24 // uint64 for each limit file
	atUID      = 48
	atOrder    = atUID + maxUID
	atPath     = atOrder + maxOrder
	atNote     = atPath + maxPath

	flagUsed = 1 << 7 // the lowest bits are the limit files of the mark
	// flagForks is ignored by versions that do not know it: their check completes the fence.
	flagForks = 1 << 6
)

// header identifies the file and its format. The boot id follows.
const header = "evictd fences 2\n"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// mark is what a record says: which limits the fence of a pod replaced.
type mark struct {
	uid, order, path string
	note             string // about the order, for the next evictd
	id               uint64 // of the cgroup
	forks            bool   // pids.max is not set: the pod's processes can fork
	has              [cgroup.LimitFiles]bool
	old              [cgroup.LimitFiles]cgroup.Limit // of the files in has
}

type record [recordSize]byte

// checkMark fails if a mark does not fit into a record.
func checkMark(uid, path string) error {
	if len(uid) > maxUID || len(path) > maxPath {
		return fmt.Errorf("UID of %d bytes and cgroup path of %d; at most %d and %d can be marked", len(uid), len(path), maxUID, maxPath)
	}
	return nil
}

// encode writes a mark that fits. It does not allocate.
func (r *record) encode(m *mark, seed uint32) {
	*r = record{}
	r[atFlags] = flagUsed
	if m.forks {
		r[atFlags] |= flagForks
	}
	for f, has := range m.has {
		if has {
			r[atFlags] |= 1 << f
			binary.LittleEndian.PutUint64(r[atOld+8*f:], uint64(m.old[f]))
		}
	}
	r[atUIDLen], r[atOrderLen] = uint8(len(m.uid)), uint8(len(m.order))
	binary.LittleEndian.PutUint16(r[atPathLen:], uint16(len(m.path)))
	binary.LittleEndian.PutUint16(r[atNoteLen:], uint16(len(m.note)))
	binary.LittleEndian.PutUint64(r[atID:], m.id)
	copy(r[atUID:atUID+maxUID], m.uid)
	copy(r[atOrder:atOrder+maxOrder], m.order)
	copy(r[atPath:], m.path)
	copy(r[atNote:], m.note)
	binary.LittleEndian.PutUint32(r[atChecksum:], r.checksum(seed))
}

// bootSeed is the start of each checksum of a boot.
func bootSeed(bootID string) uint32 { return crc32.Checksum([]byte(bootID), castagnoli) }

func (r *record) checksum(seed uint32) uint32 {
	return crc32.Update(seed, castagnoli, r[atChecksum+4:])
}

// decode parses a record that is not free. It fails for one that was written in part or
// changed, with what can be read of it.
func (r *record) decode(seed uint32) (mark, error) {
	uid := r[atUID:][:min(int(r[atUIDLen]), maxUID)]
	order := r[atOrder:][:min(int(r[atOrderLen]), maxOrder)]
	path := r[atPath:][:min(int(binary.LittleEndian.Uint16(r[atPathLen:])), maxPath)]
	note := r[atNote:][:min(int(binary.LittleEndian.Uint16(r[atNoteLen:])), MaxNote)]
	if binary.LittleEndian.Uint32(r[atChecksum:]) != r.checksum(seed) {
		return mark{}, fmt.Errorf("wrong checksum; it may be the mark of pod %q with cgroup %q", uid, path)
	}
	m := mark{uid: string(uid), order: string(order), path: string(path), note: string(note), id: binary.LittleEndian.Uint64(r[atID:]), forks: r[atFlags]&flagForks != 0}
	if r[atFlags]&flagUsed == 0 || !cgroup.IsPod(m.path, m.uid) {
		return mark{}, fmt.Errorf("it names cgroup %q for pod %q", m.path, m.uid)
	}
	for f := range m.has {
		m.has[f] = r[atFlags]&(1<<f) != 0
		m.old[f] = cgroup.Limit(binary.LittleEndian.Uint64(r[atOld+8*f:]))
	}
	return m, nil
}

// encodeHeader returns the first record of the file.
func encodeHeader(bootID string) (r record) {
	copy(r[copy(r[:], header):], bootID)
	return r
}

// slotMark is a mark and the number of its record.
type slotMark struct {
	slot int
	mark
}

// parseMarks returns the marks in the content of a file. It skips those of another boot,
// whose checksums differ. The error joins one for each record that is broken, and for a
// broken header, without which marks are found all the same.
func parseMarks(content []byte, bootID string) (marks []slotMark, err error) {
	if len(content) == 0 {
		return nil, nil // just made
	}
	var errs []error
	first, want := content[:min(len(content), recordSize)], encodeHeader(bootID)
	otherBoot := false
	switch {
	case bytes.Equal(first, want[:]):
	case bytes.HasPrefix(first, []byte(header)):
		otherBoot = true
	default:
		errs = append(errs, errors.New("the header is broken"))
	}
	if len(content) != fileSize {
		errs = append(errs, fmt.Errorf("it has %d bytes, not %d", len(content), fileSize))
	}
	seed := bootSeed(bootID)
	for slot, rest := 0, content[len(first):]; len(rest) > 0 && slot < maxFences; slot++ {
		var r record
		rest = rest[copy(r[:], rest):]
		if r == (record{}) {
			continue
		}
		m, err := r.decode(seed)
		if err == nil {
			marks = append(marks, slotMark{slot, m})
		} else if !otherBoot {
			errs = append(errs, fmt.Errorf("record %d is broken: %w", slot, err))
		}
	}
	return marks, errors.Join(errs...)
}
