package plan

import (
	"errors"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

// dnsName matches a DNS subdomain: a host name, the name of a node or of an object.
var dnsName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

func validName(name string) bool { return len(name) <= maxName && dnsName.MatchString(name) }

var errAddress = errors.New("is neither an IP address nor a host name")

// normalAddress returns the normal form of an IP address or host name. Equal addresses have equal normal forms, so that
// two nodes with the same device are found: a host name is in lower case without a dot at the end.
func normalAddress(value string) (string, error) {
	bare := value
	if inner, ok := strings.CutPrefix(value, "["); ok {
		if bare, ok = strings.CutSuffix(inner, "]"); !ok || !strings.Contains(bare, ":") {
			return "", errAddress
		}
	}
	if a, err := netip.ParseAddr(bare); err == nil {
		switch a = a.Unmap(); {
		case a.Zone() != "":
			return "", errors.New("has a zone, which has a meaning on one host only")
		case a.IsUnspecified(), a.IsMulticast():
			return "", errors.New("is not the address of one host")
		}
		return a.String(), nil
	}
	name := strings.TrimSuffix(strings.ToLower(bare), ".")
	// A name whose last label is a number is a wrong IPv4 address: a resolver may read 10.0.0.010 as octal.
	last := name[strings.LastIndexByte(name, '.')+1:]
	if _, err := strconv.ParseUint(last, 0, 64); err == nil || !validName(name) {
		return "", errAddress
	}
	return name, nil
}

// normalPort returns the normal form of a UDP or TCP port.
func normalPort(value string) (string, error) {
	port, err := strconv.ParseUint(value, 10, 16)
	if err != nil || port == 0 {
		return "", errors.New("is not a port from 1 to 65535")
	}
	return strconv.FormatUint(port, 10), nil
}
