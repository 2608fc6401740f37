package node

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// ErrNoContainerd means that containerd or runc was not found. Fetch may help.
var ErrNoContainerd = errors.New("no containerd here")

// Binaries are the absolute paths of the executables that a node runs.
type Binaries struct {
	Containerd, Shim, Ctr, Runc string
}

// CacheDir returns the default directory of Fetch: $XDG_CACHE_HOME/evictd or ~/.cache/evictd.
func CacheDir() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find cache directory: %w", err)
	}
	return filepath.Join(dir, "evictd"), nil
}

// Find searches containerd, its shim, ctr and runc in PATH, in the system directories that a PATH often lacks, and
// then in Fetch's cache ("" is CacheDir). The error is ErrNoContainerd and names what is missing.
func Find(cache string) (Binaries, error) {
	if cache == "" {
		var err error
		if cache, err = CacheDir(); err != nil {
			cache = "" // a machine with containerd needs no cache
		}
	}
	dirs := append(filepath.SplitList(os.Getenv("PATH")), "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
	if cache != "" {
		dirs = append(dirs, filepath.Join(cache, "containerd/usr/bin"), filepath.Join(cache, "containerd/usr/sbin"))
	}
	return findIn(dirs)
}

func findIn(dirs []string) (Binaries, error) {
	var b Binaries
	var missing []string
	// containerd, its shim and ctr must be of one version, because their protocols change: all three are taken from
	// one directory.
	sameVersion := []string{"containerd", "containerd-shim-runc-v2", "ctr"}
	if dir := firstWith(dirs, sameVersion...); dir != "" {
		b.Containerd = filepath.Join(dir, sameVersion[0])
		b.Shim = filepath.Join(dir, sameVersion[1])
		b.Ctr = filepath.Join(dir, sameVersion[2])
	} else {
		missing = append(missing, "containerd with containerd-shim-runc-v2 and ctr")
	}
	if dir := firstWith(dirs, "runc"); dir != "" {
		b.Runc = filepath.Join(dir, "runc")
	} else {
		missing = append(missing, "runc")
	}
	if len(missing) > 0 {
		return Binaries{}, fmt.Errorf("%w: %s not found (tests/node/fetch.sh gets them)", ErrNoContainerd, strings.Join(missing, ", "))
	}
	return b, nil
}

// firstWith returns the first absolute directory that has all the executables, or "".
func firstWith(dirs []string, names ...string) string {
	i := slices.IndexFunc(dirs, func(dir string) bool {
		return filepath.IsAbs(dir) && !slices.ContainsFunc(names, func(name string) bool {
			_, err := exec.LookPath(filepath.Join(dir, name))
			return err != nil
		})
	})
	if i < 0 {
		return ""
	}
	return dirs[i]
}

// path returns the PATH with which containerd finds its shim, and the shim finds the mount helpers.
func (b Binaries) path() string {
	return strings.Join([]string{filepath.Dir(b.Shim), filepath.Dir(b.Runc), "/usr/sbin", "/usr/bin", "/sbin", "/bin"}, ":")
}

//go:embed fetch.sh
var fetchScript string

// Fetch unpacks Debian's containerd and runc into cache ("" is CacheDir), where Find looks for them. It downloads
// about 35 MB with apt-get, takes seconds, and installs nothing; it keeps what is already in the cache. Progress is
// written to log unless that is nil.
func Fetch(ctx context.Context, cache string, log io.Writer) error {
	args := []string{"-s"}
	if cache != "" {
		args = append(args, "--", cache)
	}
	var stderr strings.Builder
	cmd := exec.CommandContext(ctx, "sh", args...)
	cmd.Stdin = strings.NewReader(fetchScript)
	cmd.Stdout, cmd.Stderr = log, &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("fetch containerd: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return nil
}

// BuildHog compiles the hog, statically linked, into file. The go command must be in PATH, and the working directory
// in this module.
func BuildHog(ctx context.Context, file string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", file,
		"github.com/evictd/evictd/tests/hog")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the hog: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}
