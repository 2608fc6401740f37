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

// callTimeout is how long a call may take. A bus or logind that takes longer
// counts as hanging: the connection is given up.
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

// ErrHangs is what a call returns that was not answered in time. The connection
// is of no further use.
var ErrHangs = errors.New("no answer in time")

// Conn is a connection to the system bus. It is safe for concurrent use.
type Conn struct {
	bus     *dbus.Conn
	address string
	signals chan arrival  // closed with the connection
	timeout time.Duration // of each call
	// owner is the connection that has logind's name, as the bus names it; nil
	// while that is not known, and "" for none.
	owner atomic.Pointer[string]
}

// arrival is a signal, and when it came.
type arrival struct {
	*dbus.Signal
	at time.Time
}

// Connect connects to the bus at the address. Close the Conn to end it.
func Connect(ctx context.Context, address string) (*Conn, error) {
	return connect(ctx, address, callTimeout)
}

func connect(ctx context.Context, address string, timeout time.Duration) (_ *Conn, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, ErrHangs)
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

// dialer connects to the bus at an address.
type dialer func(ctx context.Context, address string) (*dbus.Conn, error)

// dialDescriptors connects to a bus so that answers can bring descriptors.
func dialDescriptors(_ context.Context, address string) (*dbus.Conn, error) {
	return dbus.Dial(address, dbus.WithSignalHandler(dbus.NewSequentialSignalHandler()))
}

// open makes a connection on which methods can be called.
func open(ctx context.Context, address string, timeout time.Duration, dial dialer) (_ *Conn, err error) {
	bus, err := dial(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("connect to the system bus: %w", err)
	}
	c := &Conn{bus: bus, address: address, signals: make(chan arrival), timeout: timeout}
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	// The handshake knows no context: closing the connection ends it.
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

// findOwner asks which connection is logind's. A change that was signalled
// meanwhile is newer than the answer.
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

// genuine reports whether a signal comes from the connection that it should. A
// match rule does not see to that: every user of the system bus may send any
// signal to one connection alone, which needs no match rule there (D-Bus
// specification, unicast signals; system.conf, send_type="signal").
func (c *Conn) genuine(s *dbus.Signal) bool {
	switch s.Name {
	case busName + "." + nameOwnerChanged:
		return s.Sender == busName
	case manager + "." + prepareForShutdown:
		owner := c.owner.Load()
		return owner != nil && *owner != "" && s.Sender == *owner
	}
	return false
}

// lastWords is how long what came before a connection broke off is kept for
// whoever asks for it.
const lastWords = time.Second

// receive passes signals on with the time, also of those that nobody asks for
// yet, until the connection is closed.
func (c *Conn) receive(signals <-chan *dbus.Signal) {
	defer close(c.signals)
	done := c.bus.Context().Done()
	var over <-chan time.Time
	var waiting []arrival
	for over == nil || len(waiting) > 0 {
		var next arrival
		var to chan<- arrival
		if len(waiting) > 0 {
			next, to = waiting[0], c.signals
		}
		select {
		case s, ok := <-signals:
			if !ok {
				signals = nil
				continue
			}
			if !c.genuine(s) {
				closeAll(s.Body)
				continue
			}
			if name, now, ok := newOwner(s); ok && name == loginName {
				c.owner.Store(&now)
			}
			waiting = append(waiting, arrival{s, time.Now()})
		case to <- next:
			waiting = waiting[1:]
		case <-done:
			done, over = nil, time.After(lastWords)
		case <-over:
			return
		}
	}
}

// Close ends the connection. Calls under way fail. Further calls do nothing.
func (c *Conn) Close() { _ = c.bus.Close() }

// call calls a method and returns its answer. Unlike the library's own way, one
// that is given up does not leave a descriptor behind that comes late: a lock
// that nobody knows of would hold every shutdown up.
func (c *Conn) call(ctx context.Context, name string, path dbus.ObjectPath, method string, args ...any) ([]any, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, ErrHangs)
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
		go func() { closeAll((<-done).Body) }() // at the latest when the connection is closed
		return nil, fmt.Errorf("call %s: %w", method, context.Cause(ctx))
	}
}

// closeAll closes the descriptors of an answer.
func closeAll(body []any) {
	for _, value := range body {
		if fd, ok := value.(dbus.UnixFD); ok {
			unix.Close(int(fd))
		}
	}
}

// property reads a property, which must be of the type T and no other: the
// library would turn a number into any other kind.
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
	return value, fmt.Errorf("read %s: %w %v", property, errStrange, body)
}

// errStrange tells of an answer that is not what it should be.
var errStrange = errors.New("strange answer")
