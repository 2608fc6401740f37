package agent

import (
	"path/filepath"

	"github.com/evictd/evictd/agent/shutdown"
	"github.com/evictd/evictd/agent/shutdown/driver"
	"github.com/evictd/evictd/agent/shutdown/logind"
	"github.com/evictd/evictd/agent/systemd"
)

// buildShutdown makes the graceful node shutdown and its connection to logind.
func (d *daemon) buildShutdown() {
	bus := "unix:path=" + filepath.Join(d.options.Rootfs, "/run/dbus/system_bus_socket")
	d.delayLock = logind.NewDelayLock(logind.Options{
		Address: bus, Root: d.options.Rootfs, Log: d.log.Logger,
		FDStore: lockStore{d.notifier}, StoredLock: storedLock(), IsKubelet: d.inventory.IsKubelet,
	})
	d.shutdown = driver.New(driver.Options{
		Log: d.log.Logger, DelayLock: d.delayLock, View: d.lastView.Load, Inventory: d.inventory, Execute: d.execute, Metrics: d.metrics,
		Save: d.save, RequestSave: d.stateWriter.Request, Bus: bus,
		Announce: func(p shutdown.Phase) {
			status := "shutdown: " + string(p)
			if p == shutdown.Idle {
				status = d.statusBackend.StatusLine()
			}
			d.notifier.Status(status)
		},
	})
}

// lockFDName is the name of the inhibitor lock in the service manager's FD store.
const lockFDName = "evictd-inhibitor"

// lockStore stores the inhibitor lock in the service manager's FD store.
type lockStore struct{ *systemd.Notifier }

// Store implements logind.FDStore.
func (s lockStore) Store(fd int) error { return s.Notifier.StoreFD(lockFDName, fd) }

// Remove implements logind.FDStore.
func (s lockStore) Remove() error { return s.Notifier.RemoveFD(lockFDName) }

// storedLock returns the stored lock of an earlier run, nil if there is none.
func storedLock() *int {
	if fd := systemd.StoredFD(lockFDName); fd >= 0 {
		return &fd
	}
	return nil
}
