package logind

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/godbus/dbus/v5"
)

// Limit returns for how long logind lets a shutdown be held up
// (InhibitDelayMaxUSec).
func (c *Conn) Limit(ctx context.Context) (time.Duration, error) {
	microseconds, err := property[uint64](ctx, c, loginName, loginPath, manager, "InhibitDelayMaxUSec")
	if err != nil {
		return 0, err
	}
	const most = math.MaxInt64 / uint64(time.Microsecond)
	return time.Duration(min(microseconds, most)) * time.Microsecond, nil
}

// Preparing tells whether the node is about to go down.
func (c *Conn) Preparing(ctx context.Context) (bool, error) {
	return property[bool](ctx, c, loginName, loginPath, manager, "PreparingForShutdown")
}

// callAside calls a method of logind's on a connection of its own.
func (c *Conn) callAside(ctx context.Context, dial dialer, method string, args ...any) ([]any, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, ErrHangs)
	defer cancel()
	d, err := open(ctx, c.address, c.timeout, dial)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.call(ctx, loginName, loginPath, method, args...)
}

// Inhibitor is somebody's lock.
type Inhibitor struct {
	What string // what it inhibits, with colons between
	Who  string // for people
	Why  string
	Mode string // block or delay
	UID  uint32
	PID  uint32
}

// Inhibitors lists the locks that are held. It calls on a connection of its own:
// every local user can make the list too long to be read, which ends that
// connection.
func (c *Conn) Inhibitors(ctx context.Context) ([]Inhibitor, error) {
	body, err := c.callAside(ctx, dialStream, manager+".ListInhibitors")
	if err != nil {
		return nil, err
	}
	var list []Inhibitor
	if err := dbus.Store(body, &list); err != nil {
		return nil, fmt.Errorf("list inhibitors: %w", err)
	}
	return list, nil
}

// Inhibit takes a lock that delays a shutdown, for which it says who and why. It
// asks on a connection of its own, on which others can send descriptors only for
// as long as it takes. The lock does not end with that.
func (c *Conn) Inhibit(ctx context.Context, who, why string) (*Lock, error) {
	body, err := c.callAside(ctx, dialDescriptors, manager+".Inhibit", "shutdown", who, why, "delay")
	if err != nil {
		return nil, err
	}
	if len(body) == 1 {
		// Nothing but a descriptor that came with the answer is ours to close.
		if fd, ok := body[0].(dbus.UnixFD); ok {
			return newLock(int(fd)), nil
		}
	}
	closeAll(body)
	return nil, fmt.Errorf("take a lock: %w %v", errStrange, body)
}

// Reload makes logind read its configuration again, which it does some time
// after the call has returned. Logind has no call for that: systemd sends it
// SIGHUP.
func (c *Conn) Reload(ctx context.Context) error {
	_, err := c.call(ctx, systemdName, systemdPath, systemdManager+".KillUnit", "systemd-logind.service", "main", int32(1))
	return err
}

// SystemState returns what systemd says of the node as a whole: running,
// degraded, stopping and others.
func (c *Conn) SystemState(ctx context.Context) (string, error) {
	return property[string](ctx, c, systemdName, systemdPath, systemdManager, "SystemState")
}

// change is a signal that is understood.
type change struct {
	begins  bool // a shutdown; or it is called off
	owner   bool // instead: logind has come, or gone
	present bool
}

// understand returns what a signal says; ok is false for one that is none of
// ours or not formed as it should be.
func understand(s arrival) (c change, ok bool) {
	switch s.Name {
	case manager + "." + prepareForShutdown:
		if len(s.Body) == 1 {
			c.begins, ok = s.Body[0].(bool)
		}
		return c, ok
	case busName + "." + nameOwnerChanged:
		name, now, ok := newOwner(s.Signal)
		c.owner, c.present = true, now != ""
		return c, ok && name == loginName
	}
	return c, false
}

// newOwner returns which name has changed its owner, and the new one; ok is false
// for any other signal.
func newOwner(s *dbus.Signal) (name, now string, ok bool) {
	if s.Name != busName+"."+nameOwnerChanged {
		return "", "", false
	}
	var before string
	err := dbus.Store(s.Body, &name, &before, &now)
	return name, now, err == nil
}
