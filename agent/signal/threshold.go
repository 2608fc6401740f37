package signal

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Value is an amount of a signal: a quantity, a percentage of its capacity, or
// the larger of both. The zero Value is the quantity 0.
type Value struct {
	quantity resource.Quantity
	percent  float32 // a share of capacity, 0 to 1
	text     string  // the percentage as it was written; empty for a quantity
	both     bool    // the quantity counts beside the percentage
	least    int64   // the quantity's amount where both count, for the hot path
}

// or is between the percentage and the quantity of a value that has both.
const or = " or "

// Larger returns the value that is the larger of two on every capacity. Of a
// percentage and a quantity that is one which has both.
func Larger(a, b Value) Value {
	quantity := a.quantity
	if b.quantity.Cmp(quantity) > 0 {
		quantity = b.quantity
	}
	share := a
	if b.IsPercentage() && (!a.IsPercentage() || b.percent > a.percent) {
		share = b
	}
	if !share.IsPercentage() {
		return Value{quantity: quantity}
	}
	return Value{quantity: quantity, percent: share.percent, text: share.text, both: !quantity.IsZero(), least: quantity.Value()}
}

// Quantity returns the Value of a quantity.
func Quantity(q resource.Quantity) Value { return Value{quantity: q} }

// IsPercentage reports whether the value needs a capacity to mean an amount.
func (v Value) IsPercentage() bool { return v.text != "" }

// String prints a percentage as it was written, and a quantity canonically in
// the format in which it was written.
func (v Value) String() string {
	switch {
	case v.both:
		return v.text + or + v.quantity.String()
	case v.IsPercentage():
		return v.text
	}
	return v.quantity.String()
}

// Of returns the amount that v means of a capacity, in the capacity's unit,
// and how it prints. A percentage is computed as the kubelet does, from a
// 32-bit float, so that both round alike.
func (v Value) Of(capacity int64) resource.Quantity {
	if v.IsPercentage() && (!v.both || v.share(capacity) >= v.least) {
		return *resource.NewQuantity(v.share(capacity), resource.BinarySI)
	}
	return v.quantity
}

// Amount returns the amount that v means of a capacity as a number: of a
// quantity the smallest whole number that is not below it, of a percentage the
// share without its fraction. A share too large for an int64, which a minimum
// reclaim may be, is the largest one.
func (v Value) Amount(capacity int64) int64 {
	switch {
	case v.both:
		return max(v.share(capacity), v.least)
	case v.IsPercentage():
		return v.share(capacity)
	}
	return v.quantity.Value()
}

// share returns the percentage's amount.
func (v Value) share(capacity int64) int64 {
	share := float64(capacity) * float64(v.percent)
	if share >= math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(share)
}

// Threshold is a mark below which a signal must not fall.
type Threshold struct {
	Signal Signal
	Value  Value
	// Grace is how long the mark must be crossed before anything is evicted;
	// 0 makes the threshold hard.
	Grace time.Duration
	// MinReclaim is how far above the mark the signal must come back before
	// the threshold counts as no longer met.
	MinReclaim Value
}

// Hard reports whether the threshold has no grace period.
func (t Threshold) Hard() bool { return t.Grace == 0 }

// Target returns the amount at which the threshold, once acted upon, is no
// longer met: its value and its minimum reclaim.
func (t Threshold) Target(capacity int64) int64 {
	value, reclaim := t.Value.Amount(capacity), t.MinReclaim.Amount(capacity)
	if reclaim > math.MaxInt64-value {
		return math.MaxInt64
	}
	return value + reclaim
}

// ErrOff is what ParseThreshold returns for "0%" and "100%": with them the
// kubelet's users switch a default threshold off.
var ErrOff = errors.New("threshold switched off")

// ParseThreshold reads a threshold's value: a quantity above 0, a percentage
// from 0 to 100, or both, as in "5% or 500Mi", of which the larger counts. "0%"
// and "100%" are ErrOff.
func ParseThreshold(text string) (Value, error) {
	if text == "0%" || text == "100%" {
		return Value{}, ErrOff
	}
	if HasBoth(text) {
		return parseBoth(text)
	}
	if strings.HasSuffix(text, "%") {
		share, err := parsePercentage(text)
		if err != nil {
			return Value{}, err
		}
		if share > 1 {
			return Value{}, fmt.Errorf("%q is more than 100%%", text)
		}
		return Value{percent: share, text: text}, nil
	}
	q, err := ParseQuantity(text)
	if err != nil {
		return Value{}, err
	}
	if q.Sign() <= 0 {
		return Value{}, fmt.Errorf("%q is not above 0", text)
	}
	return Value{quantity: q}, nil
}

// HasBoth reports whether the text of a threshold has a percentage and a
// quantity, which the kubelet does not read.
func HasBoth(text string) bool { return strings.Contains(text, or) }

func parseBoth(text string) (Value, error) {
	first, second, _ := strings.Cut(text, or)
	a, errA := ParseThreshold(first)
	b, errB := ParseThreshold(second)
	if errA != nil || errB != nil || b.both || !a.IsPercentage() || b.IsPercentage() {
		return Value{}, fmt.Errorf("%q is not a percentage and a quantity, such as 5%% or 500Mi", text)
	}
	return Larger(a, b), nil
}

// ParseMinReclaim reads a minimum reclaim: a quantity of at least 0, or a
// percentage above 0.
func ParseMinReclaim(text string) (Value, error) {
	if strings.HasSuffix(text, "%") {
		share, err := parsePercentage(text)
		if err != nil {
			return Value{}, err
		}
		if share == 0 {
			return Value{}, fmt.Errorf("%q is not above 0%%", text)
		}
		return Value{percent: share, text: text}, nil
	}
	q, err := ParseQuantity(text)
	if err != nil {
		return Value{}, err
	}
	if q.Sign() < 0 {
		return Value{}, fmt.Errorf("%q is below 0", text)
	}
	return Value{quantity: q}, nil
}

// parsePercentage reads "10%" or "7.5%" as a share. Not a number, infinity and
// a second percent sign are errors here, where the kubelet lets them pass.
func parsePercentage(text string) (float32, error) {
	number := strings.TrimSuffix(text, "%")
	f, err := strconv.ParseFloat(number, 32)
	if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
		return 0, fmt.Errorf("%q is not a percentage", text)
	}
	if f < 0 {
		return 0, fmt.Errorf("%q is below 0%%", text)
	}
	return float32(f) / 100, nil
}

// largest is the largest amount that arithmetic here is safe with.
var largest = *resource.NewQuantity(math.MaxInt64, resource.DecimalSI)

// hugeExponent finds exponents that no amount needs.
var hugeExponent = regexp.MustCompile(`[eE][+-]?[0-9]{3}`)

// ParseQuantity reads a Kubernetes quantity of at most math.MaxInt64. Whoever
// reads quantities that others wrote needs it: resource.ParseQuantity computes
// the power of ten that an exponent names, and "1e1000000000" keeps it busy for
// minutes and gigabytes.
func ParseQuantity(text string) (resource.Quantity, error) {
	if len(text) > 64 || hugeExponent.MatchString(text) {
		return resource.Quantity{}, fmt.Errorf("%.64q is not a quantity of at most 64 characters and two digits of exponent", text)
	}
	q, err := resource.ParseQuantity(text)
	if err != nil || !strings.ContainsAny(text, "0123456789") { // it takes "Gi" for 0
		return resource.Quantity{}, fmt.Errorf("%q is not a quantity", text)
	}
	if q.Cmp(largest) > 0 {
		return resource.Quantity{}, fmt.Errorf("%q is too large", text)
	}
	return q, nil
}
