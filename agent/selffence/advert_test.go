package selffence

import (
	"strings"
	"testing"
	"time"
)

const advertText = `{"v":1,"armed":true,"identity":"iTCO_wdt","timeoutSeconds":60,"nowayout":true,"feedGapSeconds":20,` +
	`"renewSeconds":10,"bootID":"b7a6c0de-9a37-4f3c-8a6c-2d9a3f1f0e11","sequence":4711,"armedAt":"2026-03-01T09:00:00Z",` +
	`"renewedAt":"2026-03-01T09:10:00Z"}`

func TestParseAdvert(t *testing.T) {
	change := func(old, replacement string) string { return strings.Replace(advertText, old, replacement, 1) }
	for _, test := range []struct{ name, text, want string }{
		{"valid", advertText, ""},
		{"not armed", change(`"armed":true`, `"armed":false`), ""},
		{"empty", "", "decode"},
		{"null", "null", "version 0"},
		{"other version", change(`"v":1`, `"v":2`), "version 2"},
		{"unknown key", change(`"v":1`, `"v":1,"feed":true`), "not in the form"},
		{"repeated key", change(`"armed":true`, `"armed":false,"armed":true`), "not in the form"},
		{"letter case", change(`"armed"`, `"Armed"`), "not in the form"},
		{"order", change(`"v":1,"armed":true`, `"armed":true,"v":1`), "not in the form"},
		{"blank", advertText + " ", "not in the form"},
		{"second value", advertText + advertText, "decode"},
		{"other time zone", change("09:00:00Z", "09:00:00+01:00"), "not in the form"},
		{"fraction of a second", change("09:10:00Z", "09:10:00.5Z"), "not in the form"},
		{"negative", change(`"renewSeconds":10`, `"renewSeconds":-10`), "not between"},
		{"overflow", change(`"timeoutSeconds":60`, `"timeoutSeconds":9223372036`), "not between"},
		{"fraction", change(`"timeoutSeconds":60`, `"timeoutSeconds":6.5`), "decode"},
		{"long", change("iTCO_wdt", strings.Repeat("x", MaxAnnotation)), "bytes, more than"},
		{"long identity", change("iTCO_wdt", strings.Repeat("x", maxIdentity+1)), "identity has"},
		{"long boot ID", change("b7a6c0de", strings.Repeat("x", maxBootID)), "boot ID has"},
	} {
		a, err := ParseAdvert(test.text)
		if test.want == "" {
			if err != nil || a.String() != test.text {
				t.Errorf("%s: ParseAdvert(%q) = %v, %v; want the same text", test.name, test.text, a, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: ParseAdvert(%q) = %v, %v; want an error with %q", test.name, test.text, a, err, test.want)
		}
	}
}

func TestProves(t *testing.T) {
	valid, err := ParseAdvert(advertText)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := valid.Bound(), 10*time.Second+20*time.Second+2*60*time.Second+30*time.Second; got != want {
		t.Errorf("Bound() = %s; want %s", got, want)
	}
	for _, test := range []struct {
		change func(*Advert)
		want   string
	}{
		{func(*Advert) {}, ""},
		{func(a *Advert) { a.NoWayOut = false }, ""},
		{func(a *Advert) { a.Armed = false }, "not armed"},
		{func(a *Advert) { a.BootID = "" }, "no boot ID"},
		{func(a *Advert) { a.Identity = "" }, "does not name"},
		{func(a *Advert) { a.Identity = SoftwareWatchdog }, "softdog"},
		{func(a *Advert) { a.TimeoutSeconds = 4 }, "timeout of 4 s"},
		{func(a *Advert) { a.TimeoutSeconds = 601 }, "timeout of 601 s"},
		{func(a *Advert) { a.FeedGapSeconds = 9 }, "feed gap of 9 s"},
		{func(a *Advert) { a.FeedGapSeconds = 601 }, "feed gap of 601 s"},
		{func(a *Advert) { a.Peers, a.FeedGapSeconds = true, 29 }, "feed gap of 29 s is less"},
		{func(a *Advert) { a.Peers, a.FeedGapSeconds = true, 30 }, ""},
		{func(a *Advert) { a.RenewSeconds = 0 }, "period of 0 s"},
		{func(a *Advert) { a.RenewSeconds = 21 }, "period of 21 s"},
	} {
		a := valid
		test.change(&a)
		if ok, why := a.Proves(); ok != (test.want == "") || !strings.Contains(why, test.want) {
			t.Errorf("%+v.Proves() = %t, %q; want %q", a, ok, why, test.want)
		}
	}
}

func TestReplaces(t *testing.T) {
	a := Advert{Version: Version, BootID: "b", Sequence: 7}
	with := func(boot string, sequence uint64) string {
		return Advert{Version: Version, BootID: boot, Sequence: sequence}.String()
	}
	for current, want := range map[string]bool{
		"": true, "x": true, with("b", 6): true, with("b", 7): false, with("b", 8): false, with("c", 8): true,
	} {
		if got := a.Replaces(current); got != want {
			t.Errorf("Replaces(%q) = %t; want %t", current, got, want)
		}
	}
}

func FuzzParseAdvert(f *testing.F) {
	f.Add(advertText)
	f.Add(Advert{Version: Version}.String())
	f.Add(`{"v":1,"armed":true,"armed":false}`)
	f.Fuzz(func(t *testing.T, text string) {
		a, err := ParseAdvert(text)
		if err != nil {
			return
		}
		if a.String() != text {
			t.Errorf("ParseAdvert(%q) accepts another form than %q", text, a.String())
		}
		if ok, _ := a.Proves(); ok && a.Bound() < 2*MinTimeout+MinFeedGap+Margin {
			t.Errorf("%q proves after %s", text, a.Bound())
		}
	})
}
