package strict

import (
	"errors"
	"math"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/evictd/evictd/agent/signal"
)

// isNull reports whether a node, or the node that an alias refers to, is null.
func isNull(n *yaml.Node) bool {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null"
}

// found describes a node for messages.
func found(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a map"
	case yaml.SequenceNode:
		return "a list"
	}
	switch tag := n.ShortTag(); tag {
	case "!!str", "!!timestamp":
		return "the string " + Quote(n.Value)
	case "!!int", "!!float":
		return "the number " + shorten(n.Value)
	case "!!bool":
		return n.Value
	case "!!null":
		return "null"
	default:
		return "a value tagged " + Quote(tag)
	}
}

// Quote shortens and quotes a value for a message.
func Quote(text string) string { return strconv.Quote(shorten(text)) }

func shorten(text string) string {
	const maxLength = 64
	if len(text) <= maxLength {
		return text
	}
	return strings.ToValidUTF8(text[:maxLength], "") + "…"
}

func (d *Decoder) mismatch(n *yaml.Node, want string) {
	d.Errorf("", "is %s; want %s", found(n), want)
}

// isText reports whether a node is a string. An unquoted date such as 2006-01-02
// counts as one.
func isText(n *yaml.Node) bool {
	return n.Kind == yaml.ScalarNode && (n.ShortTag() == "!!str" || n.ShortTag() == "!!timestamp")
}

func isNumber(n *yaml.Node) bool {
	return n.Kind == yaml.ScalarNode && (n.ShortTag() == "!!int" || n.ShortTag() == "!!float")
}

func (d *Decoder) text(n *yaml.Node) (string, bool) {
	switch {
	case isText(n):
		return n.Value, true
	case isNumber(n), n.Kind == yaml.ScalarNode && n.ShortTag() == "!!bool":
		d.mismatch(n, "a string: put it in quotes")
	default:
		d.mismatch(n, "a string")
	}
	return "", false
}

// Amount returns the text of a string or plain number, the two ways to write a
// quantity. For any other value it reports a problem in which want describes the
// expected value.
func (d *Decoder) Amount(n *yaml.Node, want string) (text string, ok bool) {
	switch {
	case isText(n), isNumber(n) && d.decimal(n):
		return n.Value, true
	case !isNumber(n):
		d.mismatch(n, want)
	}
	return "", false
}

var octal = regexp.MustCompile(`^[-+]?0[0-9_]+$`)

// decimal refuses numbers such as 010, which is 8 in YAML 1.1 and 10 in YAML 1.2.
func (d *Decoder) decimal(n *yaml.Node) bool {
	if !octal.MatchString(n.Value) {
		return true
	}
	d.Errorf("", "is the number %s, which is octal in YAML 1.1 and decimal in YAML 1.2; leave out the leading 0", shorten(n.Value))
	return false
}

func (d *Decoder) quantity(n *yaml.Node, into *resource.Quantity) {
	const want = "a quantity such as 500Mi"
	text, ok := d.Amount(n, want)
	if !ok {
		return
	}
	q, err := signal.ParseQuantity(text)
	if err != nil {
		d.mismatch(n, want)
		return
	}
	*into = q
}

func (d *Decoder) duration(n *yaml.Node, into *time.Duration) {
	const want = "a duration such as 90s or 1m30s"
	if !isText(n) {
		d.mismatch(n, want)
		return
	}
	t, err := time.ParseDuration(n.Value)
	if err != nil {
		d.mismatch(n, want)
		return
	}
	*into = t
}

func (d *Decoder) boolean(n *yaml.Node, into reflect.Value) {
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!bool" {
		into.SetBool(strings.EqualFold(n.Value, "true"))
		return
	}
	// These plain words are booleans in YAML 1.1.
	if d.lenient && n.Kind == yaml.ScalarNode && n.Style == 0 {
		switch strings.ToLower(n.Value) {
		case "y", "yes", "on":
			into.SetBool(true)
			return
		case "n", "no", "off":
			into.SetBool(false)
			return
		}
	}
	d.mismatch(n, "true or false")
}

func (d *Decoder) integer(n *yaml.Node, into reflect.Value) {
	if !isNumber(n) {
		d.mismatch(n, "a whole number")
		return
	}
	if !d.lenient && !d.decimal(n) {
		return
	}
	i, err := strconv.ParseInt(strings.ReplaceAll(n.Value, "_", ""), 0, 64)
	if err != nil && d.lenient {
		i, err = wholeFloat(n.Value)
	}
	switch bits := into.Type().Bits(); {
	case errors.Is(err, strconv.ErrRange), err == nil && into.OverflowInt(i):
		d.Errorf("", "is the number %s; want one from %d to %d", shorten(n.Value), int64(math.MinInt64)>>(64-bits), int64(math.MaxInt64)>>(64-bits))
	case err != nil:
		d.mismatch(n, "a whole number")
	default:
		into.SetInt(i)
	}
}

// wholeFloat reads a number such as 60.0, which is an integer for programs that
// convert YAML to JSON first.
func wholeFloat(text string) (int64, error) {
	f, err := strconv.ParseFloat(text, 64)
	if err == nil && (f != math.Trunc(f) || math.Abs(f) >= 1<<53) {
		err = strconv.ErrSyntax
	}
	return int64(f), err
}
