// Package kerneltest builds copies of kernel filesystems for tests, and creates real
// cgroups and mounts that are removed when the test ends. [Buffer] is for what a test
// reads while it is written.
package kerneltest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Tree writes files into a new temporary directory and returns its path. A key is
// a path below it, and its value is the content of the file. As in the output of
// ls -F, a key that ends in "/" is a directory, whose value is not used, and one
// that ends in "@" is a symbolic link to its value.
func Tree(t testing.TB, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	Write(t, root, files)
	return root
}

// Write adds files to a tree or replaces their content in place, so that an open
// descriptor reads the new content, as on a kernel filesystem.
func Write(t testing.TB, root string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		if err := write(filepath.Join(root, name), name, content); err != nil {
			t.Fatalf("build tree: %v", err)
		}
	}
}

func write(path, name, content string) error {
	if strings.HasSuffix(name, "/") {
		return os.MkdirAll(path, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if link, ok := strings.CutSuffix(path, "@"); ok {
		return os.Symlink(content, link)
	}
	return os.WriteFile(path, []byte(content), 0o644)
}
