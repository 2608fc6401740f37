package bmc

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// ErrMissing means that a program was not found. tests/bmc/fetch.sh gets it.
var ErrMissing = errors.New("program is missing")

// Program returns the path of ipmi_sim, ipmitool, fence_ipmilan or fence_kdump_send, from PATH or from the cache
// directory of fetch.sh. The error is ErrMissing and names the program.
func Program(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return filepath.Abs(path)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find cache directory: %w", err)
	}
	path, err := exec.LookPath(filepath.Join(cache, "evictd/bmc", name))
	if err != nil {
		return "", fmt.Errorf("%s not found (tests/bmc/fetch.sh gets it): %w", name, ErrMissing)
	}
	return path, nil
}
