// Package logindtest is a system bus with a logind and a systemd on it, as far
// as evictd asks them, on a real socket. It is for what the real ones do seldom:
// to hang, to answer nonsense, to come and go.
package logindtest

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"
)

// Bus is the bus. Its methods are safe for concurrent use.
type Bus struct {
	t    testing.TB
	path string
	root string // where logind reads its configuration

	serving sync.WaitGroup

	mu        sync.Mutex
	listener  *net.UnixListener
	clients   map[*client]bool
	locks     []*lock
	owner     string // of logind's name
	limit     time.Duration
	preparing bool
	stubborn  bool
	hang      map[string]bool
	answers   map[string][]any
	calls     map[string]int
}

// Lock is what logind knows of an inhibitor.
type Lock struct{ Who, Why, What, Mode string }

type lock struct {
	Lock
	uid  uint32
	pid  uint32
	fifo int // our end
}

// baseLimit is logind's own InhibitDelayMaxSec.
const baseLimit = 5 * time.Second

// firstOwner is the connection that logind has at first.
const firstOwner = ":1.1"

// New starts a bus that lives as long as the test, at its usual place below
// root, where its logind reads its configuration, too.
func New(t testing.TB, root string) *Bus {
	t.Helper()
	b := &Bus{
		t: t, path: filepath.Join(root, "run/dbus/system_bus_socket"), root: root, clients: map[*client]bool{}, owner: firstOwner, limit: baseLimit,
		hang: map[string]bool{}, answers: map[string][]any{}, calls: map[string]int{},
	}
	if err := os.MkdirAll(filepath.Dir(b.path), 0o755); err != nil {
		t.Fatal(err)
	}
	b.Start()
	t.Cleanup(func() {
		b.Stop()
		for _, l := range b.locks {
			unix.Close(l.fifo)
		}
	})
	return b
}

// Address returns the bus's D-Bus address.
func (b *Bus) Address() string { return "unix:path=" + b.path }

// Start lets clients connect.
func (b *Bus) Start() {
	b.t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: b.path, Net: "unix"})
	if err != nil {
		b.t.Fatal(err)
	}
	b.mu.Lock()
	b.listener = l
	b.mu.Unlock()
	b.serving.Go(func() {
		for {
			conn, err := l.AcceptUnix()
			if err != nil {
				return
			}
			c := &client{bus: b, conn: conn, pid: peer(conn)}
			b.mu.Lock()
			if b.listener != l { // stopped meanwhile
				b.mu.Unlock()
				conn.Close()
				return
			}
			b.clients[c] = true
			b.mu.Unlock()
			b.serving.Go(c.serve)
		}
	})
}

// Stop ends every connection, and lets nobody connect until Start.
func (b *Bus) Stop() {
	defer b.serving.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.listener != nil {
		b.listener.Close()
		b.listener = nil
	}
	for c := range b.clients {
		c.conn.Close() // which ends serve
	}
	clear(b.clients)
}

// Hang makes a method never answer, or answer again; "auth" is the handshake.
func (b *Bus) Hang(method string, hang bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hang[method] = hang
}

// Answer makes a method, or a property by its name, answer that; nil as it
// should.
func (b *Bus) Answer(method string, body []any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if body == nil {
		delete(b.answers, method)
	} else {
		b.answers[method] = body
	}
}

// Stubborn makes logind keep its limit whatever its configuration says.
func (b *Bus) Stubborn(yes bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stubborn = yes
}

// Calls returns how often a method was called.
func (b *Bus) Calls(method string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.calls[method]
}

// Locks returns the locks that are held.
func (b *Bus) Locks() []Lock {
	b.mu.Lock()
	defer b.mu.Unlock()
	var held []Lock
	for _, l := range b.held() {
		held = append(held, l.Lock)
	}
	return held
}

// held drops the locks whose other end was closed.
func (b *Bus) held() []*lock {
	var held []*lock
	for _, l := range b.locks {
		fds := []unix.PollFd{{Fd: int32(l.fifo), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, 0); err == nil && fds[0].Revents&unix.POLLHUP != 0 {
			unix.Close(l.fifo)
			continue
		}
		held = append(held, l)
	}
	b.locks = held
	return held
}

// Prepare says that the node is about to go down, or not after all.
func (b *Bus) Prepare(begins bool) {
	b.mu.Lock()
	b.preparing = begins
	b.mu.Unlock()
	b.Emit(begins)
}

// Emit sends logind's signal PrepareForShutdown with whatever body.
func (b *Bus) Emit(body ...any) {
	b.mu.Lock()
	owner := b.owner
	b.mu.Unlock()
	b.EmitAs(owner, body...)
}

// EmitAs sends the same as another connection can, to each client alone.
func (b *Bus) EmitAs(sender string, body ...any) {
	b.emit(sender, "/org/freedesktop/login1", "org.freedesktop.login1.Manager", "PrepareForShutdown", body...)
}

// ForgeOwner says as another connection that logind's name has a new owner.
func (b *Bus) ForgeOwner(sender, owner string) {
	b.emit(sender, "/org/freedesktop/DBus", "org.freedesktop.DBus", "NameOwnerChanged", "org.freedesktop.login1", "", owner)
}

// RestartLogind has logind go and come back. The locks it had are lost, which
// the real one would keep, or, if it had a shutdown to hold up, that is.
func (b *Bus) RestartLogind() {
	owner := func(before, now string) {
		b.mu.Lock()
		b.owner = now
		b.mu.Unlock()
		b.emit("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus", "NameOwnerChanged", "org.freedesktop.login1", before, now)
	}
	owner(firstOwner, "")
	b.mu.Lock()
	for _, l := range b.locks {
		unix.Close(l.fifo)
	}
	b.locks, b.preparing = nil, false
	b.mu.Unlock()
	owner("", ":1.2")
}

func (b *Bus) emit(sender, path, iface, member string, body ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.clients {
		c.send(&dbus.Message{Type: dbus.TypeSignal, Headers: map[dbus.HeaderField]dbus.Variant{
			dbus.FieldSender: dbus.MakeVariant(sender), dbus.FieldPath: dbus.MakeVariant(dbus.ObjectPath(path)),
			dbus.FieldInterface: dbus.MakeVariant(iface), dbus.FieldMember: dbus.MakeVariant(member),
		}, Body: body})
	}
}

// Reload has logind read its configuration.
func (b *Bus) Reload() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reload()
}

// reload reads the configuration as logind does: the last file by name counts.
func (b *Bus) reload() {
	if b.stubborn {
		return
	}
	b.limit = baseLimit
	names := map[string]string{}
	for _, dir := range []string{"/usr/lib", "/run", "/etc"} { // later ones hide those of the same name
		files, _ := filepath.Glob(filepath.Join(b.root, dir, "systemd/logind.conf.d/*.conf"))
		for _, f := range files {
			names[filepath.Base(f)] = f
		}
	}
	last := ""
	for name := range names {
		content, err := os.ReadFile(names[name])
		if _, after, ok := strings.Cut(string(content), "InhibitDelayMaxSec="); err == nil && ok && name > last {
			value, _, _ := strings.Cut(after, "\n")
			seconds, err := strconv.Atoi(value)
			if err != nil {
				b.t.Errorf("%s: %v", names[name], err)
			}
			last, b.limit = name, time.Duration(seconds)*time.Second
		}
	}
}

// client is one connection.
type client struct {
	bus  *Bus
	conn *net.UnixConn
	pid  uint32
}

// peer returns the process at the other end; 0 is not known.
func peer(conn *net.UnixConn) (pid uint32) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		if u, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = uint32(u.Pid)
		}
	})
	return pid
}

// serve does the handshake (D-Bus specification, authentication protocol), and
// then answers.
func (c *client) serve() {
	defer c.conn.Close()
	in := bufio.NewReader(c.conn)
	if err := c.authenticate(in); err != nil {
		return
	}
	for {
		msg, err := dbus.DecodeMessage(in)
		if err != nil {
			return
		}
		c.bus.answer(c, msg)
	}
}

func (c *client) authenticate(in *bufio.Reader) error {
	if nul, err := in.ReadByte(); err != nil || nul != 0 {
		return errors.New("no NUL byte")
	}
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return err
		}
		c.bus.mu.Lock()
		hang := c.bus.hang["auth"]
		c.bus.mu.Unlock()
		if hang {
			_, err := io.Copy(io.Discard, in)
			return fmt.Errorf("hangs: %w", err)
		}
		answer := ""
		switch line = strings.TrimSpace(line); {
		case line == "AUTH":
			answer = "REJECTED EXTERNAL"
		case strings.HasPrefix(line, "AUTH EXTERNAL"):
			answer = "DATA"
		case strings.HasPrefix(line, "DATA"):
			answer = "OK 0123456789abcdef0123456789abcdef"
		case line == "NEGOTIATE_UNIX_FD":
			answer = "AGREE_UNIX_FD"
		case line == "BEGIN":
			return nil
		default:
			answer = "ERROR"
		}
		if answer == "DATA" && len(line) > len("AUTH EXTERNAL") {
			answer = "OK 0123456789abcdef0123456789abcdef"
		}
		if _, err := io.WriteString(c.conn, answer+"\r\n"); err != nil {
			return err
		}
	}
}

// send writes a message, with its descriptors. What can't be sent is the
// client's end.
func (c *client) send(msg *dbus.Message) {
	if len(msg.Body) > 0 {
		msg.Headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(msg.Body...))
	}
	fds, err := msg.CountFds()
	if err == nil && fds > 0 {
		msg.Headers[dbus.FieldUnixFDs] = dbus.MakeVariant(uint32(fds))
	}
	var b bytes.Buffer
	held, err := msg.EncodeToWithFDs(&b, binary.LittleEndian)
	if err != nil {
		c.bus.t.Errorf("encode %v: %v", msg, err)
		return
	}
	var oob []byte
	if len(held) > 0 {
		oob = unix.UnixRights(held...)
	}
	if _, _, err := c.conn.WriteMsgUnix(b.Bytes(), oob, nil); err != nil {
		c.conn.Close()
	}
}
