package bpf

import "testing"

// Memory on a node that had none changes the NUMA nodes, and the sampler must be reopened.
func TestNUMANodesChanged(t *testing.T) {
	_, s := openSampler(t, Options{})
	if got, err := s.NUMANodesChanged(); got || err != nil {
		t.Errorf("NUMANodesChanged() = %t, %v; want false", got, err)
	}
	s.nodes = 1 << 63 // as if the current nodes had no memory before
	if got, err := s.NUMANodesChanged(); !got || err != nil {
		t.Errorf("NUMANodesChanged() after another node got memory = %t, %v; want true", got, err)
	}
}

var nodeLists = []struct {
	list  string
	want  uint64
	fails bool
}{
	{list: "0\n", want: 1},
	{list: "0-1\n", want: 3},
	{list: "0-1,4\n", want: 0b10011},
	{list: "1,3-4,63\n", want: 1<<63 | 0b11010},
	{list: "0,62-1023\n", want: 1<<63 | 1<<62 | 1},
	{list: "64\n", want: 0},
	{list: "0\r\n", want: 1},
	{list: "", fails: true},
	{list: "\n", fails: true},
	{list: "0-\n", fails: true},
	{list: "1-0\n", fails: true},
	{list: "0,,1\n", fails: true},
	{list: "node0\n", fails: true},
	{list: "70000\n", fails: true},
}

func TestParseNodes(t *testing.T) {
	for _, test := range nodeLists {
		got, err := parseNodes(test.list)
		if got != test.want && !test.fails || (err != nil) != test.fails {
			t.Errorf("parseNodes(%q) = %#x, %v; want %#x and an error: %v", test.list, got, err, test.want, test.fails)
		}
	}
}

func FuzzParseNodes(f *testing.F) {
	for _, test := range nodeLists {
		f.Add(test.list)
	}
	f.Fuzz(func(t *testing.T, list string) {
		if got, err := parseNodes(list); err != nil && got != 0 {
			t.Errorf("parseNodes(%q) = %#x, %v; want 0 with an error", list, got, err)
		}
	})
}
