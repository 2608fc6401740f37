package agent

import (
	"path/filepath"
	"time"

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
	options := driver.Options{
		Log: d.log.Logger, DelayLock: d.delayLock, View: d.lastView.Load, Inventory: d.inventory, Execute: d.execute, Metrics: d.metrics,
		Save: d.save, RequestSave: d.stateWriter.Request, Bus: bus,
		Announce: func(p shutdown.Phase) {
			d.noteShutdown()
			status := "shutdown: " + string(p)
			if p == shutdown.Idle {
				status = d.statusBackend.StatusLine()
			}
			d.notifier.Status(status)
		},
	}
	if d.facts != nil {
		options.Unanswered = func() int { return d.orders.Status().Unanswered }
		options.KubeletShutsDown = d.facts.KubeletShutsDown
	}
	d.shutdown = driver.New(options)
}

// noteShutdown reports on the Node object whether the node shuts down.
func (d *daemon) noteShutdown() {
	if d.node != nil {
		now := time.Now()
		d.node.SetShutdown(d.shutdown.State().Active(), now)
		d.planShutdown(now)
	}
}
