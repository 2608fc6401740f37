package logind

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/godbus/dbus/v5"
)

// Limit returns logind's limit for the delay of a shutdown (InhibitDelayMaxUSec).
func (c *Conn) Limit(ctx context.Context) (time.Duration, error) {
	microseconds, err := property[uint64](ctx, c, loginName, loginPath, manager, "InhibitDelayMaxUSec")
	if err != nil {
		return 0, err
	}
	const most = math.MaxInt64 / uint64(time.Microsecond)
	return time.Duration(min(microseconds, most)) * time.Microsecond, nil
}

// Preparing reports whether the node is about to shut down (PreparingForShutdown).
func (c *Conn) Preparing(ctx context.Context) (bool, error) {
	return property[bool](ctx, c, loginName, loginPath, manager, "PreparingForShutdown")
}

// callOnNewConn calls a method of logind on a connection of its own.
func (c *Conn) callOnNewConn(ctx context.Context, dial dialer, method string, args ...any) ([]any, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, ErrTimeout)
	defer cancel()
	d, err := open(ctx, c.address, c.timeout, dial)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.call(ctx, loginName, loginPath, method, args...)
}

// Inhibitor is an inhibitor lock in logind's list.
type Inhibitor struct {
	What string // inhibited operations, separated by colons
	Who  string // for display
	Why  string
	Mode string // block or delay
	UID  uint32
	PID  uint32
}

// Inhibitors lists the locks. It uses a connection of its own: every local user can
// make the list too long to be read, which ends that connection.
func (c *Conn) Inhibitors(ctx context.Context) ([]Inhibitor, error) {
	body, err := c.callOnNewConn(ctx, dialStream, manager+".ListInhibitors")
	if err != nil {
		return nil, err
	}
	var list []Inhibitor
	if err := dbus.Store(body, &list); err != nil {
		return nil, fmt.Errorf("list inhibitors: %w", err)
	}
	return list, nil
}

// Inhibit takes a lock that delays a shutdown. It uses a connection of its own, so
// that other users can send descriptors to evictd only during the call. The lock
// outlives the connection.
func (c *Conn) Inhibit(ctx context.Context, who, why string) (*Lock, error) {
	body, err := c.callOnNewConn(ctx, dialDescriptors, manager+".Inhibit", "shutdown", who, why, "delay")
	if err != nil {
		return nil, err
	}
	if len(body) == 1 {
		// Only a descriptor of the reply is evictd's to close.
		if fd, ok := body[0].(dbus.UnixFD); ok {
			return newLock(int(fd)), nil
		}
	}
	closeDescriptors(body)
	return nil, fmt.Errorf("take a lock: %w %v", errUnexpectedReply, body)
}

// Reload makes logind read its configuration, which happens some time after the
// call. Logind has no method for it: systemd sends it SIGHUP.
func (c *Conn) Reload(ctx context.Context) error {
	_, err := c.call(ctx, systemdName, systemdPath, systemdManager+".KillUnit", "systemd-logind.service", "main", int32(1))
	return err
}

// SystemState returns systemd's state of the whole system: running, degraded,
// stopping and others.
func (c *Conn) SystemState(ctx context.Context) (string, error) {
	return property[string](ctx, c, systemdName, systemdPath, systemdManager, "SystemState")
}

// change is a parsed signal: PrepareForShutdown or, if owner is set, NameOwnerChanged.
type change struct {
	begins  bool // a shutdown begins; false: it was canceled
	owner   bool // logind has started or exited
	present bool // logind has started
}

// parseSignal returns the content of a signal; ok is false for other signals and
// malformed ones.
func parseSignal(s timedSignal) (c change, ok bool) {
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

// newOwner returns a bus name and its new owner; ok is false for any other signal.
func newOwner(s *dbus.Signal) (name, now string, ok bool) {
	if s.Name != busName+"."+nameOwnerChanged {
		return "", "", false
	}
	var before string
	err := dbus.Store(s.Body, &name, &before, &now)
	return name, now, err == nil
}
