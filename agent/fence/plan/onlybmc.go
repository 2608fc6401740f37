package plan

import (
	"strings"

	"github.com/evictd/evictd/agent/fence"
)

// The schemes of the devices that are BMCs.
const (
	ipmiScheme    = "ipmi://"
	redfishScheme = "redfish://"
)

// OnlyBMC reports whether nothing but the BMC of the node's machine switches its power and reads it. Machine and BMC lose
// their power together, unless separate_power says that they don't: such a node can't be proven off when it has none.
func OnlyBMC(p fence.Plan) bool {
	found := false
	for _, l := range p.PowerManagement {
		for _, m := range l.Methods {
			bmc := strings.HasPrefix(m.Device, ipmiScheme) || strings.HasPrefix(m.Device, redfishScheme)
			switch {
			case m.Action == fence.Watchdog, m.Device != "" && !bmc, m.SeparatePower:
				return false
			case bmc:
				found = true
			}
		}
	}
	return found
}
