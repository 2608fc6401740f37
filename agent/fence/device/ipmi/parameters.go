package ipmi

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"regexp"
	"slices"
	"strconv"
)

// The limits of RMCP+ in bytes (IPMI 2.0, sections 13.20 and 22.30).
const (
	maxUsername = 16
	maxPassword = 20
)

// defaultPort is the UDP port of RMCP.
const defaultPort = 623

type parameters struct {
	host               string
	port               int
	username, password string
}

// String returns host and port. It keeps the password out of logs.
func (p parameters) String() string { return "BMC " + p.address() }

// GoString is String.
func (p parameters) GoString() string { return p.String() }

func (p parameters) address() string { return net.JoinHostPort(p.host, strconv.Itoa(p.port)) }

var hostName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?$`)

// parse returns all mistakes at once, without values of secrets.
func parse(m map[string]string) (parameters, error) {
	p := parameters{host: m["ip"], port: defaultPort, username: m["username"], password: m["password"]}
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(m)) {
		switch key {
		case "ip", "ipport", "username", "password":
		default:
			errs = append(errs, fmt.Errorf("parameter %s is unknown: remove it (ip, ipport, username, password are known)", key))
		}
	}
	if net.ParseIP(p.host) == nil && !hostName.MatchString(p.host) {
		errs = append(errs, fmt.Errorf("parameter ip is %q: set it to the address or the host name of the BMC", p.host))
	}
	if text, ok := m["ipport"]; ok {
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil || port == 0 {
			errs = append(errs, fmt.Errorf("parameter ipport is %q: set it to a port from 1 to 65535", text))
		}
		p.port = int(port)
	}
	if p.username == "" || len(p.username) > maxUsername {
		errs = append(errs, fmt.Errorf("parameter username has %d bytes: IPMI needs 1 to %d", len(p.username), maxUsername))
	}
	if p.password == "" || len(p.password) > maxPassword {
		errs = append(errs, fmt.Errorf("parameter password has %d bytes: IPMI needs 1 to %d", len(p.password), maxPassword))
	}
	if err := errors.Join(errs...); err != nil {
		return parameters{}, fmt.Errorf("parameters of the IPMI device: %w", err)
	}
	return p, nil
}
