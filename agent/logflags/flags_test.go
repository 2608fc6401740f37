package logflags

import (
	"flag"
	"io"
	"strings"
	"testing"
)

func TestFlags(t *testing.T) {
	for _, tt := range []struct {
		args             []string
		parses, accepted bool
		want             string // of a line with the level info
	}{
		{nil, true, true, "level=INFO msg=m a=1"},
		{[]string{"--log.format", "json"}, true, true, `"level":"INFO","msg":"m","a":1}`},
		{[]string{"--log.level", "warn"}, true, true, ""},
		{[]string{"--log.format", "xml"}, true, false, ""},
		{[]string{"--log.format", ""}, true, false, ""},
		{[]string{"--log.level", "loud"}, false, false, ""},
	} {
		set := flag.NewFlagSet("test", flag.ContinueOnError)
		set.SetOutput(io.Discard)
		f := Register(set)
		if err := set.Parse(tt.args); (err == nil) != tt.parses {
			t.Errorf("Parse(%q) = %v; want success: %t", tt.args, err, tt.parses)
		}
		if !tt.parses {
			continue
		}
		if err := f.Check(); (err == nil) != tt.accepted {
			t.Errorf("%q: Check() = %v; want success: %t", tt.args, err, tt.accepted)
		}
		if !tt.accepted {
			continue
		}
		var out strings.Builder
		f.Logger(&out).Info("m", "a", 1)
		if got := out.String(); !strings.Contains(got, tt.want) || (tt.want == "") != (got == "") {
			t.Errorf("%q: logged %q; want %q", tt.args, got, tt.want)
		}
	}
}
