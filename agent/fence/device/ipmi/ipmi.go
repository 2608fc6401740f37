// Package ipmi is a BMC over IPMI 2.0 (RMCP+).
package ipmi

import _ "github.com/bougou/go-ipmi/pkg/client"
