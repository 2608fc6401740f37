package state

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// writes writes a text.
func writes(text string) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := io.WriteString(w, text)
		return err
	}
}

func TestFacts(t *testing.T) {
	dir := t.TempDir()
	store, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if content, err := store.LoadFacts(); content != nil || err != nil {
		t.Errorf("LoadFacts() without a file = %q, %v; want none", content, err)
	}
	for _, want := range []string{"first", "second"} {
		if err := store.SaveFacts(writes(want)); err != nil {
			t.Fatal(err)
		}
		if content, err := store.LoadFacts(); string(content) != want || err != nil {
			t.Errorf("LoadFacts() = %q, %v; want %q", content, err, want)
		}
	}
	path := filepath.Join(dir, factsName)
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v; want 0600", info.Mode(), err)
	}
	var corrupt *CorruptError
	cause := errors.New("no JSON")
	if err := store.RejectFacts(cause); !errors.As(err, &corrupt) || !errors.Is(err, cause) || corrupt.MovedTo != path+corruptSuffix {
		t.Errorf("RejectFacts() = %v; want the file moved aside", err)
	}
	if content, err := store.LoadFacts(); content != nil || err != nil {
		t.Errorf("LoadFacts() after RejectFacts = %q, %v; want none", content, err)
	}
	if err := os.Symlink("/etc/passwd", path); err != nil {
		t.Fatal(err)
	}
	if content, err := store.LoadFacts(); content != nil || !errors.As(err, &corrupt) {
		t.Errorf("LoadFacts() of a symbolic link = %q, %v; want it moved aside", content, err)
	}
}

// Facts and the state are saved concurrently.
func TestSaveFactsDuringSave(t *testing.T) {
	store, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	clock := Clock{BootID: "b", Uptime: time.Hour, Now: time.Now()}
	var savers sync.WaitGroup
	for range 20 {
		savers.Go(func() {
			if err := store.SaveFacts(writes("facts")); err != nil {
				t.Error(err)
			}
		})
		if err := store.Save(Saved{}, clock); err != nil {
			t.Error(err)
		}
		savers.Wait()
	}
	if content, err := store.LoadFacts(); string(content) != "facts" || err != nil {
		t.Errorf("LoadFacts() = %q, %v; want facts", content, err)
	}
	if _, _, err := store.Load(clock); err != nil {
		t.Errorf("Load() = %v", err)
	}
}
