package ipmi

import (
	"errors"
	"fmt"
	"net"
	"strconv"

	"github.com/evictd/evictd/agent/fence/device"
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

// parse returns all mistakes at once, without values of secrets.
func parse(m map[string]string) (parameters, error) {
	p := parameters{username: m["username"], password: m["password"]}
	var errs []error
	p.host, p.port, errs = device.Address(m, defaultPort, "ip", "ipport", "username", "password")
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
