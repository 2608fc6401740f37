package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReadBootID(t *testing.T) {
	if id, err := readBootID(bootIDFile); err != nil || len(id) != 36 {
		t.Errorf("readBootID() = %q, %v; want a UUID", id, err)
	}
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{filepath.Join(dir, "none"): "no such file or directory: set --boot-id or BOOT_ID", empty: empty + " is empty"} {
		if id, err := readBootID(file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("readBootID(%s) = %q, %v; want %q", file, id, err, want)
		}
	}
}
