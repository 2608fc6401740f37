package bpf

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/google/go-cmp/cmp"
)

// The checked-in objects are those that the pinned compiler makes of the sources. The test
// compares instructions, maps, variables and types, since the bytes differ between builds
// of the compiler.
func TestObjectsAreCurrent(t *testing.T) {
	for _, tool := range []string{"clang-16", "llvm-strip-16", "go"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("needs clang-16, llvm-16, libbpf-dev and go: ", err)
		}
	}
	here, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	objects, err := filepath.Glob("*_bpfel.o")
	if err != nil || len(objects) != 9 {
		t.Fatalf("objects = %q, %v; want nine", objects, err)
	}
	// The generator runs in the directory of the sources, since its output has relative
	// paths, and writes to another one.
	fresh := t.TempDir()
	for _, line := range directives(t) {
		args := append([]string{"tool", "bpf2go", "-output-dir", fresh, "-go-package", "bpf"}, line...)
		cmd := exec.Command("go", args...)
		cmd.Dir = here
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	for _, object := range objects {
		want, got := describe(t, filepath.Join(fresh, object)), describe(t, object)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s is out of date; run go generate ./bpf (-source +checked in):\n%s", object, diff)
		}
		source := strings.TrimSuffix(object, ".o") + ".go"
		if diff := cmp.Diff(readFile(t, filepath.Join(fresh, source)), readFile(t, source)); diff != "" {
			t.Errorf("%s is out of date; run go generate ./bpf (-source +checked in):\n%s", source, diff)
		}
	}
}

func readFile(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// directives returns the arguments of bpf2go in doc.go.
func directives(t *testing.T) (lines [][]string) {
	t.Helper()
	for line := range strings.Lines(readFile(t, "doc.go")) {
		if args, ok := strings.CutPrefix(line, "//go:generate go tool bpf2go "); ok {
			lines = append(lines, strings.Fields(args))
		}
	}
	if len(lines) == 0 {
		t.Fatal("doc.go has no go:generate directive of bpf2go")
	}
	return lines
}

// description is the content of an object that the kernel gets.
type description struct {
	Programs, Maps, Variables map[string][]string
	Types                     []string
}

func describe(t *testing.T, object string) description {
	t.Helper()
	spec, err := ebpf.LoadCollectionSpec(object)
	if err != nil {
		t.Fatal(err)
	}
	d := description{map[string][]string{}, map[string][]string{}, map[string][]string{}, nil}
	for name, p := range spec.Programs {
		lines := []string{p.Type.String(), p.AttachTo, p.SectionName, p.License}
		for _, ins := range p.Instructions {
			lines = append(lines, instruction(ins))
		}
		d.Programs[name] = lines
	}
	for name, m := range spec.Maps {
		d.Maps[name] = []string{m.String()}
	}
	for name, v := range spec.Variables {
		d.Variables[name] = []string{v.String(), string(v.Value)}
	}
	for typ, err := range spec.Types.All() {
		if err != nil {
			t.Fatal(err)
		}
		d.Types = append(d.Types, formatType(typ))
	}
	slices.Sort(d.Types)
	return d
}

// instruction returns an instruction with its symbol, reference and relocation.
func instruction(ins asm.Instruction) string {
	text := ins.Symbol() + " " + ins.Reference() + " " + strings.TrimSpace(asm.Instructions{ins}.String())
	if relo := btf.CORERelocationMetadata(&ins); relo != nil {
		text += " " + relo.String()
	}
	return text
}

func formatType(typ btf.Type) string {
	text := fmt.Sprint(typ)
	if s, ok := typ.(*btf.Struct); ok {
		for _, m := range s.Members {
			text += fmt.Sprintf(" %s:%s@%d", m.Name, m.Type, m.Offset)
		}
	}
	return text
}
