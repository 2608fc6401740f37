// Package redfish switches and reads the power of one machine through the Redfish service of its BMC, over HTTPS.
//
// Each call of a [Device] opens a session of its own and deletes it, also if its context has ended. A BMC that has no
// sessions, or no free one, gets the user name and the password with each request instead (basic authentication). A
// wrong password is sent once per call and never tried again, because BMCs lock accounts.
//
// Only the resets ForceOff, and On (ForceOn where On is missing) are ever sent, and only if the BMC lists them as
// allowed: GracefulShutdown asks the operating system, ForceRestart and PowerCycle switch on again. Each is sent once,
// on a connection of its own, so that net/http has no reason to repeat it. That a BMC accepted a reset proves nothing.
//
// All requests go to the address of the device, directly. The proxies of the environment are not used: those of a
// cluster are for the internet, may run on the node that is fenced, and could answer in place of the BMC. A link or
// redirect to another host is an error. Answers are bounded, and keys are compared exactly, unlike encoding/json does
// with structs.
//
// A call returns at the latest 2 s after its context ended, and leaves no goroutine and no connection behind. Errors
// have no secrets.
package redfish

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/fence/device"
)

const (
	// loginGrace is how long an open login may go on after the context has ended. A session whose token is not known
	// could not be deleted.
	loginGrace = 500 * time.Millisecond
	// closeTimeout bounds the end of a session. A BMC that is slower gets the request too.
	closeTimeout = 1250 * time.Millisecond
)

// ErrAuthentication is in errors if the BMC does not accept the user name or the password.
var ErrAuthentication = errors.New("wrong user name or password, or the account is locked: " +
	"correct username and password in the Secret of the method")

// ErrCertificate is in errors if the certificate is not that of the BMC. Nothing was sent then.
var ErrCertificate = errors.New("wrong certificate")

var _ device.Device = (*Device)(nil)

// Device is a machine with a BMC. It can be used concurrently.
type Device struct {
	parameters
	tls *tls.Config

	mu    sync.Mutex
	links links
	// uuid is that of the last Status, for the UUID that follows it; nil if there is none.
	uuid *string
}

// links are the resources of a BMC. They are found once for a Device.
type links struct {
	sessions string // where a session is created; empty without sessions
	systems  string // the collection; empty if nothing was found yet
	system   string // the machine
}

// New returns the device of a BMC. The parameters are ip (an address or a host name), ipport (443 if absent), username
// and password; system, the last part of the machine's URI, which is necessary if the BMC has several; and what the
// certificate of the BMC is checked with: ssl_fingerprint, its SHA-256 as 64 hexadecimal digits; ssl_ca, certificates
// in PEM; both of them; nothing at all with ssl_insecure=1; otherwise the certificate authorities of the system. A
// certificate with the fingerprint is accepted without an authority, whatever its names and dates. New sends nothing.
func New(parameters map[string]string) (*Device, error) {
	p, err := parse(parameters)
	if err != nil {
		return nil, err
	}
	return &Device{parameters: p, tls: p.config()}, nil
}

// Status returns the state of the power. Only the PowerState Off is PowerOff, and only On is PowerOn.
func (d *Device) Status(ctx context.Context) (fence.Power, error) {
	power := fence.PowerUnknown
	d.keep(nil)
	err := d.session(ctx, func(s *session) error {
		sys, err := s.system()
		if err != nil {
			return err
		}
		if power, err = sys.power(); err != nil {
			return err
		}
		// Without a valid UUID the state is known all the same; UUID reports the error.
		if uuid, err := sys.uuid(); err == nil {
			d.keep(&uuid)
		}
		return nil
	})
	if err != nil {
		return fence.PowerUnknown, fmt.Errorf("read power of %s: %w", d, err)
	}
	return power, nil
}

// Off switches the power off at once.
func (d *Device) Off(ctx context.Context) error {
	if err := d.reset(ctx, "ForceOff"); err != nil {
		return fmt.Errorf("switch off %s: %w", d, err)
	}
	return nil
}

// On switches the power on.
func (d *Device) On(ctx context.Context) error {
	if err := d.reset(ctx, "On", "ForceOn"); err != nil {
		return fmt.Errorf("switch on %s: %w", d, err)
	}
	return nil
}

// UUID returns the UUID of the machine. The first call after Status returns that of the same answer: state and
// identity are then those of one machine, and a slow BMC has half of the work.
func (d *Device) UUID(ctx context.Context) (string, error) {
	if kept := d.keep(nil); kept != nil {
		return *kept, nil
	}
	uuid := ""
	err := d.session(ctx, func(s *session) error {
		sys, err := s.system()
		if err != nil {
			return err
		}
		uuid, err = sys.uuid()
		return err
	})
	if err != nil {
		return "", fmt.Errorf("read UUID of %s: %w", d, err)
	}
	return uuid, nil
}

// keep replaces the UUID of the last Status, and returns the one before.
func (d *Device) keep(uuid *string) *string {
	d.mu.Lock()
	defer d.mu.Unlock()
	before := d.uuid
	d.uuid = uuid
	return before
}

// reset sends a reset once, of the first type that the BMC allows. The error is device.ErrRefused if it was not sent,
// or if the BMC answered that it did not carry it out.
func (d *Device) reset(ctx context.Context, types ...string) error {
	sent := false
	err := d.session(ctx, func(s *session) error {
		sys, err := s.system()
		if err != nil {
			return err
		}
		target, resetType, err := s.action(sys, types)
		if err != nil {
			return err
		}
		if err := s.ctx.Err(); err != nil {
			return fmt.Errorf("before the reset was sent: %w", err)
		}
		var refused bool
		sent, refused, err = s.act(target, resetType)
		switch {
		case err == nil:
			return nil
		case !sent:
			return err
		case refused:
			return fmt.Errorf("%w: reset %s: %w", device.ErrRefused, resetType, err)
		}
		return fmt.Errorf("reset %s was sent and may be carried out: %w", resetType, err)
	})
	if err != nil && !sent {
		return fmt.Errorf("%w: %w", device.ErrRefused, err)
	}
	return err
}

// found returns the links that were found.
func (d *Device) found() links {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.links
}

// setFound keeps links.
func (d *Device) setFound(l links) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.links = l
}
