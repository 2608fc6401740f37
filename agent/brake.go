package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/agent/state"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/process"
)

// ReleaseBrake gives back the memory.high of the pods that a daemon which was killed
// has left lowered, and logs that it did; where none is kept in the state directory
// it does nothing. The next daemon does the same as its first act. While one runs the
// limit is its own: that is a [state.ErrLocked].
func ReleaseBrake(o Options) error {
	log, flush := startLog(o)
	defer flush()
	if _, err := os.Stat(o.StateDir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	store, err := state.Open(o.StateDir)
	if err != nil {
		return fmt.Errorf("%w (--state-dir names another place)", err)
	}
	defer store.Close()
	hierarchy, err := cgroup.Find(kernel.FS(o.Cgroupfs))
	if err != nil {
		return err
	}
	keep, err := keepBrake(o, store)
	if err != nil {
		return err
	}
	return releaseBrake(hierarchy, keep, log)
}

// releaseBrake gives back a limit that an earlier run has moved and could not give
// back, whether there is to be a brake now or not.
func releaseBrake(h *cgroup.Hierarchy, keep lanes.Keeper, log *droppingLog) error {
	released, err := lanes.ReleaseBrake(h, keep)
	if err != nil {
		return fmt.Errorf("memory.high of an earlier run's brake is not given back: %w", err)
	}
	if released != "" {
		log.Info("memory.high of an earlier run's brake given back", "cgroup", released)
	}
	return nil
}

// brakeKeeper keeps the brake in the state directory.
type brakeKeeper struct {
	store  *state.Store
	bootID string
}

func keepBrake(o Options, store *state.Store) (brakeKeeper, error) {
	bootID, err := process.BootID(kernel.FS(o.Procfs))
	return brakeKeeper{store, bootID}, err
}

// LoadBrake implements lanes.Keeper.
func (k brakeKeeper) LoadBrake() (lanes.Braked, bool, error) {
	b, ok, err := k.store.LoadBrake(k.bootID)
	return lanes.Braked{Cgroup: b.Cgroup, ID: b.ID, Was: b.Was, From: b.From, To: b.To}, ok, err
}

// SaveBrake implements lanes.Keeper.
func (k brakeKeeper) SaveBrake(b lanes.Braked) error {
	return k.store.SaveBrake(state.Brake{BootID: k.bootID, Cgroup: b.Cgroup, ID: b.ID, Was: b.Was, From: b.From, To: b.To})
}

// ClearBrake implements lanes.Keeper.
func (k brakeKeeper) ClearBrake() error { return k.store.ClearBrake() }
