package cgroup

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/kernel/kerneltest"
)

func TestMemory(t *testing.T) {
	v1, v2 := treeV1(t), treeV2(t)
	cgroupV1(t, v1, "/below", "4096\n", "9223372036854771712\n", "")
	statV1 := Memory{InactiveFile: 233840640, ActiveFile: 315830272, File: 558755840, Anon: 41914368, Shmem: 9084928, MappedFile: 17035264}
	statV2 := Memory{InactiveFile: 12288000, ActiveFile: 4091904, File: 16384000, Anon: 1548288, Shmem: 4096, MappedFile: 11010048}
	with := func(m Memory, usage, workingSet, limit uint64) Memory {
		m.Usage, m.WorkingSet, m.Limit, m.Limited = usage, workingSet, limit, limit != 0
		return m
	}
	for _, tt := range []struct {
		name, path string
		files      map[string]string
		want       Memory
	}{
		{"v1 root", "/", v1, with(statV1, 600670208, 600670208-233840640, 0)},
		{"v1 limited", "/kubepods", v1, with(statV1, 629145600, 629145600-233840640, 1<<30)},
		{"v1 inactive file above usage", "/below", v1, with(statV1, 4096, 0, 0)},
		{"v2 root", "/", v2, with(statV2, 17932288, 5644288, 0)},
		{"v2 limited", "/kubepods.slice", v2, with(statV2, 629145600, 616857600, 1<<30)},
		{"v2 max", "/kubepods.slice/kubepods-pod1.slice/cri-containerd-a.scope", v2, with(statV2, 67108864, 54820864, 0)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h, _ := findTree(t, tt.files)
			got, err := open(t, h, tt.path).Memory()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("Memory() (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMemoryErrors(t *testing.T) {
	h, root := findTree(t, treeV2(t))
	c := open(t, h, "/kubepods.slice")
	before, err := c.Memory()
	if err != nil {
		t.Fatal(err)
	}
	stat := testdata(t, "v2.memory.stat")
	for _, tt := range []struct{ file, content, err string }{
		{"memory.current", "\n", "not a decimal number"},
		{"memory.current", "max\n", "not a decimal number"},
		{"memory.current", "-4096\n", "not a decimal number"},
		{"memory.current", "18446744073709551616\n", "number too large"},
		{"memory.current", "4096\r\n", "not a decimal number"},
		{"memory.max", "maximum\n", "memory limit: not a decimal number"},
		{"memory.max", "", "memory limit: not a decimal number"},
		{"memory.stat", "", `no line for "file"`},
		{"memory.stat", strings.Replace(stat, "\ninactive_file ", "\ninactive_files ", 1), `no line for "inactive_file"`},
		{"memory.stat", strings.Replace(stat, "anon 1548288", "anon x", 1), `anon: not a decimal number: "x"`},
		{"memory.stat", strings.Replace(stat, "anon 1548288", "anon", 1), `anon: not a decimal number: ""`},
		{"memory.stat", strings.ReplaceAll(stat, "\n", "\r\n"), "not a decimal number"},
		{"memory.stat", stat + "anon 1\n", "duplicate key anon"},
		{"memory.stat", stat[:len(stat)-1], "text ends within a line"},
		{"memory.stat", strings.Repeat("x 1\n", 4096), "longer than its buffer"},
	} {
		path := "kubepods.slice/" + tt.file
		good := map[string]string{"memory.current": "629145600\n", "memory.max": "1073741824\n", "memory.stat": stat}[tt.file]
		kerneltest.Write(t, root, map[string]string{path: tt.content})
		m := before
		if err := c.ReadMemory(&m); err == nil || !strings.Contains(err.Error(), tt.err) || m != before {
			t.Errorf("ReadMemory() with %s %.20q = %v; want an error with %q and m unchanged", tt.file, tt.content, err, tt.err)
		}
		kerneltest.Write(t, root, map[string]string{path: good})
	}

	kerneltest.Write(t, root, map[string]string{"memory.stat": strings.Replace(stat, "anon 1548288", "anon 18446744073709551615", 1)})
	if m, err := open(t, h, "/").Memory(); err == nil {
		t.Errorf("Memory() of the root with a sum that overflows = %+v; want an error", m)
	}
}

func FuzzParseStat(f *testing.F) {
	for _, name := range []string{"v1.memory.stat", "v2.memory.stat"} {
		f.Add([]byte(testdata(f, name)))
	}
	f.Add([]byte("anon x\nfile 1\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, keys := range []*[statKeys]string{&keysV1, &keysV2} {
			s, err := parseStat(b, keys)
			if err != nil && s != (stat{}) {
				t.Errorf("parseStat(%q) = %v with error %v; want no values", b, s, err)
			}
		}
	})
}

func TestVersionString(t *testing.T) {
	for v, want := range map[Version]string{V1: "v1", V2: "v2", Hybrid: "hybrid", math.MaxInt8: "Version(127)"} {
		if got := v.String(); got != want {
			t.Errorf("Version(%d).String() = %q; want %q", int(v), got, want)
		}
	}
	for d, want := range map[Driver]string{Cgroupfs: "cgroupfs", Systemd: "systemd", 0: "Driver(0)"} {
		if got := d.String(); got != want {
			t.Errorf("Driver(%d).String() = %q; want %q", int(d), got, want)
		}
	}
}
