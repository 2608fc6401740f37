package ipmi

import (
	"fmt"
	"maps"
	"strings"
	"testing"
)

func wantNoSecret(t *testing.T, v any, secret string) {
	t.Helper()
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		if text := fmt.Sprintf(format, v); strings.Contains(text, secret) {
			t.Errorf("%q of %T contains a secret: %s", format, v, text)
		}
	}
}

func TestNew(t *testing.T) {
	valid := map[string]string{"ip": "192.0.2.1", "username": "admin", "password": "pass=word#1"}
	for _, test := range []struct {
		name       string
		parameters map[string]string // in addition to the valid ones; "-" removes one
		want       string            // address, or text of the error
	}{
		{"default port", nil, "192.0.2.1:623"},
		{"port", map[string]string{"ipport": "9001"}, "192.0.2.1:9001"},
		{"host name", map[string]string{"ip": "bmc-1.example.org"}, "bmc-1.example.org:623"},
		{"IPv6", map[string]string{"ip": "2001:db8::1"}, "[2001:db8::1]:623"},
		{"no ip", map[string]string{"ip": "-"}, "parameter ip is"},
		{"ip with port", map[string]string{"ip": "192.0.2.1:623"}, "parameter ip is"},
		{"blank", map[string]string{"ip": "bmc 1"}, "parameter ip is"},
		{"port 0", map[string]string{"ipport": "0"}, "parameter ipport is"},
		{"large port", map[string]string{"ipport": "65536"}, "parameter ipport is"},
		{"no number", map[string]string{"ipport": ""}, "parameter ipport is"},
		{"no password", map[string]string{"password": "-"}, "parameter password has 0 bytes"},
		{"long password", map[string]string{"password": "pass=word#1pass=word#1"}, "parameter password has 22 bytes"},
		{"long user", map[string]string{"username": "seventeen-letters"}, "parameter username has 17 bytes"},
		{"unknown", map[string]string{"method": "cycle"}, "parameter method is unknown"},
		{"alias", map[string]string{"ipaddr": "192.0.2.1"}, "parameter ipaddr is unknown"},
	} {
		m := maps.Clone(valid)
		maps.Copy(m, test.parameters)
		maps.DeleteFunc(m, func(_, value string) bool { return value == "-" })
		d, err := New(m)
		got := fmt.Sprint(err)
		if err == nil {
			got = d.address()
		}
		if !strings.Contains(got, test.want) || (err == nil) != strings.HasSuffix(got, test.want) {
			t.Errorf("%s: New = %s; want %s", test.name, got, test.want)
		}
		wantNoSecret(t, err, "pass=word#1")
		wantNoSecret(t, d, "pass=word#1")
	}
}
