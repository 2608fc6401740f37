package probe

import "testing"

var swaps = []struct {
	name, text string
	areas      int
	kib        uint64
	ok         bool
}{
	{"none", "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n", 0, 0, true},
	{"partition and file", "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n" +
		"/dev/dm-1                               partition\t999420\t\t0\t\t-2\n/a\\040b                                  file\t\t1048572\t\t12\t\t-3\n", 2, 2047992, true},
	{"deleted file", "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n/swap\\040(deleted)                       file\t\t4\t\t0\t\t5\n", 1, 4, true},
	{"empty", "", 0, 0, false},
	{"no header", "/dev/dm-1 partition 1 0 -2\n", 0, 0, false},
	{"cut short", "Filename Type\n/dev/dm-1 partition 1 0 -2", 0, 0, false},
	{"four fields", "Filename Type\n/dev/dm-1 partition 1 0\n", 0, 0, false},
	{"negative", "Filename Type\n/dev/dm-1 partition -1 0 -2\n", 0, 0, false},
	{"too large", "Filename Type\n/dev/dm-1 partition 18446744073709551615 0 -2\n", 0, 0, false},
}

func TestParseSwaps(t *testing.T) {
	for _, tt := range swaps {
		areas, kib, err := parseSwaps(tt.text)
		if areas != tt.areas || kib != tt.kib || (err == nil) != tt.ok {
			t.Errorf("%s: parseSwaps(%q) = %d, %d, %v; want %d, %d, ok %v", tt.name, tt.text, areas, kib, err, tt.areas, tt.kib, tt.ok)
		}
	}
}

func FuzzParseSwaps(f *testing.F) {
	for _, tt := range swaps {
		f.Add(tt.text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		areas, kib, err := parseSwaps(text)
		if err != nil && (areas != 0 || kib != 0) || areas == 0 && kib != 0 || areas < 0 {
			t.Errorf("parseSwaps(%q) = %d, %d, %v", text, areas, kib, err)
		}
	})
}

var statuses = []struct {
	name, text string
	want       uint64
	ok         bool
}{
	{"all but one", "Name:\tx\nCapInh:\t0000000000000000\nCapPrm:\t000001fffeffffff\nCapEff:\t000001fffeffffff\nSeccomp:\t0\n", 0x1fffeffffff, true},
	{"none", "CapEff:\t0000000000000000\n", 0, true},
	{"a name that looks like the line", "Name:\tCapEff:\\t000001ffffffffff\nCapEff:\t0000000000000020\n", 0x20, true},
	{"empty", "", 0, false},
	{"no line", "CapPrm:\t000001fffeffffff\n", 0, false},
	{"cut short", "CapEff:\t000001ff", 0, false},
	{"cut at the end", "CapEff:\t000001fffeffffff", 0, false},
	{"CRLF", "CapEff:\t000001fffeffffff\r\n", 0, false},
	{"no number", "CapEff:\t-00001fffeffffff\n", 0, false},
	{"hexadecimal prefix", "CapEff:\t0x0001fffeffffff\n", 0, false},
}

func TestParseEffective(t *testing.T) {
	for _, tt := range statuses {
		got, err := parseEffective(tt.text)
		if got != tt.want || (err == nil) != tt.ok {
			t.Errorf("%s: parseEffective(%q) = %x, %v; want %x, ok %v", tt.name, tt.text, got, err, tt.want, tt.ok)
		}
	}
}

func FuzzParseEffective(f *testing.F) {
	for _, tt := range statuses {
		f.Add(tt.text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if got, err := parseEffective(text); err != nil && got != 0 {
			t.Errorf("parseEffective(%q) = %x, %v", text, got, err)
		}
	})
}
