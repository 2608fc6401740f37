package signal

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

const (
	mi = 1 << 20
	gi = 1 << 30
)

func TestParseThreshold(t *testing.T) {
	for _, tt := range []struct {
		text   string
		prints string // empty: an error
		amount int64  // of a capacity of 10 GiB
	}{
		{"1Gi", "1Gi", gi},
		{"0.5Gi", "512Mi", 512 * mi},
		{"1024Mi", "1Gi", gi},
		{"1.5Gi", "1536Mi", 1536 * mi},
		{"100M", "100M", 100_000_000},
		{"1e3", "1e3", 1000},
		{"100m", "100m", 1}, // a fraction of a byte rounds up
		{"9223372036854775807", "9223372036854775807", math.MaxInt64},
		{"10%", "10%", 1073741840}, // not 1073741824: 10 % is a 32-bit float
		{"10.5%", "10.5%", 1127428880},
		{"5%", "5%", 536870920},
		{"0.0%", "0.0%", 0},
		{"99.99%", "99.99%", 10736344320},
		{"100.0%", "100.0%", 10 * gi},
		{"", "", 0},
		{"0", "", 0},
		{"-1Gi", "", 0},
		{"1 Gi", "", 0},
		{"1gi", "", 0},
		{"1Gi\r\n", "", 0},
		{"9223372036854775808", "", 0},
		{"100.1%", "", 0},
		{"-1%", "", 0},
		{"%", "", 0},
		{"5%%", "", 0},
		{"NaN%", "", 0},
		{"Inf%", "", 0},
		{"1e99%", "", 0},
		{"5 %", "", 0},
		{"٥%", "", 0},
		{"1e1000000000", "", 0},
		{"1E-1000000000", "", 0},
		{strings.Repeat("1", 65), "", 0},
	} {
		got, err := ParseThreshold(tt.text)
		if (err != nil) != (tt.prints == "") {
			t.Errorf("ParseThreshold(%q) error = %v; want error %t", tt.text, err, tt.prints == "")
			continue
		}
		if err != nil {
			continue
		}
		if got.String() != tt.prints {
			t.Errorf("ParseThreshold(%q).String() = %q; want %q", tt.text, got, tt.prints)
		}
		if amount := got.Amount(10 * gi); amount != tt.amount {
			t.Errorf("ParseThreshold(%q).Amount(10Gi) = %d; want %d", tt.text, amount, tt.amount)
		}
	}
}

func TestParseThresholdOff(t *testing.T) {
	for _, text := range []string{"0%", "100%"} {
		if _, err := ParseThreshold(text); !errors.Is(err, ErrOff) {
			t.Errorf("ParseThreshold(%q) error = %v; want ErrOff", text, err)
		}
	}
}

func TestParseMinReclaim(t *testing.T) {
	for _, tt := range []struct {
		text   string
		prints string
		amount int64 // of a capacity of 10 GiB
	}{
		{"0", "0", 0},
		{"0Mi", "0", 0},
		{"500Mi", "500Mi", 500 * mi},
		{"10%", "10%", 1073741840},
		{"250%", "250%", 25 * gi},
		{"1e30%", "1e30%", math.MaxInt64},
		{"0%", "", 0},
		{"-1", "", 0},
		{"-5%", "", 0},
		{"", "", 0},
		{"NaN%", "", 0},
	} {
		got, err := ParseMinReclaim(tt.text)
		if (err != nil) != (tt.prints == "") {
			t.Errorf("ParseMinReclaim(%q) error = %v; want error %t", tt.text, err, tt.prints == "")
			continue
		}
		if err != nil {
			continue
		}
		if got.String() != tt.prints {
			t.Errorf("ParseMinReclaim(%q).String() = %q; want %q", tt.text, got, tt.prints)
		}
		if amount := got.Amount(10 * gi); amount != tt.amount {
			t.Errorf("ParseMinReclaim(%q).Amount(10Gi) = %d; want %d", tt.text, amount, tt.amount)
		}
	}
}

func TestValueOf(t *testing.T) {
	for _, tt := range []struct {
		text     string
		capacity int64
		want     string
	}{
		{"1Gi", 10 * gi, "1Gi"},
		{"10%", 100 * gi, "10737418400"},
		{"50%", 10 * gi, "5Gi"},
		{"5%", 1_000_000, "50000"},
		{"50%", 2048, "1Ki"}, // inodes too: the kubelet's share is binary
	} {
		v, err := ParseThreshold(tt.text)
		if err != nil {
			t.Fatalf("ParseThreshold(%q): %v", tt.text, err)
		}
		of := v.Of(tt.capacity)
		if got := of.String(); got != tt.want {
			t.Errorf("%q.Of(%d) = %s; want %s", tt.text, tt.capacity, got, tt.want)
		}
	}
}

func TestTarget(t *testing.T) {
	for _, tt := range []struct {
		value, reclaim string
		want           int64
	}{
		{"500Mi", "0Mi", 500 * mi},
		{"1Gi", "500Mi", gi + 500*mi},
		{"1Gi", "50%", 6 * gi},
		{"9223372036854775807", "1", math.MaxInt64},
		{"1", "1e30%", math.MaxInt64},
	} {
		value, err := ParseThreshold(tt.value)
		if err != nil {
			t.Fatalf("ParseThreshold(%q): %v", tt.value, err)
		}
		reclaim, err := ParseMinReclaim(tt.reclaim)
		if err != nil {
			t.Fatalf("ParseMinReclaim(%q): %v", tt.reclaim, err)
		}
		threshold := Threshold{Value: value, MinReclaim: reclaim}
		if got := threshold.Target(10 * gi); got != tt.want {
			t.Errorf("Target of %s and %s = %d; want %d", tt.value, tt.reclaim, got, tt.want)
		}
	}
}

func TestHard(t *testing.T) {
	if !(Threshold{}).Hard() || (Threshold{Grace: time.Second}).Hard() {
		t.Error("Hard() must be true without a grace period and false with one")
	}
}

func TestBelow(t *testing.T) {
	for _, tt := range []struct {
		o    Observation
		want bool
	}{
		{Observation{Status: Observed, Available: 9}, true},
		{Observation{Status: Observed, Available: 10}, false},
		{Observation{Status: Observed, Available: -1}, true},
		{Observation{Status: Unreadable}, false},
		{Observation{}, false},
	} {
		if got := tt.o.Below(10); got != tt.want {
			t.Errorf("%+v.Below(10) = %t; want %t", tt.o, got, tt.want)
		}
	}
}

func FuzzParseThreshold(f *testing.F) {
	for _, seed := range []string{"1Gi", "10%", "0%", "100%", "5%%", "NaN%", "-0%", "0x1p3%", "1e1000000000", "1e-9", "", "0.5Gi", "+5%", "12e6", "100m"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		v, err := ParseThreshold(text)
		if err != nil {
			return
		}
		for _, capacity := range []int64{0, 1, 10 * gi, math.MaxInt64} {
			if amount := v.Amount(capacity); amount < 0 || v.IsPercentage() && amount > capacity {
				t.Errorf("ParseThreshold(%q).Amount(%d) = %d", text, capacity, amount)
			}
		}
		checkReparses(t, text, v, ParseThreshold)
	})
}

func FuzzParseMinReclaim(f *testing.F) {
	for _, seed := range []string{"0", "0Mi", "500Mi", "10%", "0%", "1e30%", "-1", "-0%", "NaN%", "1e1000000000"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		v, err := ParseMinReclaim(text)
		if err != nil {
			return
		}
		for _, capacity := range []int64{0, 1, 10 * gi, math.MaxInt64} {
			if amount := v.Amount(capacity); amount < 0 {
				t.Errorf("ParseMinReclaim(%q).Amount(%d) = %d", text, capacity, amount)
			}
		}
		checkReparses(t, text, v, ParseMinReclaim)
	})
}

func FuzzParsePercentage(f *testing.F) {
	for _, seed := range []string{"0%", "7.5%", "100%", "-1%", "%", "1e38%", "NaN%", "infinity%", "0x1_0p3%"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		fraction, err := parsePercentage(text)
		if err != nil {
			return
		}
		if !(fraction >= 0) || math.IsInf(float64(fraction), 0) {
			t.Errorf("parsePercentage(%q) = %v", text, fraction)
		}
	})
}

// checkReparses reports an error if parsing v.String() gives a different amount than v.
func checkReparses(t *testing.T, text string, v Value, parse func(string) (Value, error)) {
	t.Helper()
	again, err := parse(v.String())
	if err != nil {
		t.Errorf("%q prints as %q, which does not parse: %v", text, v, err)
		return
	}
	if a, b := v.Amount(10*gi), again.Amount(10*gi); a != b {
		t.Errorf("%q is %d; want %d, the amount of %q, as which it prints", text, a, b, v)
	}
}

func TestParseQuantity(t *testing.T) {
	for _, text := range []string{"1e99", "1e100", "1E+1000000000", "1e-999999999", strings.Repeat("9", 1<<20), "9223372036854775808", "Gi", "\x00"} {
		if q, err := ParseQuantity(text); err == nil {
			t.Errorf("ParseQuantity(%.20q) = %s; want an error", text, q.String())
		} else if len(err.Error()) > 200 {
			t.Errorf("ParseQuantity(%.20q): the error has %d characters", text, len(err.Error()))
		}
	}
	q, err := ParseQuantity("-1Gi")
	if err != nil || q.Cmp(resource.MustParse("-1Gi")) != 0 {
		t.Errorf("ParseQuantity(-1Gi) = %s, %v; want -1Gi", q.String(), err)
	}
}

// Which of a percentage and a quantity is larger depends on the capacity.
func TestLarger(t *testing.T) {
	const gi = 1 << 30
	parse := func(text string) Value {
		t.Helper()
		v, err := ParseThreshold(text)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for _, tt := range []struct {
		a, b, want     string
		on4Gi, on100Gi string // the amount at that capacity, as it prints
	}{
		{"1Gi", "2Gi", "2Gi", "2Gi", "2Gi"},
		{"25%", "50%", "50%", "2Gi", "50Gi"},
		{"1.5Gi", "25%", "25% or 1536Mi", "1536Mi", "25Gi"},
		{"25% or 1Gi", "2Gi", "25% or 2Gi", "2Gi", "25Gi"},
		{"25% or 1Gi", "50%", "50% or 1Gi", "2Gi", "50Gi"},
	} {
		for _, v := range []Value{Larger(parse(tt.a), parse(tt.b)), Larger(parse(tt.b), parse(tt.a)), parse(tt.want)} {
			if got := v.String(); got != tt.want {
				t.Errorf("Larger(%s, %s) = %s; want %s", tt.a, tt.b, got, tt.want)
			}
			for capacity, want := range map[int64]string{4 * gi: tt.on4Gi, 100 * gi: tt.on100Gi} {
				q := v.Of(capacity)
				if amount := v.Amount(capacity); q.String() != want || q.Value() != amount {
					t.Errorf("%s of %d = %s, %d; want %s", v.String(), capacity, q.String(), amount, want)
				}
			}
		}
	}
	for _, bad := range []string{"1Gi or 5%", "5% or 5%", "1Gi or 2Gi", "5% or", " or 1Gi", "5% or 1Gi or 2Gi", "0% or 1Gi", "5% or 0", "5%  or 1Gi", "101% or 1Gi"} {
		if v, err := ParseThreshold(bad); err == nil || errors.Is(err, ErrOff) {
			t.Errorf("ParseThreshold(%q) = %v, %v; want an error", bad, v, err)
		}
	}
}

// The hot path calls Amount, so it must not allocate.
func TestAmountDoesNotAllocate(t *testing.T) {
	for _, text := range []string{"25%", "25% or 1.5Gi", "25% or 100m"} {
		v, err := ParseThreshold(text)
		if err != nil {
			t.Fatal(err)
		}
		if n := testing.AllocsPerRun(100, func() { v.Amount(1 << 40) }); n != 0 {
			t.Errorf("Amount() of %s allocates %v times; want 0", text, n)
		}
	}
}
