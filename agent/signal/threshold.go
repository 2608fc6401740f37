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

// Value is an amount of a signal: a quantity, a percentage of its capacity, or the
// larger of both. The zero Value is the quantity 0.
type Value struct {
	quantity       resource.Quantity
	fraction       float32 // the percentage as a fraction of the capacity; above 1 in some minimum reclaims
	text           string  // the percentage as configured; empty for a quantity
	hasBoth        bool    // the value has a quantity besides the percentage
	quantityAmount int64   // if hasBoth: quantity.Value(), computed once because it can allocate
}

// orSeparator separates the percentage and the quantity of a Value that has both.
const orSeparator = " or "

// Larger returns the value that is the larger of a and b at every capacity. For a
// percentage and a quantity, the result has both.
func Larger(a, b Value) Value {
	quantity := a.quantity
	if b.quantity.Cmp(quantity) > 0 {
		quantity = b.quantity
	}
	percentage := a
	if b.IsPercentage() && (!a.IsPercentage() || b.fraction > a.fraction) {
		percentage = b
	}
	if !percentage.IsPercentage() {
		return Value{quantity: quantity}
	}
	return Value{quantity: quantity, fraction: percentage.fraction, text: percentage.text, hasBoth: !quantity.IsZero(), quantityAmount: quantity.Value()}
}

// Quantity returns a Value of the quantity q.
func Quantity(q resource.Quantity) Value { return Value{quantity: q} }

// IsPercentage reports whether the amount of v depends on a capacity.
func (v Value) IsPercentage() bool { return v.text != "" }

// String returns a percentage as it was configured, and a quantity in canonical form.
func (v Value) String() string {
	switch {
	case v.hasBoth:
		return v.text + orSeparator + v.quantity.String()
	case v.IsPercentage():
		return v.text
	}
	return v.quantity.String()
}

// Of returns the amount of v at a capacity, in the capacity's unit, with the format in
// which it prints. A percentage is computed from a 32-bit float, as in the kubelet, so
// that both round in the same way.
func (v Value) Of(capacity int64) resource.Quantity {
	if v.IsPercentage() && (!v.hasBoth || v.percentageAmount(capacity) >= v.quantityAmount) {
		return *resource.NewQuantity(v.percentageAmount(capacity), resource.BinarySI)
	}
	return v.quantity
}

// Amount returns the amount of v at a capacity as a number. A quantity is rounded up, a
// percentage's amount is rounded down. An amount above math.MaxInt64, which a minimum
// reclaim may have, becomes math.MaxInt64.
func (v Value) Amount(capacity int64) int64 {
	switch {
	case v.hasBoth:
		return max(v.percentageAmount(capacity), v.quantityAmount)
	case v.IsPercentage():
		return v.percentageAmount(capacity)
	}
	return v.quantity.Value()
}

// percentageAmount returns the amount of the percentage at a capacity, rounded down and
// at most math.MaxInt64.
func (v Value) percentageAmount(capacity int64) int64 {
	amount := float64(capacity) * float64(v.fraction)
	if amount >= math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(amount)
}

// Threshold is an amount below which a signal must not fall.
type Threshold struct {
	Signal Signal
	Value  Value
	// Grace is how long the signal must stay below the threshold before a pod is
	// evicted; 0 makes the threshold hard.
	Grace time.Duration
	// MinReclaim is how far above Value the signal must rise before the threshold is no
	// longer met.
	MinReclaim Value
}

// Hard reports whether the threshold has no grace period.
func (t Threshold) Hard() bool { return t.Grace == 0 }

// Target returns the amount at which a threshold that was acted on is no longer met:
// Value plus MinReclaim.
func (t Threshold) Target(capacity int64) int64 {
	value, reclaim := t.Value.Amount(capacity), t.MinReclaim.Amount(capacity)
	if reclaim > math.MaxInt64-value {
		return math.MaxInt64
	}
	return value + reclaim
}

// ErrOff is the error of ParseThreshold for "0%" and "100%", which switch a default
// threshold off, as in the kubelet's configuration.
var ErrOff = errors.New("threshold switched off")

// ParseThreshold parses a threshold's value: a quantity above 0, a percentage from 0 to
// 100, or both, as in "5% or 500Mi", where the larger applies. For "0%" and "100%" it
// returns ErrOff.
func ParseThreshold(text string) (Value, error) {
	if text == "0%" || text == "100%" {
		return Value{}, ErrOff
	}
	if HasBoth(text) {
		return parseBoth(text)
	}
	if strings.HasSuffix(text, "%") {
		fraction, err := parsePercentage(text)
		if err != nil {
			return Value{}, err
		}
		if fraction > 1 {
			return Value{}, fmt.Errorf("%q is more than 100%%", text)
		}
		return Value{fraction: fraction, text: text}, nil
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

// HasBoth reports whether a threshold's text has a percentage and a quantity, a form
// that the kubelet does not support.
func HasBoth(text string) bool { return strings.Contains(text, orSeparator) }

// parseBoth parses a percentage and a quantity, in this order.
func parseBoth(text string) (Value, error) {
	first, second, _ := strings.Cut(text, orSeparator)
	a, errA := ParseThreshold(first)
	b, errB := ParseThreshold(second)
	if errA != nil || errB != nil || b.hasBoth || !a.IsPercentage() || b.IsPercentage() {
		return Value{}, fmt.Errorf("%q is not a percentage and a quantity, such as 5%% or 500Mi", text)
	}
	return Larger(a, b), nil
}

// ParseMinReclaim parses a minimum reclaim: a quantity of at least 0, or a percentage
// above 0.
func ParseMinReclaim(text string) (Value, error) {
	if strings.HasSuffix(text, "%") {
		fraction, err := parsePercentage(text)
		if err != nil {
			return Value{}, err
		}
		if fraction == 0 {
			return Value{}, fmt.Errorf("%q is not above 0%%", text)
		}
		return Value{fraction: fraction, text: text}, nil
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

// parsePercentage parses "10%" or "7.5%" as a fraction. NaN, infinity and a second
// percent sign are errors here; the kubelet accepts them.
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

// maxQuantity is the largest quantity for which the arithmetic here does not overflow.
var maxQuantity = *resource.NewQuantity(math.MaxInt64, resource.DecimalSI)

// hugeExponent matches exponents of three digits, which no amount needs.
var hugeExponent = regexp.MustCompile(`[eE][+-]?[0-9]{3}`)

// ParseQuantity parses a Kubernetes quantity of at most math.MaxInt64. Use it for
// untrusted text: resource.ParseQuantity computes the power of ten of any exponent, so
// "1e1000000000" takes minutes and gigabytes.
func ParseQuantity(text string) (resource.Quantity, error) {
	if len(text) > 64 || hugeExponent.MatchString(text) {
		return resource.Quantity{}, fmt.Errorf("%.64q is not a quantity of at most 64 characters and two digits of exponent", text)
	}
	q, err := resource.ParseQuantity(text)
	if err != nil || !strings.ContainsAny(text, "0123456789") { // resource.ParseQuantity reads "Gi" as 0
		return resource.Quantity{}, fmt.Errorf("%q is not a quantity", text)
	}
	if q.Cmp(maxQuantity) > 0 {
		return resource.Quantity{}, fmt.Errorf("%q is too large", text)
	}
	return q, nil
}
