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
	m, err := Read(path) // while still mapped, as a witness does
	if err != nil {
		t.Fatal(err)
	}
	if len(m) != 3 {
		t.Fatalf("after the start and 2 MiB: %d marks; want 3", len(m))
	}
	if m[0] < before || m[2] > Now() {
		t.Errorf("marks %v; want them between %v and now", m, before)
	}
	for range 5 {
		w.Add() // one fits, the others are beyond the room
	}
	if m, err = Read(path); err != nil || len(m) != 4 {
		t.Errorf("Read = %d marks, %v; want 4, nil", len(m), err)
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
		m, err := parse(b)
		if err != nil {
			return
		}
		if len(m) > len(b)/word {
			t.Fatalf("parse of %d bytes = %d marks", len(b), len(m))
		}
		for i := 1; i < len(m); i++ {
			if m[i] < m[i-1] {
				t.Fatalf("parse accepted a mark before its predecessor: %v", m)
			}
		}
	})
}
