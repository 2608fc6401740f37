package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var testFunction = regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`)

// TestClasses: each test is in exactly one class, and each class has tests.
func TestClasses(t *testing.T) {
	for _, s := range suites {
		if s.classes == nil {
			continue
		}
		names := testsIn(t, filepath.Join("..", "..", s.packages[0]))
		if len(names) == 0 {
			t.Errorf("found no tests in %s", s.packages[0])
		}
		used := make(map[string]bool)
		for _, name := range names {
			var in []string
			for _, c := range s.classes {
				how, expression, _ := strings.Cut(s.flag(c), "=")
				top, _, _ := strings.Cut(expression, "/")
				if regexp.MustCompile(top).MatchString(name) != (how == "run") {
					continue
				}
				used[c.name] = true
				if !c.partial {
					in = append(in, c.name)
				}
			}
			if len(in) != 1 && !(s.selection && len(in) == 0) {
				t.Errorf("%s of %s is in the classes %q; want one", name, s.packages[0], in)
			}
		}
		for _, c := range s.classes {
			if !used[c.name] && c.run != "" {
				t.Errorf("the class %s of %s has no tests: %s", c.name, s.packages[0], c.run)
			}
		}
	}
}

var startsNode = regexp.MustCompile(`\bstart\w*Node\w*\(t, `)

// TestRest: the class without an expression, whose expected duration is short, has no test that starts a node.
func TestRest(t *testing.T) {
	dir := filepath.Join("..", "native")
	native := suiteOf(t, "native")
	rest := native.classes[len(native.classes)-1]
	classed := regexp.MustCompile(strings.TrimPrefix(native.flag(rest), "skip="))
	for _, name := range testsIn(t, dir) {
		if !classed.MatchString(name) && startsNode.MatchString(bodyOf(t, dir, name)) {
			t.Errorf("%s starts a node and is in no class but %s", name, rest.name)
		}
	}
}

// bodyOf returns the text of a function in the tests of a package.
func bodyOf(t *testing.T, dir, name string) string {
	t.Helper()
	_, text, found := strings.Cut(sourceOf(t, dir), "\nfunc "+name+"(")
	if !found {
		t.Fatalf("there is no function %s in %s", name, dir)
	}
	text, _, _ = strings.Cut(text, "\n}\n")
	return text
}

// TestWithout: the packages that a suite leaves out exist.
func TestWithout(t *testing.T) {
	for _, s := range suites {
		for _, pkg := range s.without {
			if len(testsIn(t, filepath.Join("..", "..", pkg))) == 0 {
				t.Errorf("%s leaves out %s, which has no tests", s.name, pkg)
			}
		}
		for pkg := range s.long {
			if len(testsIn(t, filepath.Join("..", "..", pkg))) == 0 {
				t.Errorf("%s takes long for %s, which has no tests", s.name, pkg)
			}
		}
	}
}

func suiteOf(t *testing.T, name string) suite {
	t.Helper()
	for _, s := range suites {
		if s.name == name {
			return s
		}
	}
	t.Fatalf("there is no suite %s", name)
	return suite{}
}

func testsIn(t *testing.T, dir string) []string {
	t.Helper()
	var names []string
	for _, m := range testFunction.FindAllStringSubmatch(sourceOf(t, dir), -1) {
		names = append(names, m[1])
	}
	return names
}

// sourceOf returns the text of all tests of a package.
func sourceOf(t *testing.T, dir string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}

func TestSmokeClasses(t *testing.T) {
	var smoke []string
	for _, s := range suites {
		for _, c := range s.classes {
			if c.smoke {
				smoke = append(smoke, s.name+"/"+c.name)
			}
		}
	}
	if got, want := strings.Join(smoke, " "), "native/each-class native/soft-eviction service/ready"; got != want {
		t.Errorf("smoke is %q; want %q", got, want)
	}
}
