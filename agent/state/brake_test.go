package state

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"testing"
)

func TestBrake(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	check := func(boot string, want Brake, ok bool) {
		t.Helper()
		if got, there, err := s.LoadBrake(boot); got != want || there != ok || err != nil {
			t.Errorf("LoadBrake(%s) = %+v, %t, %v; want %+v, %t", boot, got, there, err, want, ok)
		}
	}
	check("one", Brake{}, false)
	// A limit of "max" has all its bits set, more than a float64 can hold.
	first := Brake{"one", "/kubepods.slice", 4711, math.MaxUint64, math.MaxUint64, 1 << 30}
	second := Brake{"one", "/kubepods.slice", 4711, math.MaxUint64, 1 << 30, 1<<30 + 4096}
	for _, b := range []Brake{first, second} {
		if err := s.SaveBrake(b); err != nil {
			t.Fatal(err)
		}
		check("one", b, true)
	}
	check("two", Brake{}, false)
	for range 2 {
		if err := s.ClearBrake(); err != nil {
			t.Errorf("ClearBrake() = %v; want nil", err)
		}
		check("one", Brake{}, false)
	}

	for _, content := range []string{"", "{", `{"was": -1}`, "[]"} {
		path := filepath.Join(dir, brakeName)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		var corrupt *CorruptError
		if _, ok, err := s.LoadBrake("one"); ok || !errors.As(err, &corrupt) {
			t.Errorf("LoadBrake() of %q = %t, %v; want a CorruptError", content, ok, err)
		}
		check("one", Brake{}, false) // it is set aside
	}
}
