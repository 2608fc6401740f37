package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// ProgramsEnv is the environment variable with a directory of the executables that tests run, named after their
// packages. It is for machines without Go.
const ProgramsEnv = "EVICTD_TEST_PROGRAMS"

// Prebuilt returns the paths of executables in the directory EVICTD_TEST_PROGRAMS. It returns nil if that is not set:
// the caller then builds them. The error names the missing executables.
func Prebuilt(names ...string) ([]string, error) {
	dir := os.Getenv(ProgramsEnv)
	if dir == "" {
		return nil, nil
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("resolve %s: %w", ProgramsEnv, err)
	}
	var paths, missing []string
	for _, name := range names {
		path := filepath.Join(dir, name)
		if st, err := os.Stat(path); err != nil || !st.Mode().IsRegular() || st.Mode()&0o111 == 0 {
			missing = append(missing, name)
		}
		paths = append(paths, path)
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("%s is %s, which has no executable %s", ProgramsEnv, dir, strings.Join(missing, ", "))
	}
	return paths, nil
}
