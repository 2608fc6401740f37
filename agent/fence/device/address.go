package device

import (
	"fmt"
	"maps"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

var hostName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?$`)

// Address returns host and port of a BMC from the parameters ip and ipport, and all mistakes in them. A parameter that is
// not known is a mistake, too. The mistakes have no value of another parameter.
func Address(m map[string]string, defaultPort int, known ...string) (host string, port int, errs []error) {
	for _, key := range slices.Sorted(maps.Keys(m)) {
		if !slices.Contains(known, key) {
			errs = append(errs, fmt.Errorf("parameter %s is unknown: remove it (%s are known)", key, strings.Join(known, ", ")))
		}
	}
	host, port = m["ip"], defaultPort
	if net.ParseIP(host) == nil && !hostName.MatchString(host) {
		errs = append(errs, fmt.Errorf("parameter ip is %q: set it to the address or the host name of the BMC", host))
	}
	if text, ok := m["ipport"]; ok {
		n, err := strconv.ParseUint(text, 10, 16)
		if err != nil || n == 0 {
			errs = append(errs, fmt.Errorf("parameter ipport is %q: set it to a port from 1 to 65535", text))
		}
		port = int(n)
	}
	return host, port, errs
}
