package plan

import (
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/properties"
)

// redfish is the built-in agent for BMCs with a Redfish service.
var redfish = &agent{
	steps: []fence.StepName{fence.PowerManagement},
	parameters: []parameter{
		{field: field{name: "ip", aliases: []string{"ipaddr"}}, required: true, normal: normalAddress},
		{field: field{name: "ipport"}, value: "443", normal: normalPort},
		{field: field{name: "username", aliases: []string{"login"}}, required: true, fromSecret: true, normal: redfishUsername},
		{field: field{name: "password", aliases: []string{"passwd", "secret"}}, required: true, secret: true, fromSecret: true},
		{field: field{name: "system", aliases: []string{"systems_uri"}}, normal: redfishSystem},
		{field: field{name: "ssl_ca", aliases: []string{"ca.crt"}}, fromSecret: true, normal: redfishAuthority},
		{field: field{name: "ssl_fingerprint"}, normal: redfishFingerprint},
		{field: field{name: "ssl_insecure"}, normal: redfishInsecure, warn: warnInsecure},
	},
	device: redfishDevice,
}

// redfishDevice returns the identity of a machine. BMCs with one machine need no name of it, which may be given all the
// same.
func redfishDevice(v map[string]string) string {
	if v["ip"] == "" || v["ipport"] == "" {
		return ""
	}
	return redfishScheme + net.JoinHostPort(v["ip"], v["ipport"]) + "/" + v["system"]
}

// joinSystems makes the owners of a named system owners of the unnamed one of the same BMC too: it is the same machine.
func joinSystems(owners map[string][]*node) {
	for _, bmc := range sortedKeys(owners) {
		if !strings.HasPrefix(bmc, redfishScheme) || !strings.HasSuffix(bmc, "/") {
			continue
		}
		for _, named := range sortedKeys(owners) {
			if named == bmc || !strings.HasPrefix(named, bmc) {
				continue
			}
			for _, n := range owners[named] {
				if !slices.Contains(owners[bmc], n) {
					owners[bmc] = append(owners[bmc], n)
					n.devices[bmc] = n.devices[named]
				}
			}
		}
	}
}

func redfishUsername(value string) (string, error) {
	const longest = 256
	switch {
	case len(value) > longest:
		return "", fmt.Errorf("has %d bytes, but at most %d are possible", len(value), longest)
	case strings.Contains(value, ":"):
		return "", errors.New("has a colon, which separates user name and password in HTTP")
	}
	return value, nil
}

var redfishMember = regexp.MustCompile(`^(?:/redfish/v1/Systems/)?([A-Za-z0-9._~-]{1,128})/?$`)

// redfishSystem returns the last part of a system's URI, which is its Id.
func redfishSystem(value string) (string, error) {
	m := redfishMember.FindStringSubmatch(value)
	if m == nil || strings.Trim(m[1], ".") == "" {
		return "", errors.New("is neither the Id of a system nor its URI, /redfish/v1/Systems/ID")
	}
	return m[1], nil
}

// redfishAuthority refuses a value of one line, which each value in a ConfigMap is.
func redfishAuthority(value string) (string, error) {
	if strings.Contains(value, "\n") {
		return value, nil
	}
	return "", errors.New("is a certificate in PEM, which has several lines: write it in a Secret, with the key ca.crt")
}

var redfishSHA256 = regexp.MustCompile(`^(?:[0-9a-f]{2}:){31}[0-9a-f]{2}$|^[0-9a-f]{64}$`)

// redfishFingerprint returns a SHA-256 without colons:
//
//	SHA256:3F:0A:…
func redfishFingerprint(value string) (string, error) {
	value = strings.TrimPrefix(strings.ToLower(value), "sha256:")
	if !redfishSHA256.MatchString(value) {
		return "", errors.New("is not a SHA-256 of 64 hexadecimal digits, with or without colons")
	}
	return strings.ReplaceAll(value, ":", ""), nil
}

func redfishInsecure(value string) (string, error) {
	on, err := properties.ParseSwitch(value)
	switch {
	case err != nil:
		return "", errors.New("is neither yes nor no")
	case on:
		return "1", nil
	}
	return "0", nil
}

// warnInsecure warns of a BMC that is not authenticated.
func warnInsecure(normal string) (message, remedy string) {
	if normal != "1" {
		return "", ""
	}
	return "the certificate of the BMC is not checked: whatever answers at its address gets the password, and can say that the machine is off",
		"set ssl_fingerprint, or ca.crt in a Secret, and remove ssl_insecure"
}
