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

// longestSignal is the longest signal that is read, in bytes. Those of logind
// and of the bus have some 300.
const longestSignal = 4 << 10

// longestReply is the longest reply that is read, in bytes. Every local user can
// take inhibitors and choose their text, so that logind's list of them can have
// as many bytes as the bus passes on (32 MiB). A usual list has fewer than 4 KiB.
const longestReply = 256 << 10

// stream is a connection to the bus that skips what only other users send:
// method calls, since evictd offers no object, and signals that are too long to
// be logind's. The bus lets every user send signals of 32 MiB, and godbus reads
// a message as a whole. A reply that is too long is a read error, which ends the
// connection and is the error of the pending call.
//
// A stream carries no descriptors: godbus keeps those of a signal open, and every
// user may send some along.
type stream struct {
	net.Conn
	framed  atomic.Bool // the handshake, in lines of text, is over
	pending []byte      // of the header of the message that is being read
	left    int64       // what comes after that, in bytes
}

// dialStream connects to a bus at an address like [DefaultAddress].
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

// Write notes the end of the handshake (D-Bus specification, authentication
// protocol): what the bus sends after BEGIN is messages.
func (s *stream) Write(p []byte) (int, error) {
	if bytes.HasPrefix(p, []byte("BEGIN")) {
		s.framed.Store(true)
	}
	return s.Conn.Write(p)
}

// Read reads on in the message that was begun, or in the next that is not
// skipped.
func (s *stream) Read(p []byte) (int, error) {
	if !s.framed.Load() {
		return s.Conn.Read(p)
	}
	for len(s.pending) == 0 && s.left == 0 {
		if err := s.next(); err != nil {
			return 0, err
		}
	}
	if len(s.pending) > 0 {
		n := copy(p, s.pending)
		s.pending = s.pending[n:]
		return n, nil
	}
	n, err := s.Conn.Read(p[:min(int64(len(p)), s.left)])
	s.left -= int64(n)
	return n, err
}

// fixedHeader is how long the part of a message is that every one begins with,
// in bytes: byte order, type, flags, version, length of the body, serial, and
// length of the header fields, which are padded to 8 bytes.
const fixedHeader = 16

// next reads the beginning of a message, and all of one that is skipped.
func (s *stream) next() error {
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
		return errors.New("the bus sends no messages")
	}
	fields := (int64(order.Uint32(header[12:])) + 7) &^ 7
	left := fields + int64(order.Uint32(header[4:]))
	switch dbus.Type(header[1]) {
	case dbus.TypeMethodReply, dbus.TypeError: // which were asked for: the bus refuses others
		if size := fixedHeader + left; size > longestReply {
			return fmt.Errorf("reply of %d bytes is longer than %d", size, longestReply)
		}
	case dbus.TypeSignal:
		if fixedHeader+left <= longestSignal {
			break
		}
		fallthrough
	default:
		_, err := io.CopyN(io.Discard, s.Conn, left)
		return err
	}
	s.pending, s.left = header, left
	return nil
}
