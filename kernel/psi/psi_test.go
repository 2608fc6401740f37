package psi

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/kerneltest"
)

var cases = []struct {
	name, text string
	some, full time.Duration // -1 for an error
}{
	{"idle", "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n", 0, 0},
	{"stalled", "some avg10=1.53 avg60=0.87 avg300=0.27 total=4221654\nfull avg10=0.65 avg60=0.42 avg300=0.11 total=2084513\n",
		4221654 * time.Microsecond, 2084513 * time.Microsecond},
	{"cpu before 5.13", "some avg10=1.53 avg60=0.87 avg300=0.27 total=4221654\n", 4221654 * time.Microsecond, -1},
	{"CRLF and an unknown line", "some avg10=0.00 total=7\r\nmost total=x\r\nfull total=5\r\n", 7 * time.Microsecond, 5 * time.Microsecond},
	{"an unknown field", "some total=7 avg900=0.00\nfull avg10=0.00 total=5 total2=x\n", 7 * time.Microsecond, 5 * time.Microsecond},
	{"empty", "", -1, -1},
	{"no total", "some avg10=0.00\nfull total=1\n", -1, time.Microsecond},
	{"negative", "some total=-1\nfull total=1\n", -1, time.Microsecond},
	{"too large", "some total=9223372036854775807\nfull total=1\n", -1, time.Microsecond},
	{"cut short", "some avg10=0.00 total=12\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=12", 12 * time.Microsecond, -1},
}

func TestParse(t *testing.T) {
	for _, tc := range cases {
		for kind, want := range map[Kind]time.Duration{Some: tc.some, Full: tc.full} {
			got, err := parse([]byte(tc.text), kind)
			if err != nil {
				got = -1
			}
			if got != want {
				t.Errorf("%s: parse(%q, %s) = %v, %v; want %v", tc.name, tc.text, kind, got, err, want)
			}
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, tc := range cases {
		f.Add([]byte(tc.text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, kind := range []Kind{Some, Full} {
			if total, err := parse(text, kind); total < 0 || err != nil && total != 0 {
				t.Errorf("parse(%q, %s) = %v, %v", text, kind, total, err)
			}
		}
	})
}

func TestRead(t *testing.T) {
	const two, one = "some avg10=0.00 total=7\nfull avg10=0.00 total=5\n", "some avg10=0.00 total=7\n"
	for _, tc := range []struct {
		files       map[string]string
		memory, io  Stall
		cpu         time.Duration
		unavailable bool
	}{
		{files: map[string]string{"pressure/memory": two, "pressure/io": two, "pressure/cpu": one},
			memory: Stall{7 * time.Microsecond, 5 * time.Microsecond}, io: Stall{7 * time.Microsecond, 5 * time.Microsecond}, cpu: 7 * time.Microsecond},
		{files: map[string]string{"meminfo": ""}, unavailable: true},
	} {
		proc := kernel.FS(kerneltest.Tree(t, tc.files))
		memory, err1 := Memory(proc)
		io, err2 := IO(proc)
		cpu, err3 := CPU(proc)
		if memory != tc.memory || io != tc.io || cpu != tc.cpu {
			t.Errorf("of %q: memory %v, io %v, cpu %v; want %v, %v, %v", tc.files, memory, io, cpu, tc.memory, tc.io, tc.cpu)
		}
		for _, err := range []error{err1, err2, err3} {
			if (err != nil) != tc.unavailable || errors.Is(err, kernel.ErrUnavailable) != tc.unavailable {
				t.Errorf("of %q: %v; want ErrUnavailable %v", tc.files, err, tc.unavailable)
			}
		}
	}
}

// A malformed file is an error, but not ErrUnavailable.
func TestReadBroken(t *testing.T) {
	proc := kernel.FS(kerneltest.Tree(t, map[string]string{"pressure/memory": "some avg10=0.00 total=7\n", "pressure/cpu": "full total=7\n"}))
	_, err1 := Memory(proc)
	_, err2 := CPU(proc)
	for _, err := range []error{err1, err2} {
		if err == nil || errors.Is(err, kernel.ErrUnavailable) {
			t.Errorf("error of a file without the line = %v; want one other than ErrUnavailable", err)
		}
	}
}

func TestReadHere(t *testing.T) {
	if _, err := os.Stat("/proc/pressure/memory"); err != nil {
		t.Skip("needs a kernel with PSI: ", err)
	}
	type totals struct {
		memory, io Stall
		cpu        time.Duration
	}
	read := func() totals {
		memory, err1 := Memory("/proc")
		io, err2 := IO("/proc")
		cpu, err3 := CPU("/proc")
		if err := errors.Join(err1, err2, err3); err != nil {
			t.Fatal(err)
		}
		return totals{memory, io, cpu}
	}
	before := read()
	after := read()
	if after.memory.Some < before.memory.Some || after.memory.Full < before.memory.Full ||
		after.io.Some < before.io.Some || after.io.Full < before.io.Full || after.cpu < before.cpu {
		t.Errorf("totals decreased from %+v to %+v", before, after)
	}
}
