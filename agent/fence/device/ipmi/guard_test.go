package ipmi

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/bougou/go-ipmi/pkg/crypto"
	"github.com/bougou/go-ipmi/pkg/types"
)

// inSession returns a guard that waits for an answer in a session of suite 3.
func inSession() *guard {
	return &guard{
		awaited: payloadIPMI, active: true, auth: types.AuthAlg_HMAC_SHA1, integrity: types.IntegrityAlg_HMAC_SHA1_96,
		consoleID: 0xa0a1a2a3, k1: bytes.Repeat([]byte{1}, 20), k2: bytes.Repeat([]byte{2}, 20),
	}
}

// seal returns a datagram of that session with a correct authentication code.
func seal(t testing.TB, g *guard, plain []byte) []byte {
	iv := bytes.Repeat([]byte{3}, blockSize)
	cipher, err := crypto.EncryptAES(plain, g.k2[:blockSize], iv)
	if err != nil {
		t.Fatal(err)
	}
	b := []byte{0x06, 0x00, 0xff, 0x07, 0x06, byte(payloadIPMI), 0xa3, 0xa2, 0xa1, 0xa0, 1, 0, 0, 0}
	b = binary.LittleEndian.AppendUint16(b, uint16(len(iv)+len(cipher)))
	b = append(append(append(b, iv...), cipher...), 0xff, 0xff, 2, 7)
	code, err := crypto.SessionIntegrityAuthCode(g.integrity, b[4:], g.k1, "")
	if err != nil {
		t.Fatal(err)
	}
	return append(b, code...)
}

// TestPadding: go-ipmi would panic with a padding that is longer than the message, in a goroutine of its own.
func TestPadding(t *testing.T) {
	for _, test := range []struct {
		padding byte
		want    bool
	}{{0, true}, {5, true}, {7, true}, {8, false}, {15, false}, {16, false}, {255, false}} {
		g := inSession()
		plain := make([]byte, blockSize)
		plain[blockSize-1] = test.padding
		if got := g.accept(seal(t, g, plain)); got != test.want {
			t.Errorf("accept with %d bytes of padding = %v; want %v", test.padding, got, test.want)
		}
	}
}

// FuzzAccept: no datagram makes the guard panic, and none without the keys is accepted in a session.
func FuzzAccept(f *testing.F) {
	f.Add(seal(f, inSession(), make([]byte, blockSize)))
	f.Add(forgedOff)
	f.Add([]byte("\x06\x00\xff\x07\x06\x11\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x04"))
	f.Add([]byte("\x06\x00\xff\x07\x06\x13\x00\x00\x00\x00\x00\x00\x00\x00\x08\x00\x00\x00\x00\x00\xa3\xa2\xa1\xa0"))
	f.Add([]byte("\x06\x00\xff\x07\x00\x00\x00\x00\x00\x00\x00\x00\x00\x10\x81\x1c\x63" +
		"\x20\x04\x38\x00\x01\x97\x04\x03\x00\x00\x00\x00\x05"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, awaited := range []int{ipmi15, payloadOpenResponse, payloadRAKP2, payloadRAKP4} {
			g := inSession()
			g.awaited, g.consoleRand, g.bmcID = awaited, make([]byte, 16), 1
			g.accept(b)
		}
		g := inSession()
		if !g.accept(b) {
			return
		}
		end := len(b) - 12
		code, err := crypto.SessionIntegrityAuthCode(g.integrity, b[4:end], g.k1, "")
		if err != nil || !bytes.Equal(b[end:], code) {
			t.Errorf("accepted %x without its authentication code", b)
		}
	})
}
