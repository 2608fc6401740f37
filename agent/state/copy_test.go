package state

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/evict"
)

// The copy counts if it is newer than the state and of this boot.
func TestCopy(t *testing.T) {
	dir, run := t.TempDir(), t.TempDir()
	var s *Store
	restart := func() {
		t.Helper()
		if s != nil {
			s.Close()
		}
		var err error
		if s, err = OpenOrDegrade(dir, run); err != nil {
			t.Fatal(err)
		}
	}
	defer func() { s.Close() }()
	restart()
	clock := func(boot string, seconds int) Clock {
		return Clock{BootID: boot, Uptime: time.Duration(seconds) * time.Second, Now: time.Now()}
	}
	victim := func(uid string) Saved {
		return Saved{Decision: evict.State{Victims: []evict.Victim{{UID: uid}}}}
	}
	check := func(what, boot, want string) {
		t.Helper()
		restart()
		saved, note, err := s.Load(clock(boot, 20))
		got := ""
		if len(saved.Decision.Victims) > 0 {
			got = saved.Decision.Victims[0].UID
		}
		if err != nil || got != want {
			t.Errorf("%s: victim %q, note %q, %v; want victim %q", what, got, note, err, want)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check("nothing saved", "b1", "")
	must(s.SaveCopy(victim("copied"), clock("b1", 9)))
	check("only copied", "b1", "copied")
	must(s.Save(victim("saved"), clock("b1", 10)))
	check("saved later", "b1", "saved")
	must(s.SaveCopy(victim("copied"), clock("b1", 11)))
	check("copied later", "b1", "copied")
	check("in another boot", "b2", "")
	must(s.Save(victim("saved"), clock("b2", 1)))
	check("copied in another boot", "b2", "saved")
	must(s.SaveCopy(victim("copied"), clock("b2", 2)))
	must(os.WriteFile(s.copy, []byte(`{"format":1,`), 0o600))
	check("damaged copy", "b2", "saved")
	must(os.Remove(s.copy))
	must(os.Symlink("state.json", s.copy))
	check("a link for a copy", "b2", "saved")
	s.RemoveCopy()
	if _, err := os.Lstat(s.copy); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("copy after RemoveCopy: %v; want none", err)
	}
}

// A state that is damaged loses nothing that the copy has.
func TestCopyOfDamagedState(t *testing.T) {
	for name, damage := range map[string]func(*Store) error{
		"moved aside": func(s *Store) error { return os.WriteFile(filepath.Join(s.dir, fileName), []byte("{"), 0o600) },
		"stays": func(s *Store) error {
			path := filepath.Join(s.dir, fileName)
			return errors.Join(os.WriteFile(path, []byte("{"), 0o600), os.MkdirAll(filepath.Join(path+corruptSuffix, "x"), 0o700))
		},
	} {
		s, err := OpenOrDegrade(t.TempDir(), t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		clock := Clock{BootID: "b1", Uptime: time.Minute, Now: time.Now()}
		saved := Saved{Decision: evict.State{Victims: []evict.Victim{{UID: "v"}}}}
		if err := errors.Join(s.SaveCopy(saved, clock), damage(s)); err != nil {
			t.Fatal(err)
		}
		got, _, err := s.Load(clock)
		var corrupt *CorruptError
		if !errors.As(err, &corrupt) || !corrupt.Copied || len(got.Decision.Victims) != 1 || !strings.Contains(err.Error(), "its copy is used") {
			t.Errorf("%s: Load() = %+v, %v; want the victim of the copy, and the damage", name, got.Decision, err)
		}
		s.RemoveCopy()
	}
}
