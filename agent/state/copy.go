package state

import (
	"os"
	"path/filepath"
)

// copyPath returns the path of the copy of the state in dir.
func copyPath(dir, copyDir string) string {
	return filepath.Join(copyDir, runName(dir)+".json")
}

// SaveCopy replaces the copy of the state, without waiting for a disk. It may run concurrently with Save.
// A Store of [Open] has no copy, and SaveCopy does nothing.
func (s *Store) SaveCopy(saved Saved, clock Clock) error {
	if s.copy == "" {
		return nil
	}
	content, err := encode(saved, clock)
	if err != nil {
		return err
	}
	return replaceFile(s.copy, false, writing(content))
}

// RemoveCopy removes the copy, which is not needed after the last Save.
func (s *Store) RemoveCopy() {
	if s.copy != "" {
		os.Remove(s.copy) // one that stays is older than the state
	}
}

// readCopy returns the copy; nil if there is none of this boot that can be read.
func (s *Store) readCopy(clock Clock) *file {
	if s.copy == "" {
		return nil
	}
	f, err := read(s.copy)
	if err != nil || f.BootID != clock.BootID {
		return nil
	}
	return f
}
