package selffence

import (
	"strings"
	"testing"
	"time"
)

func TestPlannedShutdown(t *testing.T) {
	now := time.Date(2026, 3, 1, 9, 0, 0, 0, time.UTC)
	for _, test := range []struct {
		text, want string
		until      time.Time
	}{
		{"2026-03-01T09:10:00Z", "", now.Add(10 * time.Minute)},
		{"2026-03-01T10:10:00+01:00", "", now.Add(10 * time.Minute)},
		{"2026-03-02T09:00:00Z", "", now.Add(24 * time.Hour)},
		{"2026-02-01T09:00:00Z", "", now.AddDate(0, -1, 0)},
		{"2026-03-02T09:00:01Z", "is more than 24h", time.Time{}},
		{"", "is not a time", time.Time{}},
		{"true", "is not a time", time.Time{}},
		{"2026-03-01T09:10:00Z ", "is not a time", time.Time{}},
		{"2026-03-01T09:10:00." + strings.Repeat("0", 100) + "Z", "is not a time", time.Time{}},
	} {
		got, err := ParsePlannedShutdown(test.text, now)
		if test.want == "" && (err != nil || !got.Equal(test.until)) {
			t.Errorf("ParsePlannedShutdown(%q) = %s, %v; want %s", test.text, got, err, test.until)
		}
		if test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want) || len(err.Error()) > 100) {
			t.Errorf("ParsePlannedShutdown(%q) = %s, %v; want a short error with %q", test.text, got, err, test.want)
		}
	}
	if got, want := FormatPlannedShutdown(now.Add(time.Millisecond)), "2026-03-01T09:00:01Z"; got != want {
		t.Errorf("FormatPlannedShutdown = %q; want %q", got, want)
	}
}

func TestParseRejoin(t *testing.T) {
	const text = `{"v":1,"fenceUID":"0f7e","bootID":"b7a6","containersLeft":0,"volumesMounted":2}`
	change := func(old, replacement string) string { return strings.Replace(text, old, replacement, 1) }
	for _, test := range []struct{ text, want string }{
		{text, ""},
		{"", "decode"},
		{change(`"v":1`, `"v":0`), "version 0"},
		{change("0f7e", ""), "empty or too long"},
		{change("b7a6", strings.Repeat("b", maxBootID+1)), "empty or too long"},
		{change(`"containersLeft":0,`, ""), "not in the form"},
		{change(`"containersLeft":0`, `"containersLeft":-1`), "counts"},
		{change(`"containersLeft":0`, `"containersLeft":1,"containersLeft":0`), "not in the form"},
		{change(`"volumesMounted":2`, `"volumesMounted":100001`), "counts"},
	} {
		r, err := ParseRejoin(test.text)
		if test.want == "" && (err != nil || r.String() != test.text || r.VolumesMounted != 2) {
			t.Errorf("ParseRejoin(%q) = %+v, %v", test.text, r, err)
		}
		if test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("ParseRejoin(%q) = %+v, %v; want an error with %q", test.text, r, err, test.want)
		}
	}
}

func FuzzMarks(f *testing.F) {
	f.Add("2026-03-01T09:10:00Z")
	f.Add(`{"v":1,"fenceUID":"0f7e","bootID":"b7a6","containersLeft":0,"volumesMounted":2}`)
	now := time.Date(2026, 3, 1, 9, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, text string) {
		if until, err := ParsePlannedShutdown(text, now); err == nil && until.Sub(now) > MaxPlannedShutdown {
			t.Errorf("ParsePlannedShutdown(%q) = %s", text, until)
		}
		if r, err := ParseRejoin(text); err == nil && r.String() != text {
			t.Errorf("ParseRejoin(%q) accepts another form than %q", text, r.String())
		}
	})
}
