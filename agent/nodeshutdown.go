package agent

import (
	"path/filepath"

	"github.com/evictd/evictd/agent/shutdown"
	"github.com/evictd/evictd/agent/shutdown/driver"
	"github.com/evictd/evictd/agent/shutdown/logind"
	"github.com/evictd/evictd/agent/systemd"
)

// buildShutdown makes what stops the pods when the node goes down.
func (d *daemon) buildShutdown() {
	bus := "unix:path=" + filepath.Join(d.options.Rootfs, "/run/dbus/system_bus_socket")
	d.guard = logind.NewGuard(logind.Options{
		Address: bus, Root: d.options.Rootfs, Log: d.log.Logger,
		Keeper: lockKeeper{d.notifier}, Kept: keptLock(), IsKubelet: d.inventory.IsKubelet,
	})
	d.shutdown = driver.New(driver.Options{
		Log: d.log.Logger, Guard: d.guard, View: d.view.Load, Inventory: d.inventory, Execute: d.execute, Metrics: d.metrics,
		Save: d.save, RequestSave: d.keeper.poke, Bus: bus,
		Announce: func(p shutdown.Phase) {
			status := "shutdown: " + string(p)
			if p == shutdown.Idle {
				status = d.board.StatusLine()
			}
			d.notifier.Status(status)
		},
	})
}

// lockName is the lock's among the descriptors that the service manager keeps.
const lockName = "evictd-inhibitor"

// lockKeeper keeps the lock with the service manager.
type lockKeeper struct{ *systemd.Notifier }

// Keep implements logind.Keeper.
func (k lockKeeper) Keep(fd int) error { return k.Notifier.Keep(lockName, fd) }

// Forget implements logind.Keeper.
func (k lockKeeper) Forget() error { return k.Notifier.Forget(lockName) }

// keptLock returns the lock of an earlier run, nil where there is none.
func keptLock() *int {
	if fd := systemd.Kept(lockName); fd >= 0 {
		return &fd
	}
	return nil
}
