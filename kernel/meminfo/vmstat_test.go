package meminfo

import (
	"strings"
	"testing"

	"github.com/evictd/evictd/kernel"
)

// What follows is of Linux 6.18.
const vmstatText = `allocstall_movable 3
pgsteal_kswapd 10
pgscan_kswapd 120
pgscan_direct 34
pgscan_khugepaged 5
pgscan_direct_throttle 7
pgscan_file 7061099
`

func TestParseScanned(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		want       uint64
		err        string
	}{
		{"as it is", vmstatText, 154, ""},
		{"empty", "", 0, "missing"},
		{"without kswapd", strings.Replace(vmstatText, "pgscan_kswapd", "pgscan_other", 1), 0, "missing"},
		{"not a number", strings.Replace(vmstatText, "120", "-120", 1), 0, "pgscan_kswapd: not a decimal number"},
		{"no value", strings.Replace(vmstatText, "pgscan_direct 34", "pgscan_direct", 1), 0, "pgscan_direct: not a decimal number"},
		{"cut", vmstatText[:len(vmstatText)-1], 0, "within a line"},
		{"carriage returns", strings.ReplaceAll(vmstatText, "\n", "\r\n"), 0, "not a decimal number"},
	} {
		got, err := parseScanned([]byte(tc.text))
		if tc.err == "" && (err != nil || got != tc.want) || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
			t.Errorf("%s: parseScanned() = %d, %v; want %d, %q", tc.name, got, err, tc.want, tc.err)
		}
	}
}

func FuzzParseScanned(f *testing.F) {
	f.Add([]byte(vmstatText))
	f.Add([]byte("pgscan_kswapd 18446744073709551615\npgscan_direct 1\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = parseScanned(b)
	})
}

func TestScannedHere(t *testing.T) {
	before, err := Scanned("/proc")
	if err != nil {
		t.Fatal(err)
	}
	if after, err := Scanned("/proc"); err != nil || after < before {
		t.Errorf("Scanned() = %d, %v after %d; want no less", after, err, before)
	}
	if _, err := Scanned(kernel.FS(t.TempDir())); err == nil {
		t.Error("Scanned() without the file: no error")
	}
}
