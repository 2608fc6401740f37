package extender

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/bits"
)

// maxDepth bounds the nesting of arrays and objects, as encoding/json does.
const maxDepth = 10000

// syntaxError is the offset of the byte at which a text is not JSON.
type syntaxError int

// Error implements error.
func (e syntaxError) Error() string { return fmt.Sprintf("not JSON at byte %d", int(e)) }

// scanner reads JSON in place. It accepts exactly what json.Valid does, without allocating, and faster than
// encoding/json decodes the names of thousands of nodes.
type scanner struct {
	data  []byte
	at    int
	depth int
}

func (s *scanner) fail() error { return syntaxError(s.at) }

// next skips white space and returns the next byte without consuming it, 0 at the end.
func (s *scanner) next() byte {
	for ; s.at < len(s.data); s.at++ {
		switch c := s.data[s.at]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}
	return 0
}

// value skips a value and returns it.
func (s *scanner) value() ([]byte, error) {
	var err error
	first := s.next()
	begin := s.at
	switch first {
	case '{':
		err = s.object(nil)
	case '[':
		err = s.array(nil)
	case '"':
		_, err = s.text()
	case 't':
		err = s.literal("true")
	case 'f':
		err = s.literal("false")
	case 'n':
		err = s.literal("null")
	default:
		err = s.number()
	}
	return s.data[begin:s.at], err
}

// object reads an object. For each member it calls member with the key as it is written, which must consume the value;
// nil skips all values.
func (s *scanner) object(member func(key []byte) error) error {
	return s.list('{', '}', func() error {
		if s.next() != '"' {
			return s.fail()
		}
		key, err := s.text()
		if err != nil {
			return err
		}
		if s.next() != ':' {
			return s.fail()
		}
		s.at++
		if member != nil {
			return member(key)
		}
		_, err = s.value()
		return err
	})
}

// array reads an array. For each element it calls element, which must consume it; nil skips all.
func (s *scanner) array(element func() error) error {
	return s.list('[', ']', func() error {
		if element != nil {
			return element()
		}
		_, err := s.value()
		return err
	})
}

// list reads what is separated by commas between two brackets.
func (s *scanner) list(first, last byte, one func() error) error {
	if s.next() != first || s.depth == maxDepth {
		return s.fail()
	}
	s.at++
	s.depth++
	defer func() { s.depth-- }()
	if s.next() == last {
		s.at++
		return nil
	}
	for {
		if err := one(); err != nil {
			return err
		}
		switch s.next() {
		case ',':
			s.at++
		case last:
			s.at++
			return nil
		default:
			return s.fail()
		}
	}
}

// plain returns how many bytes at the begin of data a string has as they are: neither quotes nor backslashes nor control
// characters. It looks at eight at a time.
func plain(data []byte) int {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	n := 0
	for ; len(data)-n >= 8; n += 8 {
		x := binary.LittleEndian.Uint64(data[n:])
		quotes, backslashes := x^(ones*'"'), x^(ones*'\\')
		// A byte has its high bit set if it is below 0x20, or 0 in one of the two. Above the first such byte, others may
		// have it, too, by a borrow.
		found := ((x-ones*0x20)&^x | (quotes-ones)&^quotes | (backslashes-ones)&^backslashes) & highs
		if found != 0 {
			return n + bits.TrailingZeros64(found)/8
		}
	}
	for n < len(data) && data[n] >= 0x20 && data[n] != '"' && data[n] != '\\' {
		n++
	}
	return n
}

// text reads a string and returns what is between its quotes, with escapes as they are.
func (s *scanner) text() ([]byte, error) {
	s.at++
	begin := s.at
	for {
		s.at += plain(s.data[s.at:])
		if s.at == len(s.data) {
			return nil, s.fail()
		}
		switch s.data[s.at] {
		case '"':
			s.at++
			return s.data[begin : s.at-1], nil
		case '\\':
			if err := s.escape(); err != nil {
				return nil, err
			}
		default:
			return nil, s.fail()
		}
	}
}

// escape skips an escape of a string.
func (s *scanner) escape() error {
	s.at++
	if s.at == len(s.data) || bytes.IndexByte([]byte(`"\/bfnrtu`), s.data[s.at]) < 0 {
		return s.fail()
	}
	digits := 0
	if s.data[s.at] == 'u' {
		digits = 4
	}
	s.at++
	for range digits {
		if s.at == len(s.data) || bytes.IndexByte([]byte("0123456789abcdefABCDEF"), s.data[s.at]) < 0 {
			return s.fail()
		}
		s.at++
	}
	return nil
}

func (s *scanner) literal(word string) error {
	if !bytes.HasPrefix(s.data[s.at:], []byte(word)) {
		return s.fail()
	}
	s.at += len(word)
	return nil
}

func (s *scanner) number() error {
	s.skip('-')
	if !s.skip('0') && !s.digits() {
		return s.fail()
	}
	if s.skip('.') && !s.digits() {
		return s.fail()
	}
	if s.skip('e') || s.skip('E') {
		_ = s.skip('+') || s.skip('-')
		if !s.digits() {
			return s.fail()
		}
	}
	return nil
}

// skip skips a byte if it is the next one, and reports whether it is.
func (s *scanner) skip(c byte) bool {
	if s.at == len(s.data) || s.data[s.at] != c {
		return false
	}
	s.at++
	return true
}

// digits skips digits and reports whether there is one.
func (s *scanner) digits() bool {
	begin := s.at
	for s.at < len(s.data) && '0' <= s.data[s.at] && s.data[s.at] <= '9' {
		s.at++
	}
	return s.at > begin
}

// end fails if something but white space is left.
func (s *scanner) end() error {
	if s.next(); s.at < len(s.data) {
		return s.fail()
	}
	return nil
}

// is reports whether the string that is written as raw has a value.
func is(raw []byte, value string) bool {
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw) == value
	}
	return unescaped(raw) == value
}

// unescaped returns the string that is written as raw, which text returned.
func unescaped(raw []byte) string {
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw)
	}
	var s string
	// text accepts what Unmarshal does.
	_ = json.Unmarshal(append(append([]byte{'"'}, raw...), '"'), &s)
	return s
}
