package watchdog

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// ErrBusy means that another process has the device open.
var ErrBusy = errors.New("another process has the watchdog open")

// Device is an open watchdog. It is armed. Its methods must not be called at the same time.
type Device struct {
	fd int
}

// Info is what the driver says about a device.
type Info struct {
	// Identity is the name of the hardware or of the driver; "Software Watchdog" is softdog.
	Identity string
	// MagicClose is set if closing the device disarms it only after the magic character. Without it any close disarms,
	// also that of a process that was killed.
	MagicClose bool
	// SetTimeout is set if the timeout can be set.
	SetTimeout bool
}

// Open opens a device, which arms and feeds it. If it is open elsewhere, the error is ErrBusy.
func Open(path string) (*Device, error) {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.EBUSY):
		return nil, fmt.Errorf("open %s: %w", path, ErrBusy)
	case err != nil:
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return &Device{fd}, nil
}

// Info returns what the driver says about the device.
func (d *Device) Info() (Info, error) {
	i, err := unix.IoctlGetWatchdogInfo(d.fd)
	if err != nil {
		return Info{}, fmt.Errorf("WDIOC_GETSUPPORT: %w", err)
	}
	return Info{
		Identity: unix.ByteSliceToString(i.Identity[:]), MagicClose: i.Options&unix.WDIOF_MAGICCLOSE != 0,
		SetTimeout: i.Options&unix.WDIOF_SETTIMEOUT != 0,
	}, nil
}

// Timeout returns the timeout that the driver uses.
func (d *Device) Timeout() (time.Duration, error) {
	seconds, err := unix.IoctlGetUint32(d.fd, unix.WDIOC_GETTIMEOUT)
	if err != nil {
		return 0, fmt.Errorf("WDIOC_GETTIMEOUT: %w", err)
	}
	return time.Duration(seconds) * time.Second, nil
}

// SetTimeout sets the timeout, in whole seconds, and returns what the driver took. It feeds the device.
func (d *Device) SetTimeout(timeout time.Duration) (time.Duration, error) {
	if err := unix.IoctlSetPointerInt(d.fd, unix.WDIOC_SETTIMEOUT, int(timeout/time.Second)); err != nil {
		return 0, fmt.Errorf("WDIOC_SETTIMEOUT: %w", err)
	}
	return d.Timeout()
}

// Feed starts the timeout again.
func (d *Device) Feed() error {
	if err := unix.IoctlWatchdogKeepalive(d.fd); err != nil {
		return fmt.Errorf("WDIOC_KEEPALIVE: %w", err)
	}
	return nil
}

// Disarm disarms and closes the device. One with nowayout stays armed, and the kernel feeds it a last time. After an
// error the device is open.
func (d *Device) Disarm() error {
	if _, err := unix.Write(d.fd, []byte{'V'}); err != nil {
		return fmt.Errorf("write the magic character: %w", err)
	}
	return d.Close()
}

// Close closes the device and leaves it armed, except one without MagicClose.
func (d *Device) Close() error {
	if d.fd < 0 {
		return nil
	}
	fd := d.fd
	d.fd = -1
	return unix.Close(fd)
}
