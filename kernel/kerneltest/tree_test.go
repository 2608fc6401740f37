package kerneltest_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/evictd/evictd/kernel/kerneltest"
)

func TestTree(t *testing.T) {
	root := kerneltest.Tree(t, map[string]string{
		"a/b/memory.current": "4096\n",
		"a/empty/":           "",
		"a/exe@":             "/usr/bin/hog",
	})
	if got, err := os.ReadFile(filepath.Join(root, "a/b/memory.current")); err != nil || string(got) != "4096\n" {
		t.Errorf("file = %q, %v; want %q", got, err, "4096\n")
	}
	if st, err := os.Stat(filepath.Join(root, "a/empty")); err != nil || !st.IsDir() {
		t.Errorf("directory: %v, %v; want a directory", st, err)
	}
	if got, err := os.Readlink(filepath.Join(root, "a/exe")); err != nil || got != "/usr/bin/hog" {
		t.Errorf("link = %q, %v; want %q", got, err, "/usr/bin/hog")
	}

	f, err := os.Open(filepath.Join(root, "a/b/memory.current"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	kerneltest.Write(t, root, map[string]string{"a/b/memory.current": "8192\n"})
	b := make([]byte, 16)
	if n, _ := f.ReadAt(b, 0); string(b[:n]) != "8192\n" {
		t.Errorf("open file after Write = %q; want %q", b[:n], "8192\n")
	}
}
