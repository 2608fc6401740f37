package text

import (
	"errors"
	"strconv"
	"testing"
)

func TestUint(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want uint64
		err  error
	}{
		{"0", 0, nil},
		{"4096", 4096, nil},
		{"007", 7, nil},
		{"18446744073709551615", 1<<64 - 1, nil},
		{"18446744073709551616", 0, ErrRange},
		{"99999999999999999999999", 0, ErrRange},
		{"", 0, ErrSyntax},
		{"max", 0, ErrSyntax},
		{"-1", 0, ErrSyntax},
		{"+1", 0, ErrSyntax},
		{" 1", 0, ErrSyntax},
		{"1\r", 0, ErrSyntax},
		{"1_000", 0, ErrSyntax},
		{"0x10", 0, ErrSyntax},
	} {
		if got, err := Uint([]byte(tt.in)); got != tt.want || !errors.Is(err, tt.err) {
			t.Errorf("Uint(%q) = %d, %v; want %d, %v", tt.in, got, err, tt.want, tt.err)
		}
	}
}

func FuzzUint(f *testing.F) {
	for _, s := range []string{"0", "18446744073709551616", "-1", "1\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := Uint(b)
		want, wantErr := strconv.ParseUint(string(b), 10, 64)
		if (err == nil) != (wantErr == nil) || err == nil && got != want {
			t.Errorf("Uint(%q) = %d, %v; want %d, %v", b, got, err, want, wantErr)
		}
	})
}

func TestLine(t *testing.T) {
	for _, tt := range []struct {
		in, line, rest string
		err            error
	}{
		{"a\nb\n", "a", "b\n", nil},
		{"\n", "", "", nil},
		{"a", "", "", ErrCut},
		{"", "", "", ErrCut},
	} {
		line, rest, err := Line([]byte(tt.in))
		if string(line) != tt.line || string(rest) != tt.rest || !errors.Is(err, tt.err) {
			t.Errorf("Line(%q) = %q, %q, %v; want %q, %q, %v", tt.in, line, rest, err, tt.line, tt.rest, tt.err)
		}
	}
}
