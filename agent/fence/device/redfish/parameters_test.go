package redfish

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/evictd/evictd/tests/bmc/redfish"
)

func fingerprint(b *redfish.BMC) string {
	sum := sha256.Sum256(b.Leaf())
	return hex.EncodeToString(sum[:])
}

func TestNew(t *testing.T) {
	t.Parallel()
	valid := map[string]string{"ip": "192.0.2.1", "username": "admin", "password": "pass=word#1"}
	b, _ := start(t, redfish.Options{})
	for _, test := range []struct {
		name       string
		parameters map[string]string // in addition to the valid ones; "-" removes one
		want       string            // text of the device, or of the error
	}{
		{"default port", nil, "BMC 192.0.2.1:443"},
		{"port", map[string]string{"ipport": "9001"}, "BMC 192.0.2.1:9001"},
		{"host name", map[string]string{"ip": "bmc-1.example.org"}, "BMC bmc-1.example.org:443"},
		{"IPv6", map[string]string{"ip": "2001:db8::1", "system": "Self"}, "BMC [2001:db8::1]:443 system Self"},
		{"authority", map[string]string{"ssl_ca": b.Authority()}, "BMC 192.0.2.1:443"},
		{"no ip", map[string]string{"ip": "-"}, "parameter ip is"},
		{"ip with port", map[string]string{"ip": "192.0.2.1:443"}, "parameter ip is"},
		{"ip with path", map[string]string{"ip": "192.0.2.1/x"}, "parameter ip is"},
		{"ip with user", map[string]string{"ip": "a@192.0.2.1"}, "parameter ip is"},
		{"port 0", map[string]string{"ipport": "0"}, "parameter ipport is"},
		{"large port", map[string]string{"ipport": "65536"}, "parameter ipport is"},
		{"no password", map[string]string{"password": "-"}, "parameter password has 0 bytes"},
		{"no user", map[string]string{"username": "-"}, "parameter username has 0 bytes"},
		{"colon", map[string]string{"username": "a:b"}, "parameter username has 3 bytes"},
		{"system", map[string]string{"system": "/redfish/v1/Systems/1"}, "parameter system is"},
		{"short fingerprint", map[string]string{"ssl_fingerprint": "ab"}, "parameter ssl_fingerprint is not"},
		{"empty fingerprint", map[string]string{"ssl_fingerprint": ""}, "parameter ssl_fingerprint is not"},
		{"empty authority", map[string]string{"ssl_ca": ""}, "parameter ssl_ca: is not PEM"},
		{"text after the authority", map[string]string{"ssl_ca": b.Authority() + "x"}, "parameter ssl_ca: is not PEM"},
		{"key as authority", map[string]string{"ssl_ca": "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"},
			"parameter ssl_ca: has a block that is not a certificate"},
		{"no certificate", map[string]string{"ssl_ca": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"},
			"parameter ssl_ca: certificate 1"},
		{"insecure", map[string]string{"ssl_insecure": "yes"}, "parameter ssl_insecure is"},
		{"unknown", map[string]string{"systems_uri": "x"}, "parameter systems_uri is unknown"},
	} {
		m := maps.Clone(valid)
		maps.Copy(m, test.parameters)
		maps.DeleteFunc(m, func(_, value string) bool { return value == "-" })
		d, err := New(m)
		got := fmt.Sprint(err)
		if err == nil {
			got = d.String()
		}
		if !strings.Contains(got, test.want) || (err == nil) != (got == test.want) {
			t.Errorf("%s: New = %s; want %s", test.name, got, test.want)
		}
		for _, v := range []any{d, err} {
			for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
				if text := fmt.Sprintf(format, v); strings.Contains(text, "pass=word#1") {
					t.Errorf("%q of %T contains a secret: %s", format, v, text)
				}
			}
		}
	}
}
