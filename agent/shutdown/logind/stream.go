package logind

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"

	"github.com/godbus/dbus/v5"
)

// maxSignalSize is the maximum size of a signal that is read, in bytes. Signals of
// logind and of the bus have some 300.
const maxSignalSize = 4 << 10

// maxReplySize is the maximum size of a reply that is read, in bytes. Every local
// user can take inhibitors and choose their text, so logind's list can be as long
// as the bus allows (32 MiB). A usual list has fewer than 4 KiB.
const maxReplySize = 256 << 10

// stream is a connection to the bus that skips messages that only other users send:
// method calls, since evictd exports no object, and signals that are too long to be
// logind's. The bus lets every user send signals of 32 MiB, and godbus reads a
// message as a whole. A reply that is too long is a read error, which closes the
// connection and is the error of the pending call.
//
// A stream transfers no descriptors: godbus keeps those of a signal open, and every
// user may send some.
type stream struct {
	net.Conn
	framed    atomic.Bool // the text handshake is complete
	pending   []byte      // unread part of the current message's header
	remaining int64       // bytes of the current message after the header
}

// dialStream connects to a bus at an address of the form of [DefaultAddress].
func dialStream(ctx context.Context, address string) (*dbus.Conn, error) {
	path, ok := strings.CutPrefix(address, "unix:path=")
	if !ok {
		return nil, fmt.Errorf("address %q does not begin with unix:path=", address)
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	bus, err := dbus.NewConn(&stream{Conn: conn}, dbus.WithSignalHandler(dbus.NewSequentialSignalHandler()))
	if err != nil {
		conn.Close()
	}
	return bus, err
}

// Write detects the end of the handshake (D-Bus specification, authentication
// protocol): after BEGIN the bus sends messages.
func (s *stream) Write(p []byte) (int, error) {
	if bytes.HasPrefix(p, []byte("BEGIN")) {
		s.framed.Store(true)
	}
	return s.Conn.Write(p)
}

// Read continues with the current message, or with the next one that is not
// skipped.
func (s *stream) Read(p []byte) (int, error) {
	if !s.framed.Load() {
		return s.Conn.Read(p)
	}
	for len(s.pending) == 0 && s.remaining == 0 {
		if err := s.nextMessage(); err != nil {
			return 0, err
		}
	}
	if len(s.pending) > 0 {
		n := copy(p, s.pending)
		s.pending = s.pending[n:]
		return n, nil
	}
	n, err := s.Conn.Read(p[:min(int64(len(p)), s.remaining)])
	s.remaining -= int64(n)
	return n, err
}

// fixedHeader is the size of the fixed part of each message, in bytes: byte order,
// type, flags, version, length of the body, serial, and length of the header
// fields, which are padded to 8 bytes.
const fixedHeader = 16

// nextMessage reads the fixed header of the next message, and skips whole messages.
func (s *stream) nextMessage() error {
	header := make([]byte, fixedHeader)
	if _, err := io.ReadFull(s.Conn, header); err != nil {
		return err
	}
	var order binary.ByteOrder
	switch header[0] {
	case 'l':
		order = binary.LittleEndian
	case 'B':
		order = binary.BigEndian
	default:
		return errors.New("invalid byte order of a message")
	}
	fields := (int64(order.Uint32(header[12:])) + 7) &^ 7
	rest := fields + int64(order.Uint32(header[4:]))
	switch dbus.Type(header[1]) {
	case dbus.TypeMethodReply, dbus.TypeError: // of evictd's calls: the bus rejects others
		if size := fixedHeader + rest; size > maxReplySize {
			return fmt.Errorf("reply of %d bytes is longer than %d", size, maxReplySize)
		}
	case dbus.TypeSignal:
		if fixedHeader+rest <= maxSignalSize {
			break
		}
		fallthrough
	default:
		_, err := io.CopyN(io.Discard, s.Conn, rest)
		return err
	}
	s.pending, s.remaining = header, rest
	return nil
}
