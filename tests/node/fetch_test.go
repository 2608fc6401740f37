package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFetchKeepsExisting(t *testing.T) {
	cache := t.TempDir()
	for _, name := range []string{"usr/bin/containerd", "usr/bin/containerd-shim-runc-v2", "usr/bin/ctr", "usr/sbin/runc"} {
		path := filepath.Join(cache, "containerd", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var log strings.Builder
	if err := Fetch(t.Context(), cache, &log); err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(cache, "containerd"); !strings.Contains(log.String(), want) {
		t.Errorf("Fetch logs %q; want it to name %s", log.String(), want)
	}
	if b, err := os.ReadFile(filepath.Join(cache, "containerd/usr/sbin/runc")); err != nil || string(b) != "usr/sbin/runc" {
		t.Errorf("runc after Fetch = %q, %v; want it unchanged", b, err)
	}
}

func TestFetchNeedsApt(t *testing.T) {
	// A PATH with only a shell, as on a distribution without apt.
	sh := t.TempDir()
	if err := os.Symlink("/bin/sh", filepath.Join(sh, "sh")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", sh)
	cache := t.TempDir()
	if err := Fetch(t.Context(), cache, nil); err == nil || !strings.Contains(err.Error(), "apt-get is missing") {
		t.Errorf("Fetch without apt-get = %v; want an error with \"apt-get is missing\"", err)
	}
	if entries, err := os.ReadDir(cache); err != nil || len(entries) > 0 {
		t.Errorf("cache after a failed Fetch = %v, %v; want it empty", entries, err)
	}
}
