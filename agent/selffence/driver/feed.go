package driver

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/evictd/evictd/agent/selffence"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/watchdog"
)

// feedings is how often the device is fed within its timeout.
const feedings = 3

// startFeeding starts the feeding thread.
func (d *Driver) startFeeding() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	device, period := d.opened.Device, d.opened.timeout/feedings
	d.opened.stopFeed = func() {
		cancel()
		<-ended
	}
	go func() {
		defer close(ended)
		// The thread may have another priority afterwards, so it is not given back.
		runtime.LockOSThread()
		if d.options.OnFeedThread != nil {
			d.options.OnFeedThread()
		}
		ticker := time.NewTicker(period)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				d.feed(device)
			}
		}
	}()
}

// feed feeds the device if that is allowed.
func (d *Driver) feed(device Device) {
	now, err := d.options.Uptime()
	if err != nil || now >= time.Duration(d.feedUntil.Load()) {
		return
	}
	if err := device.Feed(); err != nil {
		d.options.Log.Error("could not feed the watchdog; the machine will be reset", "device", d.options.Path, "error", err)
		return
	}
	d.noteFed()
	d.shortenIfLate(device)
}

// shortenIfLate shortens the timeout of a device that was just fed, if that was late.
func (d *Driver) shortenIfLate(device Device) {
	now, err := d.options.Uptime()
	if err == nil && !selffence.Late(time.Duration(d.feedUntil.Load()), now) {
		return
	}
	if _, err := device.SetTimeout(selffence.LateTimeout); err != nil {
		d.options.Log.Error("could not shorten the watchdog's timeout after it was fed late", "device", d.options.Path, "error", err)
	}
}

// explainOpen returns an error about opening the device with its remedy.
func (d *Driver) explainOpen(err error) error {
	if !errors.Is(err, watchdog.ErrBusy) {
		return err
	}
	holder, ok := watchdog.Holder(d.options.Procfs, d.options.Path)
	if !ok {
		return fmt.Errorf("%w: a device has one user: end the other one", err)
	}
	return fmt.Errorf("%w: %s: end it; of systemd (process 1) set RuntimeWatchdogSec=0 in system.conf", err, holder)
}

func isUnavailable(err error) bool { return errors.Is(err, kernel.ErrUnavailable) }
