package image

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func openCache(t *testing.T) *Cache {
	t.Helper()
	c, err := OpenCache(t.TempDir(), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return strings.Join(all, " ")
}

func TestEntryIsBuiltOnce(t *testing.T) {
	c := openCache(t)
	var built atomic.Int32
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			dir, err := c.entry(t.Context(), "x-1", "an x", func(_ context.Context, dir string) error {
				built.Add(1)
				return os.WriteFile(filepath.Join(dir, "file"), []byte("content"), 0o644)
			})
			if err != nil {
				t.Error(err)
			}
			if b, err := os.ReadFile(filepath.Join(dir, "file")); err != nil || string(b) != "content" {
				t.Errorf("entry's file = %q, %v; want it complete", b, err)
			}
		})
	}
	all.Wait()
	if built.Load() != 1 {
		t.Errorf("four concurrent calls built it %d times; want 1", built.Load())
	}
	if got, want := names(t, c.dir), "lock x-1"; got != want {
		t.Errorf("cache has %q; want %q", got, want)
	}
}

func TestFailedEntryLeavesNothing(t *testing.T) {
	c := openCache(t)
	broken := errors.New("broken")
	_, err := c.entry(t.Context(), "x-1", "an x", func(_ context.Context, dir string) error {
		return errors.Join(broken, os.WriteFile(filepath.Join(dir, "half"), nil, 0o644))
	})
	if !errors.Is(err, broken) {
		t.Errorf("entry = %v; want the error of the build", err)
	}
	if got, want := names(t, c.dir), "lock"; got != want {
		t.Errorf("cache has %q; want %q", got, want)
	}
}

func TestEntryRemovesInterruptedBuilds(t *testing.T) {
	c := openCache(t)
	if err := os.MkdirAll(filepath.Join(c.dir, unfinished+"123", "root"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := c.entry(t.Context(), "x-1", "an x", func(context.Context, string) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if got, want := names(t, c.dir), "lock x-1"; got != want {
		t.Errorf("cache has %q; want %q", got, want)
	}
}

func TestLockWaits(t *testing.T) {
	c := openCache(t)
	unlock, err := c.lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	why := errors.New("enough")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, why)
	defer cancel()
	if _, err := c.lock(ctx); !errors.Is(err, why) {
		t.Errorf("lock of a locked cache = %v; want the context's cause", err)
	}
	if err := unlock(); err != nil {
		t.Fatal(err)
	}
	again, err := c.lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := again(); err != nil {
		t.Fatal(err)
	}
}

func TestScratch(t *testing.T) {
	c := openCache(t)
	dir, done, err := c.Scratch()
	if err != nil {
		t.Fatal(err)
	}
	abandoned := filepath.Join(c.dir, scratch+"abandoned")
	if err := os.MkdirAll(filepath.Join(abandoned, "payload"), 0o755); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-time.Hour)
	for _, d := range []string{dir, abandoned} {
		if err := os.Chtimes(d, old, old); err != nil {
			t.Fatal(err)
		}
	}
	_, other, err := c.Scratch()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("a directory in use is removed: %v", err)
	}
	if _, err := os.Stat(abandoned); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an unused directory: %v; want it removed", err)
	}
	if err := errors.Join(done(), other()); err != nil {
		t.Fatal(err)
	}
	if got := names(t, c.dir); got != "" {
		t.Errorf("cache has %q; want nothing", got)
	}
}
