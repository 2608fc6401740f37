package fencing

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// evidence names tests of one package, for a table that says which test answers a demand.
type evidence struct {
	// dir is the directory of the package, from the root of the repository.
	dir string
	// names are test functions, such as TestPower. TestPower/frozen also names a row or a subtest. In a directory of
	// scripts they are files, such as fence.txtar.
	names []string
}

// demand is what fencing must do, and the tests that show it.
type demand struct {
	text  string
	tests []evidence
}

// checkTests checks that the tests of all demands exist.
func checkTests(t *testing.T, demands []demand) {
	t.Helper()
	for _, d := range demands {
		if len(d.tests) == 0 {
			t.Errorf("%s: no test", d.text)
		}
		for _, e := range d.tests {
			for _, m := range e.missing("../..") {
				t.Errorf("%s: %s", d.text, m)
			}
		}
	}
}

// parsed has the tests of the packages that were parsed, by directory.
var parsed = &sync.Map{}

// missing returns the tests of e that do not exist, one text each. It reads the test files without their build
// constraints, so that the tests of each platform and tag count.
func (e evidence) missing(root string) []string {
	if len(e.names) == 0 {
		return []string{e.dir + ": no test is named"}
	}
	functions, err := testFunctions(filepath.Join(root, e.dir), parsed)
	if err != nil {
		return []string{err.Error()}
	}
	var missing []string
	for _, name := range e.names {
		if strings.HasSuffix(name, ".txtar") {
			if _, err := os.Stat(filepath.Join(root, e.dir, name)); err != nil {
				missing = append(missing, err.Error())
			}
			continue
		}
		function, row, hasRow := strings.Cut(name, "/")
		texts, ok := functions[function]
		if !ok {
			missing = append(missing, fmt.Sprintf("%s has no function %s", e.dir, function))
		} else if hasRow && !slices.Contains(texts, row) {
			missing = append(missing, fmt.Sprintf("%s: %s has no row %q", e.dir, function, row))
		}
	}
	return missing
}

// testFunctions returns the tests and fuzz targets of a package. The value has the texts in the file of the function
// (rows of a table may be a variable of their own).
func testFunctions(dir string, parsed *sync.Map) (map[string][]string, error) {
	if known, ok := parsed.Load(dir); ok {
		return known.(map[string][]string), nil
	}
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return nil, fmt.Errorf("list test files: %w", err)
	}
	functions := map[string][]string{}
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, fmt.Errorf("parse test file: %w", err)
		}
		texts := literals(file)
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && isTest(f.Name.Name) {
				functions[f.Name.Name] = texts
			}
		}
	}
	parsed.Store(dir, functions)
	return functions, nil
}

func isTest(name string) bool {
	return strings.HasPrefix(name, "Test") || strings.HasPrefix(name, "Fuzz") || strings.HasPrefix(name, "Benchmark")
}

func literals(file *ast.File) []string {
	var texts []string
	ast.Inspect(file, func(n ast.Node) bool {
		if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
			if text, err := strconv.Unquote(l.Value); err == nil {
				texts = append(texts, text)
			}
		}
		return true
	})
	return texts
}

func TestEvidence(t *testing.T) {
	const dir = "tests/fencing"
	for _, e := range []evidence{
		{dir, []string{"TestEvidence", "TestEvidence/tests/script", "TestIdleController"}},
		{"tests/script", []string{"fence.txtar"}},
	} {
		if m := e.missing("../.."); m != nil {
			t.Errorf("missing(%v) = %q; want none", e, m)
		}
	}
	row := "no" + " such row"
	for _, e := range []evidence{
		{dir, nil},
		{dir, []string{"evidence"}},
		{dir, []string{"TestNoSuchTest"}},
		{dir, []string{"TestEvidence/" + row}},
		{"tests/nothing", []string{"TestEvidence"}},
		{"tests/script", []string{"nothing.txtar"}},
	} {
		if m := e.missing("../.."); len(m) != 1 {
			t.Errorf("missing(%v) = %q; want one", e, m)
		}
	}
}
