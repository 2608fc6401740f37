package process

import (
	"errors"
	"os"
	"testing"

	"github.com/evictd/evictd/kernel"
)

var uidsTests = []struct {
	name, text string
	want       UIDs
	ok         bool
}{
	{"root", "Name:\tsystemd\nUmask:\t0000\nPid:\t1\nUid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\n", UIDs{}, true},
	{"a set-user-id program", "Name:\tsu\nUid:\t1000\t0\t0\t0\n", UIDs{Real: 1000}, true},
	{"without a mapping in the user namespace", "Uid:\t65534\t65534\t65534\t4294967295\n", UIDs{65534, 65534, 65534, 1<<32 - 1}, true},
	{"a name that looks like the line", "Name:\t\\nUid:\t0\t0\t0\t0\nUid:\t7\t7\t7\t7\n", UIDs{7, 7, 7, 7}, true},
	{"empty", "", UIDs{}, false},
	{"no such line", "Name:\tx\nGid:\t0\t0\t0\t0\n", UIDs{}, false},
	{"too few", "Uid:\t0\t0\t0\n", UIDs{}, false},
	{"too many", "Uid:\t0\t0\t0\t0\t0\n", UIDs{}, false},
	{"not a number", "Uid:\t0\tx\t0\t0\n", UIDs{}, false},
	{"negative", "Uid:\t0\t0\t0\t-1\n", UIDs{}, false},
}

func TestParseUIDs(t *testing.T) {
	for _, tt := range uidsTests {
		if got, err := parseUIDs([]byte(tt.text)); got != tt.want || (err == nil) != tt.ok {
			t.Errorf("parseUIDs(%s) = %v, %v; want %v, ok %t", tt.name, got, err, tt.want, tt.ok)
		}
	}
}

func FuzzParseUIDs(f *testing.F) {
	for _, tt := range uidsTests {
		f.Add([]byte(tt.text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if u, err := parseUIDs(text); err != nil && u != (UIDs{}) {
			t.Errorf("parseUIDs(%q) = %v with an error", text, u)
		}
	})
}

func TestReadUIDs(t *testing.T) {
	u, err := ReadUIDs("/proc", os.Getpid())
	if err != nil || int(u.Real) != os.Getuid() || int(u.Effective) != os.Geteuid() {
		t.Errorf("ReadUIDs() of this process = %+v, %v; want %d and %d", u, err, os.Getuid(), os.Geteuid())
	}
	if _, err := ReadUIDs(kernel.FS(t.TempDir()), 1); !errors.Is(err, ErrGone) {
		t.Errorf("ReadUIDs() without the process = %v; want %v", err, ErrGone)
	}
}
