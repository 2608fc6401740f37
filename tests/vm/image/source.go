package image

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Source is a package archive as in sources.list(5).
type Source struct {
	URI        string
	Suites     []string
	Components []string
	// SignedBy is a file of keys, "" for apt's default keys.
	SignedBy string
}

// ErrNoSource means that apt's sources have no archive of Debian 12.
var ErrNoSource = errors.New("no archive of Debian 12 (bookworm, main) in apt's sources")

// FindSource returns the archive with bookworm's main packages in the apt configuration in dir, normally /etc/apt. The
// error is ErrNoSource if there is none.
func FindSource(dir string) (Source, error) {
	files := []string{filepath.Join(dir, "sources.list")}
	for _, pattern := range []string{"*.list", "*.sources"} {
		more, err := filepath.Glob(filepath.Join(dir, "sources.list.d", pattern))
		if err != nil {
			return Source{}, fmt.Errorf("find apt's sources: %w", err)
		}
		files = append(files, more...)
	}
	var all []Source
	for _, file := range files {
		text, err := os.ReadFile(file)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return Source{}, fmt.Errorf("read apt's sources: %w", err)
		case strings.HasSuffix(file, ".sources"):
			all = append(all, parseStanzas(string(text))...)
		default:
			all = append(all, parseLines(string(text))...)
		}
	}
	return choose(all)
}

// choose returns the first archive with bookworm's main packages that debootstrap can fetch from.
func choose(all []Source) (Source, error) {
	for _, s := range all {
		u, err := url.Parse(s.URI)
		if err == nil && slices.Contains([]string{"http", "https", "file"}, u.Scheme) &&
			slices.Contains(s.Suites, suite) && slices.Contains(s.Components, "main") {
			return s, nil
		}
	}
	return Source{}, ErrNoSource
}

// parseLines parses the one-line format:
//
//	deb [arch=amd64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://mirror.example.org/debian bookworm main contrib
//
// Lines of source packages and malformed lines are skipped.
func parseLines(text string) []Source {
	var sources []Source
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		kind, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		if kind != "deb" {
			continue
		}
		var s Source
		rest = strings.TrimSpace(rest)
		if options, after, ok := strings.Cut(rest, "]"); ok && strings.HasPrefix(rest, "[") {
			rest = after
			for option := range strings.FieldsSeq(options[1:]) {
				if file, ok := strings.CutPrefix(option, "signed-by="); ok {
					s.SignedBy = keyFile(file)
				}
			}
		}
		fields := strings.Fields(rest)
		if len(fields) < 3 {
			continue
		}
		s.URI, s.Suites, s.Components = fields[0], fields[1:2], fields[2:]
		sources = append(sources, s)
	}
	return sources
}

// parseStanzas parses the deb822 format, one source for each URI of a stanza:
//
//	Types: deb
//	URIs: http://mirror.example.org/debian
//	Suites: bookworm bookworm-updates
//	Components: main
//	Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
func parseStanzas(text string) []Source {
	var sources []Source
	fields := make(map[string]string)
	finish := func() {
		enabled := !slices.Contains([]string{"no", "false", "0", "off", "without", "disable"}, strings.ToLower(fields["enabled"]))
		if enabled && slices.Contains(strings.Fields(fields["types"]), "deb") {
			for uri := range strings.FieldsSeq(fields["uris"]) {
				sources = append(sources, Source{
					URI: uri, SignedBy: keyFile(fields["signed-by"]),
					Suites: strings.Fields(fields["suites"]), Components: strings.Fields(fields["components"]),
				})
			}
		}
		clear(fields)
	}
	last := ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \t\r\n")
		switch name, value, ok := strings.Cut(line, ":"); {
		case line == "":
			finish()
		case line[0] == '#':
		case line[0] == ' ' || line[0] == '\t':
			fields[last] += "\n" + strings.TrimSpace(line)
		case ok:
			last = strings.ToLower(name)
			fields[last] = strings.TrimSpace(value)
		}
	}
	finish()
	return sources
}

// keyFile returns the first file in a Signed-By field, "" for an inline key or a fingerprint.
func keyFile(value string) string {
	first, _, _ := strings.Cut(strings.TrimSpace(value), ",")
	if !filepath.IsAbs(first) || strings.Contains(first, "\n") {
		return ""
	}
	return first
}

// line returns the source in the one-line format, with one suite and main.
func (s Source) line(suite string) string {
	options := ""
	if s.SignedBy != "" {
		options = "[signed-by=" + s.SignedBy + "] "
	}
	return "deb " + options + s.URI + " " + suite + " main\n"
}
