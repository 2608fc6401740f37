package agent

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/shutdown/driver"
	"github.com/evictd/evictd/agent/state"
	"github.com/evictd/evictd/kernel/process"
)

// keeper writes the state when poked, on a goroutine of its own.
type keeper struct{ wake chan struct{} }

// poke asks for the state to be written soon. It never waits.
func (k *keeper) poke() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// saveAgain is how long after a failed attempt to write the next one is made, also
// where nothing has changed.
const saveAgain = time.Minute

// run writes when poked, and again while that fails, until ctx ends. It logs when
// that begins, changes and ends.
func (k *keeper) run(ctx context.Context, save func() error, log *slog.Logger) {
	var failing string
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.wake:
		case <-again:
		}
		again = nil
		switch err := save(); {
		case err != nil:
			again = time.After(saveAgain)
			if text := err.Error(); text != failing {
				failing = text
				log.Error(state.NotKept, "error", err)
			}
		case failing != "":
			failing = ""
			log.Info("state is kept again")
		}
	}
}

// openState opens the state directory. Where it can't be written to evictd starts all
// the same, and its lock lies beside the control socket, on a filesystem of its own.
func (d *daemon) openState() (err error) {
	if d.store, err = state.OpenAnyway(d.options.StateDir, filepath.Dir(d.options.ControlSocket)); err != nil {
		return fmt.Errorf("%w (--state-dir names another place)", err)
	}
	d.closers = append(d.closers, d.store.Close)
	if err := d.store.Err(); err != nil {
		d.log.Error(state.NotKept, "error", err)
	}
	return nil
}

func (d *daemon) clock(now time.Time) (state.Clock, error) {
	uptime, err := process.Uptime()
	return state.Clock{BootID: d.bootID, Uptime: uptime, Now: now}, err
}

// save writes what the loop knew last. Of two at a time the later one writes last.
func (d *daemon) save() error {
	d.saving.Lock()
	defer d.saving.Unlock()
	saved := state.Saved{
		Records: d.records.List(), Shutdown: *d.shutdown.State(), Last: &d.last,
		Reclaims: d.reclaimer.Reports(), Images: d.reclaimer.Uses(), Kubelets: d.inventory.TrustedKubelets(),
		Stopped: d.stopped.Load(), GoingDown: d.down.Load() || d.shutdown.State().Active(),
	}
	if v := d.view.Load(); v != nil {
		saved.Decision = v.State
	} else {
		return nil // nothing has been decided yet, and what was kept stays
	}
	clock, err := d.clock(time.Now())
	if err != nil {
		return err
	}
	err = d.store.Save(saved, clock)
	d.metrics.StateKept(err == nil)
	return err
}

// earlier is what an earlier run left.
type earlier struct {
	state.Saved
	note string
	err  error // why it can't be used
}

// load reads what an earlier run left.
func (d *daemon) load() (e earlier, err error) {
	clock, err := d.clock(time.Now())
	if err != nil {
		return e, err
	}
	e.Saved, e.note, e.err = d.store.Load(clock)
	return e, nil
}

// restore takes over what an earlier run left, apart from what the loop does.
func (d *daemon) restore(saved *earlier) {
	if saved.err != nil {
		d.log.Error("state of an earlier run can't be used", "error", saved.err)
		d.warnings = append(d.warnings, saved.err.Error())
	}
	d.metrics.StateKept(d.store.Err() == nil)
	if saved.note != "" {
		d.log.Info("state of an earlier run", "note", saved.note)
	}
	d.shutdown.Restore(saved.Shutdown)
	d.last = driver.Last(saved.Last, saved.Before, d.options.Sysfs, d.options.Rootfs, d.log.Logger)
	d.metrics.LastShutdown(d.last)
	d.records.Restore(saved.Records)
	d.reclaimer.Restore(saved.Images)
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
