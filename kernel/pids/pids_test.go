package pids

import (
	"errors"
	"os"
	"testing"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/kerneltest"
)

func TestReadNode(t *testing.T) {
	tree := func(pidMax, threadsMax, loadavg string) map[string]string {
		return map[string]string{"sys/kernel/pid_max": pidMax, "sys/kernel/threads-max": threadsMax, "loadavg": loadavg}
	}
	for _, tt := range []struct {
		name  string
		files map[string]string
		want  Node
		bad   bool
	}{
		{"pid_max is lower", tree("32768\n", "192730\n", "4.61 2.72 2.56 5/163 7213\n"), Node{163, 32768}, false},
		{"threads-max is lower", tree("4194304\n", "192730\n", "0.00 0.00 0.00 1/99999 1\n"), Node{99999, 192730}, false},
		{"no number", tree("x\n", "192730\n", "0.00 0.00 0.00 1/9 1\n"), Node{}, true},
		{"negative", tree("-1\n", "192730\n", "0.00 0.00 0.00 1/9 1\n"), Node{}, true},
		{"no slash", tree("1\n", "1\n", "0.00 0.00 0.00 9 1\n"), Node{}, true},
		{"short", tree("1\n", "1\n", "0.00 0.00\n"), Node{}, true},
		{"empty", tree("", "", ""), Node{}, true},
		{"missing", map[string]string{"loadavg": "0.00 0.00 0.00 1/9 1\n"}, Node{}, true},
	} {
		got, err := ReadNode(kernel.FS(kerneltest.Tree(t, tt.files)))
		if got != tt.want || (err != nil) != tt.bad {
			t.Errorf("%s: ReadNode = %+v, %v; want %+v, an error: %t", tt.name, got, err, tt.want, tt.bad)
		}
	}
}

// The node has at least as many tasks as this process has threads.
func TestReadNodeHere(t *testing.T) {
	got, err := ReadNode("/proc")
	if err != nil {
		t.Fatal(err)
	}
	own, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	if got.Tasks < uint64(len(own)) || got.Max < got.Tasks {
		t.Errorf("ReadNode = %+v; this process alone has %d threads", got, len(own))
	}
}

func TestReadCgroup(t *testing.T) {
	for _, tt := range []struct {
		name         string
		files        map[string]string
		want         Cgroup
		bad, missing bool
	}{
		{"limited", map[string]string{"p/pids.current": "12\n", "p/pids.max": "10000\n"}, Cgroup{12, true, 10000}, false, false},
		{"over its limit", map[string]string{"p/pids.current": "12\n", "p/pids.max": "10\n"}, Cgroup{12, true, 10}, false, false},
		{"not limited", map[string]string{"p/pids.current": "12\n", "p/pids.max": "max\n"}, Cgroup{Tasks: 12}, false, false},
		{"no controller", map[string]string{"p/": ""}, Cgroup{}, true, true},
		{"no cgroup", nil, Cgroup{}, true, true},
		{"malformed", map[string]string{"p/pids.current": "12\n", "p/pids.max": "many\n"}, Cgroup{}, true, false},
		{"empty", map[string]string{"p/pids.current": "", "p/pids.max": "max\n"}, Cgroup{}, true, false},
	} {
		got, err := ReadCgroup(kernel.FS(kerneltest.Tree(t, tt.files)), "/p")
		if got != tt.want || (err != nil) != tt.bad || errors.Is(err, kernel.ErrUnavailable) != tt.missing {
			t.Errorf("%s: ReadCgroup = %+v, %v; want %+v", tt.name, got, err, tt.want)
		}
	}
}

func FuzzParseLoadavg(f *testing.F) {
	for _, s := range []string{"0.20 0.18 0.12 1/80 11206\n", "", "/", "a b c / d", "0 0 0 1/18446744073709551616 1"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		if n, err := parseLoadavg(content); err != nil && n != 0 {
			t.Errorf("parseLoadavg(%q) = %d, %v", content, n, err)
		}
	})
}
