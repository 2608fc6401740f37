package plan

import (
	"strings"
	"testing"
)

func TestNormalAddress(t *testing.T) {
	for value, want := range map[string]string{
		"192.168.1.2": "192.168.1.2", "BMC-1.Example.COM.": "bmc-1.example.com", "2001:DB8:0::1": "2001:db8::1", "[2001:db8::1]": "2001:db8::1",
		"::ffff:10.0.0.1": "10.0.0.1", "127.0.0.1": "127.0.0.1", "host": "host",
		"": "", "10.0.0.010": "", "10.0.0": "", "0x7f000001": "", "2130706433": "", "10.0.0.1:623": "", "[10.0.0.1]": "", "[::1": "", "fe80::1%eth0": "",
		"0.0.0.0": "", "::": "", "224.0.0.1": "", "a_b": "", "a..b": "", "a/b": "", "https://user:pw@bmc": "", "-a": "", ".": "", "a b": "",
		strings.Repeat("a.", 127): "a" + strings.Repeat(".a", 126), strings.Repeat("a.", 128) + "a": "",
	} {
		got, err := normalAddress(value)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("normalAddress(%q) = %q, %v; want %q", value, got, err, want)
		}
		if err != nil && value != "" && len(value) > 3 && strings.Contains(err.Error(), value) {
			t.Errorf("normalAddress(%q): the error has the value: %v", value, err)
		}
	}
}
