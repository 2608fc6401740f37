package meminfo_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/kerneltest"
	"github.com/evictd/evictd/kernel/meminfo"
)

func sample(t testing.TB) string {
	t.Helper()
	b, err := os.ReadFile("testdata/linux-6.18")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

var want = meminfo.Info{
	MemTotal:     24684084 << 10,
	MemFree:      23921516 << 10,
	MemAvailable: 24260560 << 10,
	Buffers:      20108 << 10,
	Cached:       481888 << 10,
	SwapCached:   0 << 10,
	ActiveAnon:   1564 << 10,
	InactiveAnon: 12376 << 10,
	ActiveFile:   227356 << 10,
	InactiveFile: 265668 << 10,
	Unevictable:  19784 << 10,
	Mlocked:      18920 << 10,
	SwapTotal:    0 << 10,
	SwapFree:     0 << 10,
	AnonPages:    24824 << 10,
	Mapped:       10908 << 10,
	Shmem:        8872 << 10,
	Slab:         139120 << 10,
	SReclaimable: 110472 << 10,
	SUnreclaim:   28648 << 10,
	KernelStack:  1536 << 10,
	PageTables:   1868 << 10,
	Hugetlb:      0 << 10,
}

func TestParse(t *testing.T) {
	got, err := meminfo.Parse([]byte(sample(t)))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Parse(sample) (-want +got):\n%s", diff)
	}
}

// edit returns the sample with the line of a key replaced, or removed if line is "".
func edit(s, key, line string) string {
	var b strings.Builder
	for l := range strings.Lines(s) {
		if strings.HasPrefix(l, key+":") {
			l = line
		}
		b.WriteString(l)
	}
	return b.String()
}

func withoutHuge(s string) string {
	for _, key := range []string{"HugePages_Total", "HugePages_Free", "HugePages_Rsvd", "HugePages_Surp", "Hugepagesize", "Hugetlb"} {
		s = edit(s, key, "")
	}
	return s
}

func TestParseVariants(t *testing.T) {
	s := sample(t)
	for _, tt := range []struct {
		name, in string
		want     func(*meminfo.Info)
		err      string
	}{
		{name: "huge pages", in: edit(s, "Hugetlb", "Hugetlb:         2097152 kB\n"), want: func(i *meminfo.Info) { i.Hugetlb = 2 << 30 }},
		{name: "no hugetlbfs", in: withoutHuge(s), want: func(i *meminfo.Info) { i.Hugetlb = 0 }},
		{name: "unknown lines", in: "Fancy:   1 kB\nnonsense\n" + s + "HardwareCorrupted: x kB\n", want: func(*meminfo.Info) {}},
		{name: "largest", in: edit(s, "Cached", "Cached:         18014398509481983 kB\n"), want: func(i *meminfo.Info) { i.Cached = 1<<64 - 1<<10 }},
		{name: "hugetlbfs without Hugetlb", in: edit(s, "Hugetlb", ""), err: `no line for ["Hugetlb"]`},
		{name: "missing", in: edit(edit(s, "MemFree", ""), "Inactive(file)", ""), err: `no line for ["MemFree" "Inactive(file)"]`},
		{name: "empty", in: "", err: "no line for"},
		{name: "negative", in: edit(s, "MemFree", "MemFree:        -4 kB\n"), err: `MemFree: not a decimal number: "        -4 kB"`},
		{name: "no unit", in: edit(s, "MemFree", "MemFree:        24519892\n"), err: "MemFree: not a number of kB"},
		{name: "other unit", in: edit(s, "MemFree", "MemFree:        24519892 MB\n"), err: "MemFree: not a number of kB"},
		{name: "no value", in: edit(s, "Shmem", "Shmem: kB\n"), err: "Shmem: not a number of kB"},
		{name: "too large for bytes", in: edit(s, "Cached", "Cached:         18014398509481984 kB\n"), err: "Cached: number too large"},
		{name: "CRLF", in: strings.ReplaceAll(s, "\n", "\r\n"), err: "MemTotal: not a number of kB"},
		{name: "duplicate", in: s + "MemFree:        1 kB\n", err: "duplicate line MemFree"},
		{name: "cut off", in: s[:len(s)-20], err: "text ends within a line"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := meminfo.Parse([]byte(tt.in))
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("Parse() = %v; want an error with %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want := want
			tt.want(&want)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("Parse() (-want +got):\n%s", diff)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	s := sample(f)
	for _, seed := range []string{s, withoutHuge(s), edit(s, "MemFree", "MemFree: -4 kB\n"), strings.ReplaceAll(s, "\n", "\r\n"), ""} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		info, err := meminfo.Parse(b)
		if err != nil && info != (meminfo.Info{}) {
			t.Errorf("Parse(%q) = %+v with error %v; want no values", b, info, err)
		}
	})
}

func TestFormulas(t *testing.T) {
	for _, tt := range []struct {
		name                                 string
		in                                   meminfo.Info
		fileAndAnon, workingSet, unaccounted uint64
	}{
		{
			name: "plain",
			in: meminfo.Info{MemTotal: 1000, MemFree: 300, AnonPages: 200, Buffers: 10, Cached: 100, SwapCached: 5,
				InactiveFile: 40, Hugetlb: 64},
			fileAndAnon: 315, workingSet: 275, unaccounted: 321,
		},
		{
			name:        "inconsistent lines",
			in:          meminfo.Info{MemTotal: 1000, MemFree: 990, AnonPages: 20, Cached: 10, InactiveFile: 31},
			fileAndAnon: 30, workingSet: 0, unaccounted: 0,
		},
	} {
		if got := tt.in.FileAndAnon(); got != tt.fileAndAnon {
			t.Errorf("%s: FileAndAnon() = %d; want %d", tt.name, got, tt.fileAndAnon)
		}
		if got := tt.in.WorkingSet(); got != tt.workingSet {
			t.Errorf("%s: WorkingSet() = %d; want %d", tt.name, got, tt.workingSet)
		}
		if got := tt.in.Unaccounted(); got != tt.unaccounted {
			t.Errorf("%s: Unaccounted() = %d; want %d", tt.name, got, tt.unaccounted)
		}
	}
}

func TestFile(t *testing.T) {
	s := sample(t)
	root := kerneltest.Tree(t, map[string]string{"meminfo": s})
	f, err := meminfo.Open(kernel.FS(root))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var got meminfo.Info
	if err := f.Read(&got); err != nil || got != want {
		t.Fatalf("Read() = %v, %v; want the sample", got, err)
	}

	kerneltest.Write(t, root, map[string]string{"meminfo": edit(s, "MemFree", "MemFree: 4 kB\n")})
	if err := f.Read(&got); err != nil || got.MemFree != 4096 {
		t.Fatalf("Read() after a change: MemFree = %d, %v; want 4096", got.MemFree, err)
	}

	kerneltest.Write(t, root, map[string]string{"meminfo": "MemTotal: 1 kB\n"})
	before := got
	if err := f.Read(&got); err == nil || got != before {
		t.Errorf("Read() of a broken file = %v, %v; want an error and the old values", got, err)
	}
	kerneltest.Write(t, root, map[string]string{"meminfo": strings.Repeat("x\n", 8<<10)})
	if err := f.Read(&got); err == nil {
		t.Error("Read() of a file longer than the buffer = nil; want an error")
	}

	for range 2 {
		if err := f.Close(); err != nil {
			t.Errorf("Close() = %v; want nil", err)
		}
	}
	if err := f.Read(&got); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Read() after Close = %v; want %v", err, os.ErrClosed)
	}
}

func TestAbsentFile(t *testing.T) {
	fs := kernel.FS(t.TempDir())
	if _, err := meminfo.Open(fs); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Open() = %v; want %v", err, os.ErrNotExist)
	}
	if _, err := meminfo.Read(fs); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Read() = %v; want %v", err, os.ErrNotExist)
	}
}

// TestNative reads the real /proc/meminfo.
func TestNative(t *testing.T) {
	info, err := meminfo.Read("/proc")
	if err != nil {
		t.Fatal(err)
	}
	if info.MemFree > info.MemTotal || info.WorkingSet() > info.MemTotal || info.WorkingSet() == 0 {
		t.Errorf("Read() = %+v, working set %d; want parts of the total", info, info.WorkingSet())
	}
}

func BenchmarkFileRead(b *testing.B) {
	f, err := meminfo.Open("/proc")
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	var info meminfo.Info
	b.ReportAllocs()
	for b.Loop() {
		if err := f.Read(&info); err != nil {
			b.Fatal(err)
		}
	}
}
