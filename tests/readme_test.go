package tests

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	codeSpan   = regexp.MustCompile("`([^`]+)`")
	linkTarget = regexp.MustCompile(`\]\(([^)#]+)`)
	directory  = regexp.MustCompile(`^[a-z/]+$`) // of the code spans in the second column
)

// TestReadmeTable checks the table in README.md's section "Find your way". Every path that it names exists, and every
// directory that has an import rule is in the first column, or below a directory there other than agent. The paths of the
// other columns are relative to the directory of their row, those of a row with several directories to agent or the root.
func TestReadmeTable(t *testing.T) {
	var named []string
	for _, row := range readmeTable(t) {
		dirs := codeSpans(row[0])
		bases := dirs
		if len(dirs) > 1 {
			bases = []string{"agent", "."}
		}
		paths := codeSpans(row[2])
		for _, span := range codeSpans(row[1]) {
			if directory.MatchString(span) {
				paths = append(paths, span)
			}
		}
		wantPaths(t, "README.md, row "+strings.TrimSpace(row[0]), paths, bases...)
		wantPaths(t, "README.md", dirs, ".")
		for _, link := range linkTarget.FindAllStringSubmatch(strings.Join(row, " "), -1) {
			wantPaths(t, "README.md", link[1:], ".")
		}
		for _, dir := range dirs {
			named = append(named, filepath.Clean(dir))
		}
	}
	for dir := range importRules {
		hasRow := func(row string) bool { return dir == row || row != "agent" && strings.HasPrefix(dir, row+"/") }
		if !slices.ContainsFunc(named, hasRow) {
			t.Errorf("README.md has no row for %s", dir)
		}
	}
}

// TestAgentReadmePaths: every path exists that agent/README.md's section "To add …" names.
func TestAgentReadmePaths(t *testing.T) {
	paths := slices.DeleteFunc(codeSpans(section(t, "../agent/README.md", "To add …")), func(span string) bool {
		return !strings.Contains(span, "/") || strings.Contains(span, " ")
	})
	if len(paths) == 0 {
		t.Fatal("the section names no path")
	}
	wantPaths(t, "agent/README.md", paths, "agent", ".")
}

// wantPaths fails the test for each path that exists below none of the directories.
func wantPaths(t *testing.T, where string, paths []string, dirs ...string) {
	t.Helper()
	for _, path := range paths {
		if !slices.ContainsFunc(dirs, func(dir string) bool {
			_, err := os.Stat(filepath.Join("..", dir, path))
			return err == nil
		}) {
			t.Errorf("%s: %s does not exist in %q", where, path, dirs)
		}
	}
}

// section returns the text of a section of a Markdown file.
func section(t *testing.T, file, heading string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(text), "\n## "+heading+"\n")
	if !found {
		t.Fatalf("%s has no section %q", file, heading)
	}
	body, _, _ := strings.Cut(after, "\n## ")
	return body
}

// readmeTable returns the cells of the table in README.md's section "Find your way", without its header.
func readmeTable(t *testing.T) (rows [][]string) {
	t.Helper()
	for line := range strings.Lines(section(t, "../README.md", "Find your way")) {
		if cells := strings.Split(strings.Trim(line, "|\n"), "|"); strings.HasPrefix(line, "| `") && len(cells) == 3 {
			rows = append(rows, cells)
		}
	}
	if len(rows) == 0 {
		t.Fatal("README.md has no table of directories")
	}
	return rows
}

// codeSpans returns the texts between backquotes.
func codeSpans(markdown string) (spans []string) {
	for _, span := range codeSpan.FindAllStringSubmatch(markdown, -1) {
		spans = append(spans, span[1])
	}
	return spans
}
