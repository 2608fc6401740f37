package logindtest

import (
	"os"
	"time"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"
)

func (b *Bus) answer(c *client, msg *dbus.Message) {
	member, _ := msg.Headers[dbus.FieldMember].Value().(string)
	if member == "Get" {
		member, _ = msg.Body[1].(string)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls[member]++
	if b.hang[member] {
		return
	}
	reply := &dbus.Message{Type: dbus.TypeMethodReply, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldReplySerial: dbus.MakeVariant(msg.Serial()), dbus.FieldSender: dbus.MakeVariant("org.freedesktop.login1"),
	}}
	fail := func(name string) {
		reply.Type = dbus.TypeError
		reply.Headers[dbus.FieldErrorName] = dbus.MakeVariant(name)
	}
	if body, ok := b.answers[member]; ok {
		reply.Body = body
		c.send(reply)
		return
	}
	switch member {
	case "Hello":
		reply.Body = []any{":1.42"}
	case "AddMatch":
	case "GetNameOwner":
		if b.owner == "" {
			fail("org.freedesktop.DBus.Error.NameHasNoOwner")
			break
		}
		reply.Body = []any{b.owner}
	case "InhibitDelayMaxUSec":
		reply.Body = []any{dbus.MakeVariant(uint64(b.limit / time.Microsecond))}
	case "PreparingForShutdown":
		reply.Body = []any{dbus.MakeVariant(b.preparing)}
	case "SystemState":
		reply.Body = []any{dbus.MakeVariant("running")}
	case "ListInhibitors":
		list := []inhibitor{}
		for _, l := range b.openLocks() {
			list = append(list, inhibitor{l.What, l.Who, l.Why, l.Mode, l.uid, l.pid})
		}
		reply.Body = []any{list}
	case "Inhibit":
		if b.preparing {
			// logind-dbus.c: method_inhibit()
			fail("org.freedesktop.login1.OperationInProgress")
			break
		}
		b.inhibit(c, msg, reply)
		return
	case "KillUnit":
		b.reload()
	default:
		fail("org.freedesktop.DBus.Error.UnknownMethod")
	}
	c.send(reply)
}

// inhibitor is an element of the reply of ListInhibitors.
type inhibitor struct {
	What, Who, Why, Mode string
	UID, PID             uint32
}

// inhibit replies with one end of a pipe and keeps the other, as logind does with a
// FIFO.
func (b *Bus) inhibit(c *client, msg, reply *dbus.Message) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		b.t.Error(err)
		return
	}
	l := &lock{fifo: ends[0], uid: uint32(os.Geteuid()), pid: c.pid}
	if err := dbus.Store(msg.Body, &l.What, &l.Who, &l.Why, &l.Mode); err != nil {
		b.t.Error(err)
	}
	b.locks = append(b.locks, l)
	reply.Body = []any{dbus.UnixFD(ends[1])}
	c.send(reply)
	unix.Close(ends[1])
}

// Inhibit takes a lock as pid 1, until the end of the test.
func (b *Bus) Inhibit(who string) { b.InhibitAs(who, 0, 1) }

// InhibitAs takes a lock as a process and user, until the end of the test.
func (b *Bus) InhibitAs(who string, uid, pid uint32) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { unix.Close(ends[1]) })
	b.mu.Lock()
	defer b.mu.Unlock()
	b.locks = append(b.locks, &lock{Lock{who, "", "shutdown", "delay"}, uid, pid, ends[0]})
}
