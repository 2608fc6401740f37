package logind

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"
)

// DefaultAddress is the usual address of the system bus.
const DefaultAddress = "unix:path=/run/dbus/system_bus_socket"

// callTimeout bounds a call. A bus or logind that takes longer counts as hung: the
// connection is closed. sd-bus's default is 25 s; a shutdown can't wait that long.
const callTimeout = 10 * time.Second

const (
	busName   = "org.freedesktop.DBus"
	loginName = "org.freedesktop.login1"
	loginPath = dbus.ObjectPath("/org/freedesktop/login1")
	manager   = loginName + ".Manager"

	systemdName    = "org.freedesktop.systemd1"
	systemdPath    = dbus.ObjectPath("/org/freedesktop/systemd1")
	systemdManager = systemdName + ".Manager"

	prepareForShutdown = "PrepareForShutdown"
	nameOwnerChanged   = "NameOwnerChanged"
)

// ErrTimeout is returned by a call without an answer in time. The connection is then
// unusable.
var ErrTimeout = errors.New("no answer in time")

// Conn is a connection to the system bus. It is safe for concurrent use.
type Conn struct {
	bus     *dbus.Conn
	address string
	signals chan timedSignal // closed with the connection
	timeout time.Duration    // of each call
	// owner is the unique bus name of logind; nil while it is not known, and "" if
	// logind does not run.
	owner atomic.Pointer[string]
}

// timedSignal is a signal with the time of its arrival.
type timedSignal struct {
	*dbus.Signal
	at time.Time
}

// Connect connects to the bus at an address. Close ends the connection.
func Connect(ctx context.Context, address string) (*Conn, error) {
	return connect(ctx, address, callTimeout)
}

func connect(ctx context.Context, address string, timeout time.Duration) (_ *Conn, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, ErrTimeout)
	defer cancel()
	c, err := open(ctx, address, timeout, dialStream)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	for _, match := range []string{
		"type='signal',sender='" + loginName + "',interface='" + manager + "',member='" + prepareForShutdown + "'",
		"type='signal',sender='" + busName + "',member='" + nameOwnerChanged + "',arg0='" + loginName + "'",
	} {
		if _, err := c.call(ctx, busName, "/org/freedesktop/DBus", busName+".AddMatch", match); err != nil {
			return nil, err
		}
	}
	if err := c.findOwner(ctx); err != nil {
		return nil, err
	}
	return c, nil
}

// dialer is a function that connects to the bus at an address.
type dialer func(ctx context.Context, address string) (*dbus.Conn, error)

// dialDescriptors connects to a bus on which replies can carry descriptors.
func dialDescriptors(_ context.Context, address string) (*dbus.Conn, error) {
	return dbus.Dial(address, dbus.WithSignalHandler(dbus.NewSequentialSignalHandler()))
}

// open opens a connection on which methods can be called.
func open(ctx context.Context, address string, timeout time.Duration, dial dialer) (_ *Conn, err error) {
	bus, err := dial(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("connect to the system bus: %w", err)
	}
	c := &Conn{bus: bus, address: address, signals: make(chan timedSignal), timeout: timeout}
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	// The handshake takes no context: closing the connection ends it.
	stop := context.AfterFunc(ctx, c.Close)
	err = bus.Auth(nil)
	if !stop() && err != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("connect to the system bus: %w", err)
	}
	signals := make(chan *dbus.Signal, 16)
	bus.Signal(signals)
	go c.receive(signals)
	if _, err := c.call(ctx, busName, "/org/freedesktop/DBus", busName+".Hello"); err != nil {
		return nil, err
	}
	return c, nil
}

// findOwner queries the unique name of logind. A change that was signalled since
// the call is newer than the answer.
func (c *Conn) findOwner(ctx context.Context) error {
	body, err := c.call(ctx, busName, "/org/freedesktop/DBus", busName+".GetNameOwner", loginName)
	var none dbus.Error
	owner := ""
	switch {
	case errors.As(err, &none) && none.Name == busName+".Error.NameHasNoOwner":
	case err != nil:
		return err
	default:
		if err := dbus.Store(body, &owner); err != nil {
			return fmt.Errorf("find logind: %w", err)
		}
	}
	c.owner.CompareAndSwap(nil, &owner)
	return nil
}

// fromExpectedSender reports whether a signal comes from logind or the bus itself.
// A match rule does not ensure that: every user of the system bus may send any
// signal to a single connection, which needs no match rule there (D-Bus
// specification, unicast signals; system.conf, send_type="signal").
func (c *Conn) fromExpectedSender(s *dbus.Signal) bool {
	switch s.Name {
	case busName + "." + nameOwnerChanged:
		return s.Sender == busName
	case manager + "." + prepareForShutdown:
		owner := c.owner.Load()
		return owner != nil && *owner != "" && s.Sender == *owner
	}
	return false
}

// drainTimeout is how long the signals that were received before the connection was
// closed can still be read.
const drainTimeout = time.Second

// receive forwards signals with their time until the connection is closed, and
// queues those that are not read yet.
func (c *Conn) receive(signals <-chan *dbus.Signal) {
	defer close(c.signals)
	done := c.bus.Context().Done()
	var drained <-chan time.Time // fires when drainTimeout has passed
	var waiting []timedSignal
	for drained == nil || len(waiting) > 0 {
		var next timedSignal
		var to chan<- timedSignal
		if len(waiting) > 0 {
			next, to = waiting[0], c.signals
		}
		select {
		case s, ok := <-signals:
			if !ok {
				signals = nil
				continue
			}
			if !c.fromExpectedSender(s) {
				closeDescriptors(s.Body)
				continue
			}
			if name, now, ok := newOwner(s); ok && name == loginName {
				c.owner.Store(&now)
			}
			waiting = append(waiting, timedSignal{s, time.Now()})
		case to <- next:
			waiting = waiting[1:]
		case <-done:
			done, drained = nil, time.After(drainTimeout)
		case <-drained:
			return
		}
	}
}

// Close closes the connection. Calls in flight fail. Further calls do nothing.
func (c *Conn) Close() { _ = c.bus.Close() }

// call calls a method and returns its answer. Unlike godbus it closes descriptors
// of an answer that arrives after the timeout: an unknown lock would delay every
// shutdown.
func (c *Conn) call(ctx context.Context, name string, path dbus.ObjectPath, method string, args ...any) ([]any, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, ErrTimeout)
	defer cancel()
	done := make(chan *dbus.Call, 1)
	c.bus.Object(name, path).Go(method, 0, done, args...)
	select {
	case answered := <-done:
		if answered.Err != nil {
			return nil, fmt.Errorf("call %s: %w", method, answered.Err)
		}
		return answered.Body, nil
	case <-ctx.Done():
		go func() { closeDescriptors((<-done).Body) }() // ends at the latest when the connection is closed
		return nil, fmt.Errorf("call %s: %w", method, context.Cause(ctx))
	}
}

// closeDescriptors closes the descriptors of an answer.
func closeDescriptors(body []any) {
	for _, value := range body {
		if fd, ok := value.(dbus.UnixFD); ok {
			unix.Close(int(fd))
		}
	}
}

// property reads a property, which must have the type T: godbus would convert a
// number into any other type.
func property[T any](ctx context.Context, c *Conn, name string, path dbus.ObjectPath, of, property string) (value T, err error) {
	body, err := c.call(ctx, name, path, busName+".Properties.Get", of, property)
	if err != nil {
		return value, fmt.Errorf("read %s: %w", property, err)
	}
	if len(body) == 1 {
		if v, ok := body[0].(dbus.Variant); ok {
			if value, ok := v.Value().(T); ok {
				return value, nil
			}
		}
	}
	return value, fmt.Errorf("read %s: %w %v", property, errUnexpectedReply, body)
}

// errUnexpectedReply reports a reply with an unexpected type or number of values.
var errUnexpectedReply = errors.New("unexpected reply")
