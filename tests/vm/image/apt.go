package image

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// aptArchive accesses a Source with apt, which keeps its lists and packages in a private directory.
type aptArchive struct {
	debs    string
	options []string
}

// openAptArchive fetches the package lists of suites into work. apt verifies them, and the packages with them.
func openAptArchive(ctx context.Context, source Source, suites []string, work string) (*aptArchive, error) {
	for _, dir := range []string{"lists/partial", "cache/archives/partial", "debs"} {
		if err := os.MkdirAll(filepath.Join(work, dir), 0o755); err != nil {
			return nil, err
		}
	}
	list := filepath.Join(work, "sources.list")
	var lines strings.Builder
	for _, suite := range suites {
		lines.WriteString(source.line(suite))
	}
	if err := os.WriteFile(list, []byte(lines.String()), 0o644); err != nil {
		return nil, err
	}
	// The machine's configuration, but with these sources and all files in work. apt runs as the current user, because
	// the user _apt can't write there.
	a := &aptArchive{filepath.Join(work, "debs"), []string{
		"-q", "-o", "APT::Sandbox::User=root", "-o", "APT::Architecture=amd64", "-o", "Acquire::Languages=none",
		"-o", "Dir::Etc::SourceList=" + list, "-o", "Dir::Etc::SourceParts=/dev/null",
		"-o", "Dir::State::Lists=" + filepath.Join(work, "lists"), "-o", "Dir::Cache=" + filepath.Join(work, "cache"),
	}}
	_, err := a.apt(ctx, "apt-get", "update")
	return a, err
}

// apt runs one of apt's tools on the archive.
func (a *aptArchive) apt(ctx context.Context, tool string, args ...string) (string, error) {
	cmd := command(ctx, tool, append(slices.Clone(a.options), args...)...)
	cmd.Dir = a.debs
	return output(cmd)
}

// download returns the file of a package, which may be NAME/SUITE.
func (a *aptArchive) download(ctx context.Context, pkg string) (deb string, err error) {
	if _, err := a.apt(ctx, "apt-get", "download", pkg); err != nil {
		return "", err
	}
	name, _, _ := strings.Cut(pkg, "/")
	debs, err := filepath.Glob(filepath.Join(a.debs, name+"_*.deb"))
	if err != nil || len(debs) != 1 {
		return "", fmt.Errorf("download %s: got %d packages", name, len(debs))
	}
	return debs[0], nil
}
