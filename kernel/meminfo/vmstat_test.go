package meminfo

import (
	"strings"
	"testing"

	"github.com/evictd/evictd/kernel"
)

// vmstatText is a part of /proc/vmstat of Linux 6.18.
const vmstatText = `allocstall_movable 3
pgsteal_kswapd 10
pgscan_kswapd 120
pgscan_direct 34
pgscan_khugepaged 5
pgscan_direct_throttle 7
pgscan_file 7061099
`

func TestParseDirectScanned(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		want       uint64
		err        string
	}{
		{"sample", vmstatText, 34, ""},
		{"empty", "", 0, "no line for"},
		{"without the line", strings.Replace(vmstatText, "pgscan_direct ", "pgscan_other ", 1), 0, "no line for"},
		{"not a number", strings.Replace(vmstatText, "34", "-34", 1), 0, "pgscan_direct: not a decimal number"},
		{"no value", strings.Replace(vmstatText, "pgscan_direct 34", "pgscan_direct", 1), 0, "pgscan_direct: not a decimal number"},
		{"cut", strings.TrimSuffix(vmstatText[:strings.Index(vmstatText, "pgscan_direct 34")+15], "\n"), 0, "within a line"},
		{"carriage returns", strings.ReplaceAll(vmstatText, "\n", "\r\n"), 0, "not a decimal number"},
	} {
		got, err := parseDirectScanned([]byte(tc.text))
		if tc.err == "" && (err != nil || got != tc.want) || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
			t.Errorf("%s: parseDirectScanned() = %d, %v; want %d, %q", tc.name, got, err, tc.want, tc.err)
		}
	}
}

func FuzzParseDirectScanned(f *testing.F) {
	f.Add([]byte(vmstatText))
	f.Add([]byte("pgscan_kswapd 18446744073709551615\npgscan_direct 1\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = parseDirectScanned(b)
	})
}

func TestDirectScannedHere(t *testing.T) {
	before, err := DirectScanned("/proc")
	if err != nil {
		t.Fatal(err)
	}
	if after, err := DirectScanned("/proc"); err != nil || after < before {
		t.Errorf("DirectScanned() = %d, %v after %d; want no less", after, err, before)
	}
	if _, err := DirectScanned(kernel.FS(t.TempDir())); err == nil {
		t.Error("DirectScanned() without the file: no error")
	}
}
