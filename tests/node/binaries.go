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

// ErrNoContainerd says that this machine has no containerd to run. Fetch may help.
var ErrNoContainerd = errors.New("no containerd here")

// Binaries are the absolute paths of what a node runs.
type Binaries struct {
	Containerd, Shim, Ctr, Runc string
}

// CacheDir is where Fetch unpacks to if not told otherwise: $XDG_CACHE_HOME/evictd or ~/.cache/evictd.
func CacheDir() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find cache directory: %w", err)
	}
	return filepath.Join(dir, "evictd"), nil
}

// Find looks for containerd, its shim, ctr and runc in PATH, in the system directories that a PATH often
// lacks, and then in what Fetch left in cache ("" is CacheDir). The error names what is missing and is
// ErrNoContainerd.
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
	// containerd, its shim and ctr speak to each other in terms that change between versions: all three come
	// from one directory.
	family := []string{"containerd", "containerd-shim-runc-v2", "ctr"}
	if dir := firstWith(dirs, family...); dir != "" {
		b.Containerd, b.Shim, b.Ctr = filepath.Join(dir, family[0]), filepath.Join(dir, family[1]), filepath.Join(dir, family[2])
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

// path is the PATH that lets containerd find its shim, and the shim the mount helpers.
func (b Binaries) path() string {
	return strings.Join([]string{filepath.Dir(b.Shim), filepath.Dir(b.Runc), "/usr/sbin", "/usr/bin", "/sbin", "/bin"}, ":")
}

//go:embed fetch.sh
var fetchScript string

// Fetch unpacks Debian's containerd and runc into cache ("" is CacheDir), for Find to find. It downloads
// about 35 MB with apt-get, takes seconds, and installs nothing; what is there already is kept. Progress goes
// to log, nil for nobody.
func Fetch(ctx context.Context, cache string, log io.Writer) error {
	args := []string{"-s"}
	if cache != "" {
		args = append(args, "--", cache)
	}
	var said strings.Builder
	cmd := exec.CommandContext(ctx, "sh", args...)
	cmd.Stdin = strings.NewReader(fetchScript)
	cmd.Stdout, cmd.Stderr = log, &said
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("fetch containerd: %w: %s", err, strings.TrimSpace(said.String()))
	}
	return nil
}

// BuildHog compiles the hog, linked statically, into file. The Go command must be in PATH, and the working
// directory in this module.
func BuildHog(ctx context.Context, file string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", file,
		"github.com/evictd/evictd/tests/hog")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the hog: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}
