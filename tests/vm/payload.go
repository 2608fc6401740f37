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

	"github.com/evictd/evictd/tests/node"
	"github.com/evictd/evictd/tests/vm/image"
	"github.com/evictd/evictd/tests/vm/protocol"
)

const module = "github.com/evictd/evictd"

// extra lists directories of the repository, other than testdata, that tests read.
var extra = []string{"deploy", "tests/scenarios"}

// payload is the content of the second disk of all machines of a run, except their plans.
type payload struct {
	dir string
	// tests are the packages of each suite that have tests, as paths below the module.
	tests map[string][]string
}

// goCommand returns a go command, in the module's root, for static Linux programs.
func goCommand(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	return cmd
}

// goOutput runs a go command and returns its standard output. The error has the standard error.
func goOutput(ctx context.Context, args ...string) (string, error) {
	cmd := goCommand(ctx, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("run go %s: %w: %s", args[0], err, bytes.TrimSpace(stderr.Bytes()))
	}
	return string(out), nil
}

// buildPayload builds the payload in dir from the module in the working directory.
func buildPayload(ctx context.Context, dir string, suites []suite) (*payload, error) {
	p := &payload{dir: dir, tests: make(map[string][]string)}
	bin := filepath.Join(dir, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return nil, fmt.Errorf("build payload: %w", err)
	}
	programs := []string{"build", "-trimpath", "-ldflags=-s -w", "-o", bin + "/", "./cmd/evictd", "./cmd/evictctl", "./cmd/evictd-kube", "./tests/hog", "./tests/bench"}
	cluster := slices.ContainsFunc(suites, func(s suite) bool { return s.cluster })
	if cluster {
		programs = append(programs, "./cmd/evictd-controller", "./deploy/image")
	}
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
	if cluster {
		if err := p.copyClusterPrograms(); err != nil {
			return nil, fmt.Errorf("build payload: %w", err)
		}
	}
	data, err := testdata(os.DirFS("."))
	if err != nil {
		return nil, fmt.Errorf("build payload: %w", err)
	}
	for _, name := range append(data, extra...) {
		if err := p.copyDir(name); err != nil {
			return nil, fmt.Errorf("build payload: %w", err)
		}
	}
	return p, nil
}

// testPackages returns the packages of the patterns that have tests. It ignores a pattern whose directory does not
// exist.
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

// buildTests compiles the test programs of packages, each into the package's directory below src.
func (p *payload) buildTests(ctx context.Context, packages []string) error {
	out := filepath.Join(p.dir, "build")
	// go test -c compiles several packages into one directory if the last elements of their paths differ.
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

// testdata returns all testdata directories of the repository. Tests also read those of other packages: the tests of
// cri read testdata of critest.
func testdata(root fs.FS) ([]string, error) {
	var dirs []string
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil || !d.IsDir() || name == ".":
			return err
		case d.Name() == "testdata":
			dirs = append(dirs, name)
			return fs.SkipDir
		case slices.Contains(extra, name): // copied as a whole
			return fs.SkipDir
		case strings.HasPrefix(d.Name(), "."): // build output and version control
			return fs.SkipDir
		}
		return nil
	})
	return dirs, err
}

// copyClusterPrograms copies the programs of tests/cluster from the cache.
func (p *payload) copyClusterPrograms() error {
	cache, err := node.CacheDir()
	if err != nil {
		return err
	}
	err = os.CopyFS(filepath.Join(p.dir, "cluster"), os.DirFS(filepath.Join(cache, "cluster")))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("programs of Kubernetes: %w: run sh tests/cluster/fetch.sh", err)
	}
	return err
}

// copyDir copies a directory of the repository to the payload if it exists.
func (p *payload) copyDir(name string) error {
	if _, err := os.Stat(name); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return os.CopyFS(filepath.Join(p.dir, "src", name), os.DirFS(name))
}

// disk creates the disk image of one machine with the payload and the plan, each unless nil.
func (p *payload) disk(ctx context.Context, plan *protocol.Plan, dir, file string) error {
	tree := filepath.Join(dir, "disk")
	if err := os.Mkdir(tree, 0o755); err != nil {
		return err
	}
	// Hard links to the payload; mkfs copies the contents.
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

// linkTree creates the directories of from in to, which exists, and hard links of its files.
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
