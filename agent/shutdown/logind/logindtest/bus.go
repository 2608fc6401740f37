// Package logindtest is a fake system bus with logind and systemd on a real socket,
// with the methods that evictd calls. It can do what the real ones rarely do: hang,
// reply with unexpected values, stop and restart.
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

// Bus is a fake bus. Its methods are safe for concurrent use.
type Bus struct {
	t    testing.TB
	path string
	root string // root of logind's configuration

	serving sync.WaitGroup

	mu           sync.Mutex
	listener     *net.UnixListener
	clients      map[*client]bool
	locks        []*lock
	owner        string // unique name of logind
	limit        time.Duration
	preparing    bool
	ignoreConfig bool
	hang         map[string]bool
	answers      map[string][]any
	calls        map[string]int
}

// Lock is an inhibitor lock.
type Lock struct{ Who, Why, What, Mode string }

type lock struct {
	Lock
	uid  uint32
	pid  uint32
	fifo int // the fake logind's end
}

// baseLimit is logind's default of InhibitDelayMaxSec.
const baseLimit = 5 * time.Second

// initialOwner is the unique name of logind until RestartLogind.
const initialOwner = ":1.1"

// New starts a bus that runs until the end of the test, at its usual path below
// root. Its logind reads its configuration below root, too.
func New(t testing.TB, root string) *Bus {
	t.Helper()
	b := &Bus{
		t: t, path: filepath.Join(root, "run/dbus/system_bus_socket"), root: root, clients: map[*client]bool{}, owner: initialOwner, limit: baseLimit,
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

// Address returns the D-Bus address of the bus.
func (b *Bus) Address() string { return "unix:path=" + b.path }

// Start accepts connections.
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
			c := &client{bus: b, conn: conn, pid: peerPID(conn)}
			b.mu.Lock()
			if b.listener != l { // stopped in between
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

// Stop closes every connection and refuses new ones until Start.
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

// Hang makes a method never reply, or reply again; "auth" is the handshake.
func (b *Bus) Hang(method string, hang bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hang[method] = hang
}

// SetReply sets the reply of a method or property; nil restores the default.
func (b *Bus) SetReply(method string, body []any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if body == nil {
		delete(b.answers, method)
	} else {
		b.answers[method] = body
	}
}

// IgnoreConfig makes logind ignore its configuration and keep its limit.
func (b *Bus) IgnoreConfig(yes bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ignoreConfig = yes
}

// Calls returns the number of calls of a method.
func (b *Bus) Calls(method string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.calls[method]
}

// Locks returns the open locks.
func (b *Bus) Locks() []Lock {
	b.mu.Lock()
	defer b.mu.Unlock()
	var open []Lock
	for _, l := range b.openLocks() {
		open = append(open, l.Lock)
	}
	return open
}

// openLocks returns the open locks and drops those whose other end was closed.
func (b *Bus) openLocks() []*lock {
	var open []*lock
	for _, l := range b.locks {
		fds := []unix.PollFd{{Fd: int32(l.fifo), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, 0); err == nil && fds[0].Revents&unix.POLLHUP != 0 {
			unix.Close(l.fifo)
			continue
		}
		open = append(open, l)
	}
	b.locks = open
	return open
}

// SetPreparing starts or cancels a shutdown.
func (b *Bus) SetPreparing(begins bool) {
	b.mu.Lock()
	b.preparing = begins
	b.mu.Unlock()
	b.Emit(begins)
}

// Emit sends the signal PrepareForShutdown of logind with any body.
func (b *Bus) Emit(body ...any) {
	b.mu.Lock()
	owner := b.owner
	b.mu.Unlock()
	b.EmitAs(owner, body...)
}

// EmitAs sends PrepareForShutdown from another connection, as a unicast signal to
// each client.
func (b *Bus) EmitAs(sender string, body ...any) {
	b.emit(sender, "/org/freedesktop/login1", "org.freedesktop.login1.Manager", "PrepareForShutdown", body...)
}

// ForgeOwner sends from another connection that logind's name has a new owner.
func (b *Bus) ForgeOwner(sender, owner string) {
	b.emit(sender, "/org/freedesktop/DBus", "org.freedesktop.DBus", "NameOwnerChanged", "org.freedesktop.login1", "", owner)
}

// RestartLogind makes logind leave the bus and return. Its locks are lost, which
// the real logind would keep, and so is a shutdown in progress, as with the real
// one.
func (b *Bus) RestartLogind() {
	owner := func(before, now string) {
		b.mu.Lock()
		b.owner = now
		b.mu.Unlock()
		b.emit("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus", "NameOwnerChanged", "org.freedesktop.login1", before, now)
	}
	owner(initialOwner, "")
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

// Reload makes logind read its configuration.
func (b *Bus) Reload() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reload()
}

// reload reads the configuration as logind does: the last file by name counts.
func (b *Bus) reload() {
	if b.ignoreConfig {
		return
	}
	b.limit = baseLimit
	names := map[string]string{}
	for _, dir := range []string{"/usr/lib", "/run", "/etc"} { // later ones replace files of the same name
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

// peerPID returns the process at the other end; 0 if unknown.
func peerPID(conn *net.UnixConn) (pid uint32) {
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

// serve performs the handshake (D-Bus specification, authentication protocol), and
// then replies to calls.
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

// send writes a message with its descriptors. On an error it closes the connection.
func (c *client) send(msg *dbus.Message) {
	if len(msg.Body) > 0 {
		msg.Headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(msg.Body...))
	}
	fds, err := msg.CountFds()
	if err == nil && fds > 0 {
		msg.Headers[dbus.FieldUnixFDs] = dbus.MakeVariant(uint32(fds))
	}
	var b bytes.Buffer
	attached, err := msg.EncodeToWithFDs(&b, binary.LittleEndian)
	if err != nil {
		c.bus.t.Errorf("encode %v: %v", msg, err)
		return
	}
	var oob []byte
	if len(attached) > 0 {
		oob = unix.UnixRights(attached...)
	}
	if _, _, err := c.conn.WriteMsgUnix(b.Bytes(), oob, nil); err != nil {
		c.conn.Close()
	}
}
