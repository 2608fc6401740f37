package fence

import (
	"bytes"
	"encoding/hex"
	"slices"
	"strings"
)

// Match is the result of comparing the UUID of a device with the one of a node.
type Match string

// The results. NotComparable is no match: one of the UUIDs is missing, malformed, all zeros or all ones.
const (
	Yes           Match = "Yes"
	No            Match = "No"
	NotComparable Match = "NotComparable"
)

// SameMachine compares the UUID that a device reports with nodeInfo.systemUUID. IPMI's Get System GUID returns 16 bytes
// whose order vendors disagree on. They match if they are equal in one of three orders: as in RFC 4122, with the first
// three fields swapped (SMBIOS), or reversed (IPMI).
func SameMachine(device, node string) Match {
	d, n := parseUUID(device), parseUUID(node)
	if d == nil || n == nil {
		return NotComparable
	}
	smbios := slices.Clone(d)
	for _, field := range [][]byte{smbios[0:4], smbios[4:6], smbios[6:8]} {
		slices.Reverse(field)
	}
	reversed := slices.Clone(d)
	slices.Reverse(reversed)
	if bytes.Equal(d, n) || bytes.Equal(smbios, n) || bytes.Equal(reversed, n) {
		return Yes
	}
	return No
}

// parseUUID returns the 16 bytes of a UUID, with or without hyphens:
//
//	a1234567-89ab-cdef-a123-456789abcdef
//
// It returns nil for anything else, and for a UUID of which all bytes are 0x00 or 0xff: firmware without a UUID.
func parseUUID(s string) []byte {
	s = strings.TrimSpace(s)
	if len(s) == 36 {
		if s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
			return nil
		}
		s = s[0:8] + s[9:13] + s[14:18] + s[19:23] + s[24:]
	}
	if len(s) != 32 {
		return nil
	}
	b, err := hex.DecodeString(s)
	if err != nil {
		return nil
	}
	if first := b[0]; first == 0 || first == 0xff {
		if !slices.ContainsFunc(b, func(c byte) bool { return c != first }) {
			return nil
		}
	}
	return b
}
