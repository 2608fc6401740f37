package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/evictd/evictd/agent/properties"
)

// Problem is a mistake in the configuration, with its place and its remedy. It never has a value of a secret.
type Problem struct {
	Object  string // "ConfigMap evictd/fence-config-host1"
	Line    int    // in the text of the properties; 0 for the whole object
	Key     string
	Message string
	Remedy  string
	Warning bool // the configuration is used all the same
}

// String returns the problem in one line:
//
//	ConfigMap evictd/fence-config-host1 line 1: node_name: is "host"; write node_name=host1
func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(p.Object)
	if p.Line > 0 {
		fmt.Fprintf(&b, " line %d", p.Line)
	}
	if p.Key != "" {
		b.WriteString(": " + p.Key)
	}
	b.WriteString(": " + p.Message)
	if p.Remedy != "" {
		b.WriteString("; " + p.Remedy)
	}
	return b.String()
}

// sorted returns the problems in the order of objects and lines, each once.
func sorted(problems []Problem) []Problem {
	slices.SortFunc(problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Object, b.Object), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Key, b.Key),
			cmp.Compare(a.Message, b.Message), cmp.Compare(a.Remedy, b.Remedy))
	})
	return slices.Compact(problems)
}

// reference returns the name of an object in problems.
func reference(kind, namespace, name string) string {
	if namespace != "" {
		name = namespace + "/" + name
	}
	return kind + " " + name
}

// show returns a value for a message. A value that could contain a password, as after two properties were written in
// one line, is not shown.
func show(value string) string {
	const longest = 64
	switch {
	case value == "":
		return "empty"
	case secretLike(value) || strings.ContainsAny(value, "=@"):
		return "a value that is not shown because it may contain a password"
	case len(value) > longest:
		return strconv.QuoteToASCII(strings.ToValidUTF8(value[:longest], "")) + "…"
	}
	return strconv.QuoteToASCII(value)
}

// secretLike says whether a key is that of a password or of another secret, for all agents.
func secretLike(key string) bool {
	key = fold(key)
	return slices.ContainsFunc([]string{"passw", "passphrase", "secret", "token"}, func(part string) bool {
		return strings.Contains(key, part)
	})
}

// fold returns a key in the spelling of this package: in lower case, with underscores. Fence agents do not distinguish
// dash and underscore either.
func fold(key string) string { return properties.Fold(key) }
