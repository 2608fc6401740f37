package plan

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// maxProperties is the length limit of a text of properties in bytes, as that of a ConfigMap.
	maxProperties = 1 << 20
	// maxKey is the length limit of a key.
	maxKey = 64
)

// property is one line of a text of properties.
type property struct {
	key, value string
	line       int
}

// lineError is a line that is not a property. It never has the content of the line, which may be part of a password.
type lineError struct {
	line            int
	key             string
	message, remedy string
}

// parseProperties parses a text of lines
//
//	# comment
//	key=value
//
// The key ends at the first "=". Blanks around key and value and a carriage return at the end are removed. A "#" starts
// a comment only at the start of a line. A key must not occur twice.
func parseProperties(text string) ([]property, []lineError) {
	if len(text) > maxProperties {
		return nil, []lineError{{message: fmt.Sprintf("has %d bytes", len(text)), remedy: fmt.Sprintf("shorten it to %d bytes", maxProperties)}}
	}
	var properties []property
	var errs []lineError
	first := map[string]int{}
	n := 0
	for line := range strings.SplitSeq(text, "\n") {
		n++
		line = strings.Trim(line, " \t\r")
		if line == "" || line[0] == '#' {
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		key, value = strings.TrimRight(key, " \t"), strings.TrimLeft(value, " \t")
		switch {
		case !utf8.ValidString(line):
			errs = append(errs, lineError{line: n, message: "the line is not valid UTF-8", remedy: "save the text as UTF-8"})
		case strings.ContainsFunc(line, func(r rune) bool { return unicode.IsControl(r) && r != '\t' }):
			errs = append(errs, lineError{line: n, message: "the line has a control character", remedy: "remove it"})
		case !ok:
			errs = append(errs, lineError{line: n, message: `the line has no "="`, remedy: "write key=value, or # before a comment"})
		case !validKey(key):
			errs = append(errs, lineError{line: n, message: "the key is not valid",
				remedy: fmt.Sprintf("begin it with a letter and use letters, digits, '_', '-' and '.', at most %d", maxKey)})
		case first[key] > 0:
			errs = append(errs, lineError{line: n, key: key, message: fmt.Sprintf("is given twice, first in line %d", first[key]), remedy: "remove one of the lines"})
		default:
			first[key] = n
			properties = append(properties, property{key, value, n})
		}
	}
	return properties, errs
}

func validKey(key string) bool {
	if key == "" || len(key) > maxKey || !isLetter(key[0]) {
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
