// Package stamp is the clock that a hog leaves behind for a witness outside of it: a file, mapped and
// shared, that says when which MiB of memory was touched.
//
// The hog calls Create and then, per MiB, Mark. A witness calls Read at any time, also after the hog was
// killed: a store into a shared mapping survives its writer. Times are CLOCK_MONOTONIC in nanoseconds,
// which every process on one kernel shares (outside of time namespaces), so that they compare with the
// times of the one who killed the hog.
//
// The file is an array of little-endian 64-bit words. Word 0 is the time just before the first touch, word
// i the time just after MiB i was complete. Zero means "not yet".
package stamp

import (
	"encoding/binary"
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const word = 8

// Writer marks progress in a mapped file. It is not for concurrent use.
type Writer struct {
	words []atomic.Int64
	next  int
}

// Create makes path, with room for mebibytes marks after the first, and maps it for the rest of the process. Every
// page of it is written once, so that no later Mark takes a page fault.
func Create(path string, mebibytes int) (*Writer, error) {
	n := mebibytes + 1
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return nil, fmt.Errorf("create stamp file: %w", err)
	}
	defer f.Close()
	if _, err := f.Write(make([]byte, n*word)); err != nil {
		return nil, fmt.Errorf("size stamp file: %w", err)
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, n*word, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("map stamp file: %w", err)
	}
	w := &Writer{words: unsafe.Slice((*atomic.Int64)(unsafe.Pointer(&mem[0])), n)}
	for i := range w.words {
		w.words[i].Store(0)
	}
	return w, nil
}

// Mark stores the present time in the next word: the first call is the start, call i+1 says that MiB i is
// complete. Calls beyond the room given to Create are ignored, as are those on a nil Writer.
func (w *Writer) Mark() {
	if w == nil || w.next == len(w.words) {
		return
	}
	w.words[w.next].Store(int64(Now()))
	w.next++
}

// Now is CLOCK_MONOTONIC: the time since some point before boot's end, the same for every process.
func Now() time.Duration {
	var ts unix.Timespec
	// The clock exists on every kernel and the pointer is good, so that there is no error to return.
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return time.Duration(ts.Nano())
}

// Marks are the times of a stamp file: Marks[0] is the start, Marks[i] the completion of MiB i. Only the
// marks that were set are there.
type Marks []time.Duration

// Read returns what has been marked so far.
func Read(path string) (Marks, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read stamp file: %w", err)
	}
	return parse(b)
}

func parse(b []byte) (Marks, error) {
	if len(b) == 0 || len(b)%word != 0 {
		return nil, fmt.Errorf("parse stamp file: %d bytes are no array of %d-byte words", len(b), word)
	}
	var m Marks
	for ; len(b) > 0; b = b[word:] {
		ns := int64(binary.LittleEndian.Uint64(b))
		if ns == 0 {
			break
		}
		if ns < 0 || len(m) > 0 && time.Duration(ns) < m[len(m)-1] {
			return nil, fmt.Errorf("parse stamp file: word %d (%d) goes back in time", len(m), ns)
		}
		m = append(m, time.Duration(ns))
	}
	return m, nil
}
