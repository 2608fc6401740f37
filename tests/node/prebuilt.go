package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// ProgramsVariable names the environment variable that tells a directory with the executables that the tests run,
// by the names of their packages: for machines without Go.
const ProgramsVariable = "EVICTD_TEST_PROGRAMS"

// Prebuilt returns the paths of executables in the directory that EVICTD_TEST_PROGRAMS tells. It returns nil where
// that is not set, and the caller has to build them. The error names what is missing.
func Prebuilt(names ...string) ([]string, error) {
	dir := os.Getenv(ProgramsVariable)
	if dir == "" {
		return nil, nil
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("look into %s: %w", ProgramsVariable, err)
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
		return nil, fmt.Errorf("%s is %s, which has no executable %s", ProgramsVariable, dir, strings.Join(missing, ", "))
	}
	return paths, nil
}
