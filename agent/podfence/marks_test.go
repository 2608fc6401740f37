package podfence

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/evictd/evictd/kernel/cgroup"
)

// exampleMarks are a mark of each version, and one whose fields are as long as they may be.
var exampleMarks = []slotMark{
	{0, mark{uid: "u1", order: "o1", note: "n1", path: "/kubepods/podu1", id: 1<<63 + 7, has: [2]bool{true, false}, old: [2]cgroup.Limit{500, 0}}},
	{3, mark{uid: testUID, path: "/kubepods.slice/kubepods-pod" + strings.ReplaceAll(testUID, "-", "_") + ".slice", id: 2, has: [2]bool{true, true}, old: [2]cgroup.Limit{cgroup.Unlimited, 0}}},
	{maxFences - 1, mark{uid: strings.Repeat("u", maxUID), order: strings.Repeat("o", maxOrder), note: strings.Repeat("n", MaxNote),
		path: "/" + strings.Repeat("r", maxPath-len("//kubepods/pod")-maxUID) + "/kubepods/pod" + strings.Repeat("u", maxUID), id: 3, has: [2]bool{false, true}, old: [2]cgroup.Limit{0, 12}}},
}

func exampleFile(boot string) []byte {
	content := make([]byte, fileSize)
	first := encodeHeader(boot)
	copy(content, first[:])
	for _, m := range exampleMarks {
		var r record
		r.encode(&m.mark, bootSeed(boot))
		copy(content[(1+m.slot)*recordSize:], r[:])
	}
	return content
}

func TestParseMarks(t *testing.T) {
	if longest := exampleMarks[2]; len(longest.path) != maxPath {
		t.Fatalf("the longest path has %d bytes; want %d", len(longest.path), maxPath)
	}
	const otherBoot = "11111111-1b7d-4d3e-9a55-5d6b1f6f8a10"
	for _, tt := range []struct {
		name    string
		content []byte
		want    []slotMark
		err     string
	}{
		{"all", exampleFile(testBoot), exampleMarks, ""},
		{"new", nil, nil, ""},
		{"no marks", append(exampleFile(testBoot)[:recordSize:recordSize], make([]byte, fileSize-recordSize)...), nil, ""},
		{"of another boot", exampleFile(otherBoot), nil, ""},
		{"zero", make([]byte, fileSize), nil, "the header is broken"},
		{"of another program", bytes.Repeat([]byte("x\n"), fileSize/2), nil, "the header is broken"},
		{"header lost", overwritten(0, recordSize), exampleMarks, "the header is broken"},
		{"header of another boot", append(exampleFile(otherBoot)[:recordSize:recordSize], exampleFile(testBoot)[recordSize:]...), exampleMarks, ""},
		{"checksum", overwritten(recordSize+atChecksum, 1), exampleMarks[1:], "record 0 is broken: wrong checksum; it may be the mark of pod \"u1\" with cgroup \"/kubepods/podu1\""},
		{"torn in the middle", overwritten(4*recordSize+recordSize/4, recordSize/2), []slotMark{exampleMarks[0], exampleMarks[2]}, "record 3 is broken"},
		{"lengths", overwritten(recordSize+atFlags, 8), exampleMarks[1:], "record 0 is broken"},
		{"empty file", []byte{}, nil, ""},
		{"header only", exampleFile(testBoot)[:recordSize], nil, fmt.Sprintf("it has %d bytes", recordSize)},
		{"half a header", exampleFile(testBoot)[:20], nil, "it has 20 bytes"},
		{"cut off in a record", exampleFile(testBoot)[:recordSize+100], nil, "record 0 is broken"},
		{"cut off after a record", exampleFile(testBoot)[:2*recordSize], exampleMarks[:1], fmt.Sprintf("it has %d bytes", 2*recordSize)},
		{"grown", append(exampleFile(testBoot), 1), exampleMarks, fmt.Sprintf("it has %d bytes", fileSize+1)},
	} {
		got, err := parseMarks(tt.content, testBoot)
		if !reflect.DeepEqual(got, slices.Clip(tt.want)) && len(got)+len(tt.want) > 0 {
			t.Errorf("%s: parseMarks = %+v; want %+v", tt.name, got, tt.want)
		}
		if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: parseMarks fails with %v; want %q", tt.name, err, tt.err)
		}
	}
}

// overwritten returns the example with n bytes of 0xff.
func overwritten(at, n int) []byte {
	return slices.Replace(exampleFile(testBoot), at, at+n, bytes.Repeat([]byte{0xff}, n)...)
}

// A record with a right checksum that does not name a pod's cgroup is never used.
func TestDecodeRefuses(t *testing.T) {
	for _, m := range []mark{
		{uid: "u1", path: "/"}, {uid: "u1", path: "/kubepods"}, {uid: "burstable", path: "/kubepods/burstable"},
		{uid: "u1", path: "/kubepods/podu2"}, {uid: "", path: "/kubepods/pod"}, {uid: "u1", path: "/kubepods/podu1/../.."},
	} {
		var r record
		r.encode(&m, bootSeed(testBoot))
		if got, err := r.decode(bootSeed(testBoot)); err == nil {
			t.Errorf("decode of a mark with path %s = %+v; want an error", m.path, got)
		}
	}
}

// Any change of a record is noticed, so a mark that was written in part is, too.
func TestTornRecord(t *testing.T) {
	seed := bootSeed(testBoot)
	for _, m := range exampleMarks {
		var whole, previous record
		whole.encode(&m.mark, seed)
		previous.encode(&exampleMarks[0].mark, seed)
		for n := range recordSize {
			for _, rest := range []record{{}, previous} {
				torn := rest
				copy(torn[:n], whole[:n])
				if torn == whole || torn == rest {
					continue
				}
				if _, err := torn.decode(seed); err == nil {
					t.Errorf("decode accepts a record of which %d bytes were written", n)
				}
			}
		}
	}
}

func FuzzParseMarks(f *testing.F) {
	for _, seed := range [][]byte{exampleFile(testBoot), overwritten(recordSize+10, 4), exampleFile(testBoot)[:700], nil} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		marks, _ := parseMarks(content, testBoot)
		for _, m := range marks {
			if !cgroup.IsPod(m.path, m.uid) || m.slot < 0 || m.slot >= maxFences {
				t.Errorf("mark %+v", m)
			}
			var r record
			r.encode(&m.mark, bootSeed(testBoot))
			if again, err := r.decode(bootSeed(testBoot)); err != nil || again != m.mark {
				t.Errorf("decode(encode(%+v)) = %+v, %v", m.mark, again, err)
			}
		}
	})
}
