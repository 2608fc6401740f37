// Package properties parses texts of key=value lines in ConfigMaps, and their values.
package properties

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// MaxText is the length limit of a text of properties in bytes, as that of a ConfigMap.
	MaxText = 1 << 20
	// MaxKey is the length limit of a key.
	MaxKey = 64

	byteOrderMark = "\ufeff"
)

// Property is one line of a text of properties.
type Property struct {
	Key, Value string
	Line       int
}

// LineError is a line that is not a property. It never has the content of the line, which may be part of a password.
type LineError struct {
	Line            int
	Key             string
	Message, Remedy string
}

// Parse parses a text of lines
//
//	# comment
//	key=value
//
// The key ends at the first "=". Blanks around key and value and a carriage return at the end are removed. A "#" starts
// a comment only at the start of a line. A key must not occur twice. A byte order mark at the start of the text, which
// some editors write, is ignored.
func Parse(text string) ([]Property, []LineError) {
	if len(text) > MaxText {
		return nil, []LineError{{Message: fmt.Sprintf("has %d bytes", len(text)), Remedy: fmt.Sprintf("shorten it to %d bytes", MaxText)}}
	}
	var properties []Property
	var errs []LineError
	first := map[string]int{}
	n := 0
	for line := range strings.SplitSeq(strings.TrimPrefix(text, byteOrderMark), "\n") {
		n++
		line = strings.Trim(line, " \t\r")
		if line == "" || line[0] == '#' {
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		key, value = strings.TrimRight(key, " \t"), strings.TrimLeft(value, " \t")
		switch {
		case !utf8.ValidString(line):
			errs = append(errs, LineError{Line: n, Message: "the line is not valid UTF-8", Remedy: "save the text as UTF-8"})
		case strings.ContainsFunc(line, func(r rune) bool { return unicode.IsControl(r) && r != '\t' }):
			errs = append(errs, LineError{Line: n, Message: "the line has a control character", Remedy: "remove it"})
		case !ok:
			errs = append(errs, LineError{Line: n, Message: `the line has no "="`, Remedy: "write key=value, or # before a comment"})
		case !ValidKey(key):
			errs = append(errs, LineError{Line: n, Message: "the key is not valid",
				Remedy: fmt.Sprintf("begin it with a letter and use letters, digits, '_', '-' and '.', at most %d", MaxKey)})
		case first[key] > 0:
			errs = append(errs, LineError{Line: n, Key: key, Message: fmt.Sprintf("is given twice, first in line %d", first[key]), Remedy: "remove one of the lines"})
		default:
			first[key] = n
			properties = append(properties, Property{key, value, n})
		}
	}
	return properties, errs
}

// ValidKey reports whether a text can be a key: a letter, then letters, digits, "_", "-" and ".", at most [MaxKey] bytes.
func ValidKey(key string) bool {
	if key == "" || len(key) > MaxKey || !isLetter(key[0]) {
		return false
	}
	for i := range len(key) {
		if c := key[i]; !isLetter(c) && (c < '0' || c > '9') && c != '_' && c != '-' && c != '.' {
			return false
		}
	}
	return true
}

func isLetter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }
