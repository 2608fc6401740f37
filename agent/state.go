package agent

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/shutdown/driver"
	"github.com/evictd/evictd/agent/state"
	"github.com/evictd/evictd/kernel/process"
)

// openState opens the state directory. If it is not writable evictd starts nevertheless, with
// its lock file in the control socket's directory, which is on another filesystem.
func (d *daemon) openState() (err error) {
	if d.store, err = state.OpenOrDegrade(d.options.StateDir, filepath.Dir(d.options.ControlSocket)); err != nil {
		return fmt.Errorf("%w (--state-dir sets another directory)", err)
	}
	d.closers = append(d.closers, d.store.Close)
	if err := d.store.Err(); err != nil {
		d.log.Error(state.NotSavedMessage, "error", err)
	}
	return nil
}

// clock returns now, as the state is stamped with it.
func (d *daemon) clock(now time.Time) (state.Clock, error) {
	uptime, err := process.Uptime()
	return state.Clock{BootID: d.bootID, Uptime: uptime, Now: now}, err
}

// save writes the state of the loop's last iteration. It serializes concurrent calls.
func (d *daemon) save() error {
	d.saveMutex.Lock()
	defer d.saveMutex.Unlock()
	tried, err := d.writeState(d.store.Save)
	if tried {
		d.metrics.StateSaved(err == nil)
	}
	return err
}

// saveLast saves the state when all parts have stopped, and removes the copy. Before the first decision nothing is
// saved, so the copy of an earlier run remains.
func (d *daemon) saveLast() error {
	if d.lastView.Load() == nil {
		return nil
	}
	if err := d.save(); err != nil {
		return err
	}
	d.store.RemoveCopy()
	return nil
}

// saveCopy writes the copy of the state.
func (d *daemon) saveCopy() error {
	_, err := d.writeState(d.store.SaveCopy)
	return err
}

// writeState calls write with the state of the loop's last iteration. tried is false before the first
// decision: the saved state then remains.
func (d *daemon) writeState(write func(state.Saved, state.Clock) error) (tried bool, err error) {
	if d.lastView.Load() == nil {
		return false, nil
	}
	saved := state.Saved{
		Records: d.records.List(), Shutdown: *d.shutdown.State(), LastBoot: &d.lastBoot,
		Reclaims: d.reclaimer.Reports(), Images: d.reclaimer.ImageUses(), Kubelets: d.inventory.TrustedKubelets(),
		Stopped: d.stopped.Load(), GoingDown: d.down.Load() || d.shutdown.State().Active(),
	}
	if d.orders != nil {
		saved.Orders = d.orders.Saved()
	}
	saved.Decision = d.lastView.Load().State
	clock, err := d.clock(time.Now())
	if err != nil {
		return false, err
	}
	return true, write(saved, clock)
}

// savedState is the state of an earlier run.
type savedState struct {
	state.Saved
	note string
	err  error // why it could not be loaded
}

// load reads the state of an earlier run.
func (d *daemon) load() (saved savedState, err error) {
	clock, err := d.clock(time.Now())
	if err != nil {
		return saved, err
	}
	saved.Saved, saved.note, saved.err = d.store.Load(clock)
	return saved, nil
}

// restore restores the state of an earlier run, except that of the loop.
func (d *daemon) restore(saved *savedState) {
	if saved.err != nil {
		message := "could not load the state of an earlier run; grace periods and victims in flight are lost"
		if damage := (*state.CorruptError)(nil); errors.As(saved.err, &damage) && damage.Copied {
			message = "could not load the state of an earlier run; its copy is used"
		}
		d.log.Error(message, "error", saved.err)
		d.startWarnings = append(d.startWarnings, saved.err.Error())
	}
	d.metrics.StateSaved(d.store.Err() == nil)
	if saved.note != "" {
		d.log.Info("state of an earlier run", "note", saved.note)
	}
	d.shutdown.Restore(saved.Shutdown)
	d.noteShutdown()
	d.lastBoot = driver.LastBoot(saved.LastBoot, saved.PreviousRun, d.options.Sysfs, d.options.Rootfs, d.log.Logger)
	d.metrics.LastShutdown(d.lastBoot)
	d.records.Restore(saved.Records)
	if d.evictions != nil {
		d.evictions.Restore(saved.Orders, d.config.DryRun)
	}
	d.reclaimer.RestoreImageUses(saved.Images)
	d.inventory.RestoreKubelets(saved.Kubelets)
	d.reclaimer.RestoreReports(saved.Reclaims)
	if n := len(saved.Decision.Victims); n > 0 {
		d.log.Info("victims of an earlier run", "victims", describeVictims(saved.Decision.Victims))
	}
}

func describeVictims(victims []evict.Victim) []string {
	var list []string
	for _, v := range victims {
		list = append(list, v.Pod)
	}
	return list
}
