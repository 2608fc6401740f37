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
	lock := systemd.NamedFD{Notifier: d.notifier, Name: "evictd-inhibitor"}
	d.delayLock = logind.NewDelayLock(logind.Options{
		Address: bus, Root: d.options.Rootfs, Log: d.log.Logger,
		FDStore: lock, StoredLock: lock.Stored(), IsKubelet: d.inventory.IsKubelet,
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
