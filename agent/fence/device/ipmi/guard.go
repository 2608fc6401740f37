package ipmi

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/bougou/go-ipmi/pkg/crypto"
	"github.com/bougou/go-ipmi/pkg/types"
)

// guard follows the datagrams of one client and decides which of the received ones the client may see. It does no I/O.
//
// Before the session exists, those are well-formed answers to the request that was sent last; a BMC that chooses other
// algorithms than those of the suite, or does not know the password, ends the attempt. In the session, those are
// datagrams with a correct authentication code whose payload is encrypted and long enough to be an IPMI message.
type guard struct {
	username, password string

	awaited     int // payload type of the answer to the last request
	auth        types.AuthAlg
	integrity   types.IntegrityAlg
	consoleID   uint32
	bmcID       uint32
	consoleRand []byte
	role        byte
	k1, k2      []byte // keys of the session, from RAKP message 2
	active      bool   // RAKP message 4 was accepted
	answered    bool   // a datagram was accepted, or ended the attempt
	dropped     int    // datagrams that were not accepted
	refused     types.RmcpStatusCode
	err         error // ends the attempt
}

// Payload types of RMCP+ (IPMI 2.0, table 13-16); encrypted and authenticated are flags of them.
const (
	payloadIPMI         = int(types.PayloadTypeIPMI) | payloadEncrypted | payloadAuthentic
	payloadEncrypted    = 0x80
	payloadAuthentic    = 0x40
	payloadOpenRequest  = int(types.PayloadTypeRmcpOpenSessionRequest)
	payloadOpenResponse = int(types.PayloadTypeRmcpOpenSessionResponse)
	payloadRAKP1        = int(types.PayloadTypeRAKPMessage1)
	payloadRAKP2        = int(types.PayloadTypeRAKPMessage2)
	payloadRAKP3        = int(types.PayloadTypeRAKPMessage3)
	payloadRAKP4        = int(types.PayloadTypeRAKPMessage4)
	ipmi15              = 0x100 // no payload type: a datagram of IPMI 1.5
)

const (
	headerSize   = 16 // of RMCP and the RMCP+ session
	header15Size = 14 // of RMCP and the IPMI 1.5 session without authentication
	minMessage   = 8  // of an IPMI message: addresses, command, completion code, checksums
	blockSize    = 16 // of AES
)

// errSuite means that the BMC chose algorithms that do not authenticate it.
var errSuite = errors.New("the BMC answered with another cipher suite than was requested: check that this is the BMC")

// payload splits an RMCP+ datagram:
//
//	06 00 ff 07 | 06 type session-id(4) sequence(4) length(2) | payload | trailer
//
// It returns type ipmi15 for a datagram of IPMI 1.5 without authentication:
//
//	06 00 ff 07 | 00 sequence(4) session-id(4) length(1) | payload
func payload(b []byte) (kind int, data []byte, ok bool) {
	if len(b) < header15Size || b[0] != 0x06 || b[3] != 0x07 {
		return 0, nil, false
	}
	switch b[4] {
	case byte(types.AuthTypeNone):
		length := int(b[13])
		if len(b) < header15Size+length {
			return 0, nil, false
		}
		return ipmi15, b[header15Size : header15Size+length], true
	case byte(types.AuthTypeRMCPPlus):
		if len(b) < headerSize {
			return 0, nil, false
		}
		length := int(binary.LittleEndian.Uint16(b[14:]))
		if len(b) < headerSize+length {
			return 0, nil, false
		}
		return int(b[5]), b[headerSize : headerSize+length], true
	}
	return 0, nil, false
}

// sent follows a datagram of the client.
func (g *guard) sent(b []byte) {
	kind, p, ok := payload(b)
	if !ok {
		return
	}
	switch kind {
	case ipmi15:
		g.awaited = ipmi15
	case payloadOpenRequest:
		*g = guard{username: g.username, password: g.password, answered: g.answered, dropped: g.dropped, awaited: payloadOpenResponse}
		g.consoleID = binary.LittleEndian.Uint32(p[4:])
		g.auth, g.integrity = types.AuthAlg(p[12]), types.IntegrityAlg(p[20])
	case payloadRAKP1:
		g.awaited = payloadRAKP2
		g.consoleRand, g.role = bytes.Clone(p[8:24]), p[24]
	case payloadRAKP3:
		g.awaited = payloadRAKP4
	default:
		g.awaited = payloadIPMI
	}
}

// accept reports whether the client may see a received datagram. It sets err where the attempt ends.
func (g *guard) accept(b []byte) bool {
	kind, p, ok := payload(b)
	ok = ok && kind == g.awaited
	if ok {
		switch kind {
		case ipmi15:
			ok = len(p) >= minMessage
		case payloadOpenResponse:
			ok = g.acceptRefusal(p) || g.acceptOpen(p)
		case payloadRAKP2:
			ok = g.acceptRefusal(p) || g.acceptRAKP2(p)
		case payloadRAKP4:
			ok = g.acceptRefusal(p) || g.acceptRAKP4(p)
		case payloadIPMI:
			ok = g.acceptMessage(b, p)
		}
	}
	if !ok {
		g.dropped++
	}
	g.answered = g.answered || ok || g.err != nil
	return ok
}

// acceptRefusal reports whether a BMC refuses the session: tag, status, reserved, session ID of the client. ipmi_sim
// sends tag and status alone.
func (g *guard) acceptRefusal(p []byte) bool {
	if len(p) < 2 || p[1] == byte(types.RmcpStatusCodeNoErrors) {
		return false
	}
	g.refused = types.RmcpStatusCode(p[1])
	switch g.refused {
	case types.RmcpStatusCodeUnauthorizedName:
		g.err = ErrAuthentication
	case types.RmcpStatusCodeNoResToCreateSess, types.RmcpStatusCodeNoResToCreateSessAtRole:
		g.err = errNoSession
	}
	return true
}

// acceptOpen checks an Open Session Response: tag, status, privilege level, reserved, session IDs of client and BMC,
// and the algorithms, each in 8 bytes with the algorithm in the fifth.
func (g *guard) acceptOpen(p []byte) bool {
	if len(p) < 36 || binary.LittleEndian.Uint32(p[4:]) != g.consoleID {
		return false
	}
	if p[16] != byte(g.auth) || p[24] != byte(g.integrity) || p[32] != byte(types.CryptAlg_AES_CBC_128) {
		g.err = errSuite
		return false
	}
	g.bmcID = binary.LittleEndian.Uint32(p[8:])
	return g.bmcID != 0
}

// acceptRAKP2 checks RAKP message 2: tag, status, reserved, session ID of the client, random number and GUID of the
// BMC, and the code that proves that it knows the password.
func (g *guard) acceptRAKP2(p []byte) bool {
	if len(p) < 40 || binary.LittleEndian.Uint32(p[4:]) != g.consoleID {
		return false
	}
	key := crypto.PadPassword20([]byte(g.password))
	code, err := crypto.RAKP2AuthCode(
		g.auth, g.consoleID, g.bmcID, g.consoleRand, p[8:24], p[24:40], g.role, g.username, key)
	if err == nil && (len(p) < 40+len(code) || !crypto.Equal(code, p[40:40+len(code)])) {
		err = ErrAuthentication
	}
	if err == nil {
		_, g.k1, g.k2, err = crypto.DeriveSessionKeys(g.auth, g.consoleRand, p[8:24], g.role, g.username, key)
	}
	if err == nil && (len(g.k1) == 0 || len(g.k2) < blockSize) {
		err = errSuite
	}
	if err != nil {
		g.err = fmt.Errorf("authenticate: %w", err)
	}
	return err == nil
}

// acceptRAKP4 checks the session ID in RAKP message 4. go-ipmi checks its code.
func (g *guard) acceptRAKP4(p []byte) bool {
	g.active = len(p) >= 8 && binary.LittleEndian.Uint32(p[4:]) == g.consoleID
	return g.active
}

// acceptMessage checks a datagram of the session: its authentication code is over all after the RMCP header; its
// payload is an initialization vector and a ciphertext, whose last byte is the length of the padding before it.
func (g *guard) acceptMessage(b, p []byte) bool {
	size, ok := crypto.IntegrityAuthCodeLen(g.integrity)
	if !ok || size == 0 || !g.active || binary.LittleEndian.Uint32(b[6:]) != g.consoleID {
		return false
	}
	end := len(b) - size
	if end < headerSize+len(p) {
		return false
	}
	code, err := crypto.SessionIntegrityAuthCode(g.integrity, b[4:end], g.k1, "")
	if err != nil || !crypto.Equal(code, b[end:]) {
		return false
	}
	if len(p) < 2*blockSize || len(p)%blockSize != 0 {
		return false
	}
	plain, err := crypto.DecryptAES(slices.Clone(p[blockSize:]), g.k2[:blockSize], p[:blockSize])
	if err != nil || len(plain) == 0 {
		return false
	}
	return len(plain)-1-int(plain[len(plain)-1]) >= minMessage
}
