package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/tests/vm/image"
	"github.com/evictd/evictd/tests/vm/protocol"
)

const module = "github.com/evictd/evictd"

// extra are directories of the repository that tests read besides testdata.
var extra = []string{"deploy", "tests/scenarios"}

// payload is what all machines of a run get on their second disk, besides their plans.
type payload struct {
	dir string
	// tests are the packages of each suite that have tests, as paths below the module.
	tests map[string][]string
}

// goCommand returns a Go command in the module's root that makes static Linux programs.
func goCommand(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	return cmd
}

// goOutput runs it. The error has what Go said.
func goOutput(ctx context.Context, args ...string) (string, error) {
	cmd := goCommand(ctx, args...)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("run go %s: %w: %s", args[0], err, bytes.TrimSpace(said.Bytes()))
	}
	return string(out), nil
}

// buildPayload makes everything in dir from the module in the working directory.
func buildPayload(ctx context.Context, dir string, suites []suite) (*payload, error) {
	p := &payload{dir: dir, tests: make(map[string][]string)}
	bin := filepath.Join(dir, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return nil, fmt.Errorf("build payload: %w", err)
	}
	programs := []string{"build", "-trimpath", "-ldflags=-s -w", "-o", bin + "/", "./cmd/evictd", "./cmd/evictctl", "./tests/hog", "./tests/bench"}
	if _, err := goOutput(ctx, programs...); err != nil {
		return nil, fmt.Errorf("build payload: %w", err)
	}
	var all []string
	for _, s := range suites {
		packages, err := testPackages(ctx, s.packages)
		if err != nil {
			return nil, fmt.Errorf("build payload: %w", err)
		}
		packages = slices.DeleteFunc(packages, func(pkg string) bool { return slices.Contains(s.without, pkg) })
		p.tests[s.name] = packages
		all = append(all, packages...)
	}
	slices.Sort(all)
	if err := p.buildTests(ctx, slices.Compact(all)); err != nil {
		return nil, fmt.Errorf("build payload: %w", err)
	}
	data, err := testdata(os.DirFS("."))
	if err != nil {
		return nil, fmt.Errorf("build payload: %w", err)
	}
	for _, name := range append(data, extra...) {
		if err := p.ship(name); err != nil {
			return nil, fmt.Errorf("build payload: %w", err)
		}
	}
	return p, nil
}

// testPackages returns those of the packages that have tests. A pattern that fits no package, as its directory is
// not there, has none.
func testPackages(ctx context.Context, patterns []string) ([]string, error) {
	var packages []string
	for _, pattern := range patterns {
		if _, err := os.Stat(strings.TrimSuffix(pattern, "/...")); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		out, err := goOutput(ctx, "list", "-f", "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}", pattern)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(out) {
			if line = strings.TrimSpace(line); line != "" {
				packages = append(packages, strings.TrimPrefix(line, module+"/"))
			}
		}
	}
	return packages, nil
}

// buildTests compiles the tests of packages and puts each where its package is in the repository.
func (p *payload) buildTests(ctx context.Context, packages []string) error {
	out := filepath.Join(p.dir, "build")
	// Go compiles several at once into a directory, if their names, which are their last elements, differ.
	for len(packages) > 0 {
		batch := make(map[string]string)
		var later []string
		for _, pkg := range packages {
			if _, taken := batch[path.Base(pkg)]; taken {
				later = append(later, pkg)
			} else {
				batch[path.Base(pkg)] = pkg
			}
		}
		args := []string{"test", "-c", "-trimpath", "-ldflags=-s -w", "-o", out + "/"}
		for _, pkg := range batch {
			args = append(args, "./"+pkg)
		}
		if err := os.MkdirAll(out, 0o755); err != nil {
			return err
		}
		if _, err := goOutput(ctx, args...); err != nil {
			return err
		}
		for name, pkg := range batch {
			dir := filepath.Join(p.dir, "src", pkg)
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
			if err := os.Rename(filepath.Join(out, name+".test"), filepath.Join(dir, name+".test")); err != nil {
				return err
			}
		}
		packages = later
	}
	return os.RemoveAll(out)
}

// testdata returns the directories of that name in the repository, which tests read, those of other packages among them: the
// tests of cri read testdata of critest.
func testdata(root fs.FS) ([]string, error) {
	var dirs []string
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil || !d.IsDir() || name == ".":
			return err
		case d.Name() == "testdata":
			dirs = append(dirs, name)
			return fs.SkipDir
		case slices.Contains(extra, name): // goes there as a whole
			return fs.SkipDir
		case strings.HasPrefix(d.Name(), "."): // what was built, and version control
			return fs.SkipDir
		}
		return nil
	})
	return dirs, err
}

// ship copies a directory of the repository, if it is there.
func (p *payload) ship(name string) error {
	if _, err := os.Stat(name); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return os.CopyFS(filepath.Join(p.dir, "src", name), os.DirFS(name))
}

// disk makes the disk of one machine: the payload, and the plan if there is one.
func (p *payload) disk(ctx context.Context, plan *protocol.Plan, dir, file string) error {
	tree := filepath.Join(dir, "disk")
	if err := os.Mkdir(tree, 0o755); err != nil {
		return err
	}
	// The programs are shared with other machines' disks until mkfs copies them.
	if p != nil {
		if err := linkTree(p.dir, tree); err != nil {
			return err
		}
	}
	if plan != nil {
		text, err := plan.Encode()
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(tree, path.Base(protocol.PlanFile)), text, 0o644); err != nil {
			return err
		}
	}
	if err := image.MakeDisk(ctx, tree, file); err != nil {
		return err
	}
	return os.RemoveAll(tree)
}

// linkTree makes to, which exists, look like from.
func linkTree(from, to string) error {
	return filepath.WalkDir(from, func(file string, d fs.DirEntry, err error) error {
		if err != nil || file == from {
			return err
		}
		name, err := filepath.Rel(from, file)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.Mkdir(filepath.Join(to, name), 0o755)
		}
		return os.Link(file, filepath.Join(to, name))
	})
}
