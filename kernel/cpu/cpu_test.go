package cpu

import (
	"errors"
	"io/fs"
	"runtime"
	"testing"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/kerneltest"
)

var lists = []struct {
	list  string
	want  int
	fails bool
}{
	{list: "0\n", want: 1},
	{list: "0-1\n", want: 2},
	{list: "0-3,6,8-11\n", want: 9},
	{list: "1-511\n", want: 511},
	{list: "0-1", fails: true}, // cut
	{list: "", fails: true},
	{list: "\n", fails: true},
	{list: "0-\n", fails: true},
	{list: "3-1\n", fails: true},
	{list: "0-1,1\n", fails: true},
	{list: "0,,1\n", fails: true},
	{list: "0-1\r\n", fails: true},
	{list: "0\n1\n", fails: true},
	{list: "0-18446744073709551615\n", fails: true},
	{list: "cpu0\n", fails: true},
}

func TestParseList(t *testing.T) {
	for _, test := range lists {
		got, err := parseList([]byte(test.list))
		if got != test.want || (err != nil) != test.fails {
			t.Errorf("parseList(%q) = %d, %v; want %d and an error: %t", test.list, got, err, test.want, test.fails)
		}
	}
}

func FuzzParseList(f *testing.F) {
	for _, test := range lists {
		f.Add([]byte(test.list))
	}
	f.Fuzz(func(t *testing.T, list []byte) {
		got, err := parseList(list)
		if err == nil && (got < 1 || got > maxCPUs) || err != nil && got != 0 {
			t.Errorf("parseList(%q) = %d, %v; want a count from 1 to %d, or 0 with an error", list, got, err, maxCPUs)
		}
	})
}

func TestOnline(t *testing.T) {
	tree := kernel.FS(kerneltest.Tree(t, map[string]string{"devices/system/cpu/online": "0-63\n"}))
	if got, err := Online(tree); got != 64 || err != nil {
		t.Errorf("Online() = %d, %v; want 64", got, err)
	}
	if got, err := Online(kernel.FS(t.TempDir())); got != 0 || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Online() without the file = %d, %v; want %v", got, err, fs.ErrNotExist)
	}
}

// A process may run on all online CPUs or on fewer.
func TestOnlineHere(t *testing.T) {
	if got, err := Online("/sys"); err != nil || got < runtime.NumCPU() {
		t.Errorf("Online() = %d, %v; want no less than %d", got, err, runtime.NumCPU())
	}
}
