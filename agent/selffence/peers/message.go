package peers

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
)

// kind is what a datagram is.
type kind byte

const (
	question kind = 'Q'
	// reaches and cannot are the answers.
	reaches kind = 'R'
	cannot  kind = 'N'
)

const (
	magic     = "evictd-peer\x01"
	nonceSize = 16
	maxName   = 253
	// maxDatagram is the length limit of a datagram.
	maxDatagram = len(magic) + 1 + nonceSize + 2 + 2*maxName + sha256.Size
)

// message is a datagram: the magic, the kind, the nonce, the names with their lengths, and the HMAC.
type message struct {
	kind     kind
	nonce    [nonceSize]byte
	from, to string
}

// newNonce returns a random nonce.
func newNonce() (n [nonceSize]byte) {
	rand.Read(n[:]) // never fails
	return n
}

// encode returns the datagram with an HMAC. The names have at most maxName bytes.
func (m message) encode(key []byte) []byte {
	b := make([]byte, 0, maxDatagram)
	b = append(b, magic...)
	b = append(b, byte(m.kind))
	b = append(b, m.nonce[:]...)
	for _, name := range []string{m.from, m.to} {
		b = append(b, byte(len(name)))
		b = append(b, name...)
	}
	return append(b, sign(key, b)...)
}

func sign(key, content []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write(content)
	return h.Sum(nil)
}

var errMalformed = errors.New("malformed datagram")

// decode parses a datagram, and returns the key with which it is signed; nil if it is none of those.
func decode(b []byte, keys [][]byte) (m message, key []byte, err error) {
	body := len(b) - sha256.Size
	if len(b) > maxDatagram || body < len(magic)+1+nonceSize+2 || string(b[:len(magic)]) != magic {
		return message{}, nil, errMalformed
	}
	for _, k := range keys {
		if hmac.Equal(b[body:], sign(k, b[:body])) {
			key = k
			break
		}
	}
	if key == nil {
		return message{}, nil, nil
	}
	rest := b[len(magic):body]
	m.kind, rest = kind(rest[0]), rest[1:]
	copy(m.nonce[:], rest)
	rest = rest[nonceSize:]
	for _, name := range []*string{&m.from, &m.to} {
		if len(rest) == 0 || len(rest) < 1+int(rest[0]) || rest[0] == 0 || rest[0] > maxName {
			return message{}, nil, errMalformed
		}
		*name, rest = string(rest[1:1+rest[0]]), rest[1+rest[0]:]
	}
	if len(rest) != 0 || m.kind != question && m.kind != reaches && m.kind != cannot {
		return message{}, nil, errMalformed
	}
	return m, key, nil
}
