package stamp

import (
	"encoding/binary"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func words(ns ...int64) []byte {
	var b []byte
	for _, n := range ns {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	return b
}

func TestWriterThenRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stamp")
	w, err := Create(path, 3)
	if err != nil {
		t.Fatal(err)
	}
	before := Now()
	for range 3 {
		w.Add()
	}
	times, err := Read(path) // while still mapped, as another process does
	if err != nil {
		t.Fatal(err)
	}
	if len(times) != 3 {
		t.Fatalf("after the start and 2 MiB: %d times; want 3", len(times))
	}
	if times[0] < before || times[2] > Now() {
		t.Errorf("times %v; want them between %v and now", times, before)
	}
	for range 5 {
		w.Add() // one fits, the others are beyond the room
	}
	if times, err = Read(path); err != nil || len(times) != 4 {
		t.Errorf("Read = %d times, %v; want 4, nil", len(times), err)
	}
}

func TestNilWriter(t *testing.T) {
	var w *Writer
	w.Add()
}

var parseTests = []struct {
	name string
	in   []byte
	want Times
	err  string
}{
	{name: "started", in: words(7, 0, 0), want: Times{7}},
	{name: "not started", in: words(0, 0)},
	{name: "two", in: words(7, 8, 8), want: Times{7, 8, 8}},
	{name: "a hole ends it", in: words(7, 0, 9), want: Times{7}},
	{name: "empty", err: "0 bytes"},
	{name: "short", in: words(7)[:5], err: "5 bytes"},
	{name: "backwards", in: words(7, 6), err: "word 1 (6) is negative or before"},
	{name: "negative", in: words(-1), err: "word 0 (-1) is negative or before"},
}

func TestParse(t *testing.T) {
	for _, tt := range parseTests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parse(tt.in)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("parse(%v) = %v, %v; want an error with %q", tt.in, got, err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatalf("parse(%v) = %v; want none", tt.in, err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("parse(%v) (-want +got):\n%s", tt.in, diff)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	for _, tt := range parseTests {
		f.Add(tt.in)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		times, err := parse(b)
		if err != nil {
			return
		}
		if len(times) > len(b)/word {
			t.Fatalf("parse of %d bytes = %d times", len(b), len(times))
		}
		for i := 1; i < len(times); i++ {
			if times[i] < times[i-1] {
				t.Fatalf("parse accepted a time before its predecessor: %v", times)
			}
		}
	})
}
