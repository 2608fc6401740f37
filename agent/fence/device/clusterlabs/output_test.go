package clusterlabs

import (
	"fmt"
	"html"
	"net/url"
	"strings"
	"testing"
)

// TestRedaction: no form of a secret is in an error, also not a part of one where the output is cut.
func TestRedaction(t *testing.T) {
	const secret = `hunter2 "it's" \50%&ü`
	d, _ := newDevice(t, `cat >&2; exit 1`, map[string]string{"password": secret, "pin": "hunter2", "ip": "192.0.2.1"}, "password", "pin")
	err := d.Off(t.Context())
	if err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Fatalf("Off = %v; want it without the secrets", err)
	}
	if want := ": action=off; "; !strings.HasSuffix(err.Error(), "; action=off") && !strings.Contains(err.Error(), want) ||
		!strings.Contains(err.Error(), "password="+redacted) || !strings.Contains(err.Error(), "ip=192.0.2.1") {
		t.Errorf("Off = %v; want the other parameters", err)
	}
	for _, text := range []string{
		secret, url.QueryEscape(secret), url.PathEscape(secret), fmt.Sprintf("%q", secret),
		`'hunter2 "it\'s" \\50%&ü'`, strings.Repeat(secret, 1000),
		`Unable to run /usr/bin/ipmitool -P 'hunter2 "it'"'"'s" \50%&ü'`, fmt.Sprintf("%+q", secret), html.EscapeString(secret),
		strings.Repeat("x", 5000) + secret,
	} {
		o := &tail{limit: maxOutput + len(forms([]string{secret})[0])}
		fmt.Fprint(o, text)
		if got := o.redact([]string{secret}); strings.Contains(got, "hunter2") || strings.Contains(got, "50%") {
			t.Errorf("redact(%.80q) = %q", text, got)
		}
	}
}

// TestRedactionCut moves a secret over the place where the output is cut.
func TestRedactionCut(t *testing.T) {
	secret := strings.Repeat("hunter", 5) // 30 bytes
	for after := maxOutput - 100; after < maxOutput+100; after++ {
		o := &tail{limit: maxOutput + len(forms([]string{secret})[0])}
		fmt.Fprint(o, strings.Repeat("x", 1000)+secret)
		for range after {
			fmt.Fprint(o, "y")
		}
		got := o.redact([]string{secret})
		if strings.Contains(got, "h") || strings.Contains(got, "u") {
			t.Fatalf("with %d bytes after the secret redact = %.100q…", after, got)
		}
		if got != strings.Repeat("y", maxMessage) {
			t.Fatalf("with %d bytes after the secret redact has %d bytes", after, len(got))
		}
	}
}

// TestRedactionCutTwice cuts a secret that many whole ones follow: these are longer than what stands for them.
func TestRedactionCutTwice(t *testing.T) {
	secret := ""
	for i := range 40 {
		secret += fmt.Sprintf("h%du", i)
	}
	for after := range len(secret) {
		o := &tail{limit: maxOutput + len(secret)}
		fmt.Fprint(o, strings.Repeat(secret, 1000)+strings.Repeat("y", after))
		if got := o.redact([]string{secret}); strings.ContainsAny(got, "hun") || !strings.Contains(got, redacted) {
			t.Fatalf("with %d bytes after the secrets redact = %.100q…", after, got)
		}
	}
}

func TestTail(t *testing.T) {
	for _, tt := range []struct {
		writes []string
		want   string
		cut    bool
	}{
		{[]string{"ab", "cd"}, "abcd", false},
		{[]string{"abcd", ""}, "abcd", false},
		{[]string{"abc", "de"}, "bcde", true},
		{[]string{"a", "bcdefgh"}, "efgh", true},
		{[]string{"abcdefgh", "i"}, "fghi", true},
	} {
		o := &tail{limit: 4}
		for _, s := range tt.writes {
			if n, err := o.Write([]byte(s)); n != len(s) || err != nil {
				t.Errorf("Write(%q) = %d, %v", s, n, err)
			}
		}
		if string(o.text) != tt.want || o.cut != tt.cut {
			t.Errorf("%q: %q, cut %t; want %q, %t", tt.writes, o.text, o.cut, tt.want, tt.cut)
		}
	}
}
