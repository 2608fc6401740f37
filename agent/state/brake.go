package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

const brakeName = "brake.json"

// Brake is the limit of a cgroup that the agent has moved, or is about to, and has
// to give back: by its end, or by the next start.
type Brake struct {
	BootID string `json:"bootID"`
	Cgroup string `json:"cgroup"`
	ID     uint64 `json:"id"` // of the cgroup
	// Was is the limit to give back, in bytes; From and To are where the agent
	// moves it.
	Was  uint64 `json:"was"`
	From uint64 `json:"from"`
	To   uint64 `json:"to"`
}

// SaveBrake keeps a brake beside the state. It is there when SaveBrake has
// returned, whatever becomes of the agent. That the machine may lose it costs
// nothing: the cgroup is lost as well.
func (s *Store) SaveBrake(b Brake) error {
	content, err := json.Marshal(b)
	if err != nil {
		return fmt.Errorf("encode brake: %w", err)
	}
	path := filepath.Join(s.dir, brakeName)
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		return fmt.Errorf("write brake: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("write brake: %w", err)
	}
	return nil
}

// LoadBrake returns the brake that is kept; ok is false where none is, or none of
// this boot. What can't be understood is set aside: a *[CorruptError].
func (s *Store) LoadBrake(bootID string) (b Brake, ok bool, err error) {
	path := filepath.Join(s.dir, brakeName)
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Brake{}, false, nil
	}
	if err != nil {
		return Brake{}, false, fmt.Errorf("read brake: %w", err)
	}
	if err := json.Unmarshal(content, &b); err != nil {
		return Brake{}, false, s.setAside(path, err)
	}
	if b.BootID != bootID {
		return Brake{}, false, nil
	}
	return b, true, nil
}

// ClearBrake forgets the brake that is kept, if one is.
func (s *Store) ClearBrake() error {
	if err := os.Remove(filepath.Join(s.dir, brakeName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget brake: %w", err)
	}
	return nil
}
