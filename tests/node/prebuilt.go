package node

import (
	"fmt"
	"os"
	"os/exec"
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

// Program returns the path of a program as it is released: a prebuilt one, or one that is built into dir. The root is
// that of the module.
func Program(root, dir, name string) (string, error) {
	built, err := Prebuilt(name)
	if err != nil || built != nil {
		return strings.Join(built, ""), err
	}
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", dir+"/", "./cmd/"+name)
	cmd.Dir = root
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w: %s", name, err, out)
	}
	return filepath.Join(dir, name), nil
}
