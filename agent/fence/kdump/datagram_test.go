package kdump

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
)

// fromX86 is what fence_kdump_send sends on x86.
var fromX86 = []byte{0x40, 0x2a, 0x30, 0x1b, 0x01, 0x00, 0x00, 0x00}

func TestParse(t *testing.T) {
	for _, tt := range []struct {
		name     string
		datagram []byte
		err      string
	}{
		{"from x86", fromX86, ""},
		{"from s390x", []byte{0x1b, 0x30, 0x2a, 0x40, 0, 0, 0, 1}, ""},
		{"mixed orders", []byte{0x40, 0x2a, 0x30, 0x1b, 0, 0, 0, 1}, "has the version 16777216"},
		{"mixed orders, big endian first", []byte{0x1b, 0x30, 0x2a, 0x40, 1, 0, 0, 0}, "has the version 16777216"},
		{"version 2", []byte{0x40, 0x2a, 0x30, 0x1b, 2, 0, 0, 0}, "has the version 2;"},
		{"version 0", []byte{0x40, 0x2a, 0x30, 0x1b, 0, 0, 0, 0}, "has the version 0;"},
		{"another magic", []byte{0x41, 0x2a, 0x30, 0x1b, 1, 0, 0, 0}, "begins with 0x412a301b"},
		{"empty", nil, "has 0 bytes"},
		{"cut off", fromX86[:7], "has 7 bytes"},
		{"longer", append(bytes.Clone(fromX86), 0), "has 9 bytes"},
		{"twice", append(bytes.Clone(fromX86), fromX86...), "has 16 bytes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			switch err := Parse(tt.datagram); {
			case tt.err == "" && err != nil:
				t.Errorf("Parse = %v", err)
			case tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)):
				t.Errorf("Parse = %v; want %q", err, tt.err)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add(fromX86)
	f.Add([]byte{0x1b, 0x30, 0x2a, 0x40, 0, 0, 0, 1})
	f.Add(fromX86[:4])
	f.Fuzz(func(t *testing.T, datagram []byte) {
		want := false
		for _, order := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
			right := order.AppendUint32(order.AppendUint32(nil, 0x1B302A40), 1)
			want = want || bytes.Equal(right, datagram)
		}
		if err := Parse(datagram); (err == nil) != want {
			t.Errorf("Parse(%x) = %v; want right = %v", datagram, err, want)
		}
	})
}
