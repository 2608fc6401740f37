package psi

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/evictd/evictd/kernel"
)

var cases = []struct {
	name, text string
	want       Stall
	ok         bool
}{
	{"idle", "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n", Stall{}, true},
	{"stalled", "some avg10=1.53 avg60=0.87 avg300=0.27 total=4221654\nfull avg10=0.65 avg60=0.42 avg300=0.11 total=2084513\n",
		Stall{4221654 * time.Microsecond, 2084513 * time.Microsecond}, true},
	{"CRLF and a line of the future", "some avg10=0.00 total=7\r\nmost total=x\r\nfull total=5\r\n", Stall{7 * time.Microsecond, 5 * time.Microsecond}, true},
	{"empty", "", Stall{}, false},
	{"no full line", "some avg10=0.00 total=1\n", Stall{}, false},
	{"no total", "some avg10=0.00\nfull total=1\n", Stall{}, false},
	{"negative", "some total=-1\nfull total=1\n", Stall{}, false},
	{"too large", "some total=9223372036854775807\nfull total=1\n", Stall{}, false},
	{"cut short", "some avg10=0.00 avg60=0.00 avg300=0.00 total=", Stall{}, false},
}

func TestParse(t *testing.T) {
	for _, tc := range cases {
		got, err := parse([]byte(tc.text))
		if got != tc.want || (err == nil) != tc.ok {
			t.Errorf("%s: parse(%q) = %v, %v; want %v, ok %v", tc.name, tc.text, got, err, tc.want, tc.ok)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, tc := range cases {
		f.Add([]byte(tc.text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if s, err := parse(text); s.Some < 0 || s.Full < 0 || err != nil && s != (Stall{}) {
			t.Errorf("parse(%q) = %v, %v", text, s, err)
		}
	})
}

func TestMemoryUnavailable(t *testing.T) {
	if _, err := Memory(kernel.FS(t.TempDir())); !errors.Is(err, kernel.ErrUnavailable) {
		t.Errorf("Memory() without the file = %v; want ErrUnavailable", err)
	}
}

func TestMemoryHere(t *testing.T) {
	if _, err := os.Stat("/proc/pressure/memory"); err != nil {
		t.Skip("needs a kernel with PSI: ", err)
	}
	before, err := Memory("/proc")
	if err != nil {
		t.Fatal(err)
	}
	after, err := Memory("/proc")
	if err != nil {
		t.Fatal(err)
	}
	if after.Some < before.Some || after.Full < before.Full {
		t.Errorf("Memory() went back from %v to %v", before, after)
	}
}
