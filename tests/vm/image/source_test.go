package image

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseLines(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       []Source
	}{
		{"Debian's", "deb http://mirror.example.org/debian bookworm main contrib\n", []Source{
			{URI: "http://mirror.example.org/debian", Suites: []string{"bookworm"}, Components: []string{"main", "contrib"}},
		}},
		{"options", "deb [ arch=amd64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg ] https://mirror.example/debian bookworm main # ours\n", []Source{
			{URI: "https://mirror.example/debian", Suites: []string{"bookworm"}, Components: []string{"main"}, SignedBy: "/usr/share/keyrings/debian-archive-keyring.gpg"},
		}},
		{"options without blanks", "deb [signed-by=/a.gpg,/b.gpg]  http://mirror.example/debian  bookworm  main\n", []Source{
			{URI: "http://mirror.example/debian", Suites: []string{"bookworm"}, Components: []string{"main"}, SignedBy: "/a.gpg"},
		}},
		{"comments, sources, flat and broken lines", "# deb http://a bookworm main\ndeb-src http://a bookworm main\ndeb http://a ./\ndeb\ndeb [arch=amd64\n", nil},
		{"no end of line", "deb http://a bookworm main", []Source{{URI: "http://a", Suites: []string{"bookworm"}, Components: []string{"main"}}}},
	} {
		if got := parseLines(tt.text); !cmp.Equal(got, tt.want) {
			t.Errorf("%s: parseLines(%q) = %+v; want %+v", tt.name, tt.text, got, tt.want)
		}
	}
}

func TestParseStanzas(t *testing.T) {
	debian := Source{
		URI: "http://mirror.example.org/debian", Suites: []string{"bookworm", "bookworm-updates"}, Components: []string{"main"},
		SignedBy: "/usr/share/keyrings/debian-archive-keyring.gpg",
	}
	for _, tt := range []struct {
		name, text string
		want       []Source
	}{
		{"Debian's image", "Types: deb\n# http://snapshot.example.org/archive/debian/20250520T000000Z\nURIs: http://mirror.example.org/debian\n" +
			"Suites: bookworm bookworm-updates\nComponents: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n\n" +
			"Types: deb\nURIs: http://mirror.example.org/debian-security\nSuites: bookworm-security\nComponents: main\n",
			[]Source{debian, {URI: "http://mirror.example.org/debian-security", Suites: []string{"bookworm-security"}, Components: []string{"main"}}}},
		{"two addresses, lists that go on, names in any case", "types: deb-src deb\nuris: http://a http://b\nSUITES:\n bookworm\nComponents: main\n contrib\n", []Source{
			{URI: "http://a", Suites: []string{"bookworm"}, Components: []string{"main", "contrib"}},
			{URI: "http://b", Suites: []string{"bookworm"}, Components: []string{"main", "contrib"}},
		}},
		{"a key that is written out", "Types: deb\nURIs: http://a\nSuites: bookworm\nComponents: main\nSigned-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n /not/a/file\n", []Source{
			{URI: "http://a", Suites: []string{"bookworm"}, Components: []string{"main"}},
		}},
		{"disabled", "Types: deb\nEnabled: no\nURIs: http://a\nSuites: bookworm\nComponents: main\n", nil},
		{"sources only", "Types: deb-src\nURIs: http://a\nSuites: bookworm\nComponents: main\n", nil},
		{"nonsense", " continued from nothing\nno colon\n\n\n", nil},
		{"CRLF", "Types: deb\r\nURIs: http://a\r\nSuites: bookworm\r\nComponents: main\r\n\r\n", []Source{
			{URI: "http://a", Suites: []string{"bookworm"}, Components: []string{"main"}},
		}},
	} {
		if diff := cmp.Diff(tt.want, parseStanzas(tt.text)); diff != "" {
			t.Errorf("%s: parseStanzas(%q) differs (-want +got):\n%s", tt.name, tt.text, diff)
		}
	}
}

func TestFindSource(t *testing.T) {
	const good = "deb http://good/debian bookworm main\n"
	for _, tt := range []struct {
		name  string
		files map[string]string
		want  string // "" for ErrNoSource
	}{
		{"sources.list alone", map[string]string{"sources.list": good}, "http://good/debian"},
		{"deb822 alone", map[string]string{"sources.list.d/debian.sources": "Types: deb\nURIs: https://good/debian/\nSuites: bookworm\nComponents: main\n"}, "https://good/debian/"},
		{"another's archive, security and sid before it", map[string]string{"sources.list": "deb https://other/apt cloud-sdk main\n" +
			"deb http://good/debian-security bookworm-security main\ndeb http://good/sid sid main\ndeb http://good/contrib bookworm contrib\n" + good}, "http://good/debian"},
		{"files that apt does not read", map[string]string{"sources.list.d/debian.list.disabled": good, "sources.list.d/debian": good}, ""},
		{"an address that debootstrap can't fetch from", map[string]string{"sources.list": "deb cdrom:[Debian]/ bookworm main\ndeb mirror+file:/etc/mirrors bookworm main\n"}, ""},
		{"nothing", nil, ""},
	} {
		dir := t.TempDir()
		for name, text := range tt.files {
			file := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := FindSource(dir)
		if tt.want == "" && !errors.Is(err, ErrNoSource) || tt.want != "" && err != nil || got.URI != tt.want {
			t.Errorf("%s: FindSource = %q, %v; want %q", tt.name, got.URI, err, tt.want)
		}
	}
}

func FuzzSources(f *testing.F) {
	f.Add("deb [signed-by=/a,/b] http://mirror.example.org/debian bookworm main # x\n")
	f.Add("Types: deb\nURIs: http://a\nSuites: bookworm\nComponents: main\nSigned-By:\n -----BEGIN\n .\n")
	f.Fuzz(func(t *testing.T, text string) {
		for _, s := range append(parseLines(text), parseStanzas(text)...) {
			if s.SignedBy != "" && !filepath.IsAbs(s.SignedBy) {
				t.Errorf("of %q: the keys are in %q", text, s.SignedBy)
			}
		}
	})
}
