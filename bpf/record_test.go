package bpf

import (
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
)

func bytesOf[T any](t T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(&t)), unsafe.Sizeof(t))
}

func comm(name string) (c [16]uint8) {
	copy(c[:], name)
	return c
}

var crossing = Crossing{
	Key: 1, Source: SourcePods, LastAbove: 2 * time.Second, Seen: 3 * time.Second, Sent: 4 * time.Second,
	Available: 5, Threshold: 6, Period: 7 * time.Millisecond,
	Sample: Sample{Time: 3 * time.Second, Tick: 8, Node: Node{Valid: true, Anon: 9, Slope: -1}, Pods: Pods{Walked: 10}},
}

var rawCrossing = samplerCrossing{
	Kind: 1, Source: 1, Key: 1, LastAbove: 2e9, Seen: 3e9, Sent: 4e9, Available: 5, Threshold: 6, Period: 7e6,
	Sample: samplerSample{Time: 3e9, Tick: 8, Valid: validNode, Anon: 9, Slope: -1, PodsTime: 10},
}

func TestDecode(t *testing.T) {
	for _, test := range []struct {
		name  string
		raw   []byte
		want  Record
		known bool
		fails bool
	}{
		{name: "crossing", raw: bytesOf(rawCrossing), want: Record{Kind: KindCrossing, Crossing: crossing}, known: true},
		{name: "pods removed", raw: bytesOf(samplerGone{Kind: 2, Time: 1e9, Cgroup: 42}), want: Record{Kind: KindPodsRemoved, PodsRemoved: PodsRemoved{Time: time.Second, Cgroup: 42}}, known: true},
		{
			name:  "victim",
			raw:   bytesOf(oomVictim{Kind: 3, Pid: 12, Tgid: 11, OomScoreAdj: -999, Time: 1e9, Cgroup: 42, Comm: comm("a) Z b")}),
			want:  Record{Kind: KindVictim, Victim: Victim{Time: time.Second, PID: 12, TGID: 11, Comm: "a) Z b", OOMScoreAdj: -999, Cgroup: 42}},
			known: true,
		},
		{
			name:  "victim whose name fills its field",
			raw:   bytesOf(oomVictim{Kind: 3, Pid: 12, Comm: comm("0123456789abcdef")}),
			want:  Record{Kind: KindVictim, Victim: Victim{PID: 12, Comm: "0123456789abcdef"}},
			known: true,
		},
		{name: "longer than known", raw: append(bytesOf(samplerGone{Kind: 2, Cgroup: 1}), make([]byte, 8)...), want: Record{Kind: KindPodsRemoved, PodsRemoved: PodsRemoved{Cgroup: 1}}, known: true},
		{name: "unknown kind", raw: bytesOf(samplerGone{Kind: 99})},
		{name: "short crossing", raw: bytesOf(rawCrossing)[:64], fails: true},
		{name: "short victim", raw: bytesOf(oomVictim{Kind: 3})[:8], fails: true},
		{name: "no kind", raw: []byte{1, 0}, fails: true},
		{name: "empty", fails: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got Record
			known, err := got.decode(test.raw)
			if known != test.known || (err != nil) != test.fails {
				t.Fatalf("decode() = %v, %v; want %v and an error: %v", known, err, test.known, test.fails)
			}
			if diff := cmp.Diff(test.want, got); diff != "" && known {
				t.Errorf("decode() differs (-want +got):\n%s", diff)
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(bytesOf(rawCrossing))
	f.Add(bytesOf(samplerGone{Kind: 2}))
	f.Add(bytesOf(oomVictim{Kind: 3, Comm: comm("x")}))
	f.Fuzz(func(t *testing.T, raw []byte) {
		aligned := make([]uint64, len(raw)/8+1)
		at := unsafe.Slice((*byte)(unsafe.Pointer(&aligned[0])), len(raw))
		copy(at, raw)
		var record Record
		if known, err := record.decode(at); known && (err != nil || record.Kind < KindCrossing || record.Kind > KindVictim) {
			t.Errorf("decode(%x) = %v, %v of kind %d", raw, known, err, record.Kind)
		}
	})
}

func TestWorkingSet(t *testing.T) {
	for _, test := range []struct{ usage, inactive, want uint64 }{
		{0, 0, 0}, {10, 3, 7}, {3, 3, 0},
		{3, 10, 0}, // the two figures are not read at the same time
	} {
		if got := (Pods{Usage: test.usage, InactiveFile: test.inactive}).WorkingSet(); got != test.want {
			t.Errorf("WorkingSet() of %d with %d inactive = %d; want %d", test.usage, test.inactive, got, test.want)
		}
		if got := (Node{Anon: test.usage, InactiveFile: test.inactive}).WorkingSet(); got != test.want {
			t.Errorf("WorkingSet() of %d with %d inactive = %d; want %d", test.usage, test.inactive, got, test.want)
		}
	}
}
