package logind

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/godbus/dbus/v5"

	"github.com/evictd/evictd/agent/shutdown/logind/logindtest"
)

// Every user may send signals of any size, with descriptors.
func TestSignalsOfAnySize(t *testing.T) {
	bus := logindtest.New(t, t.TempDir())
	c, err := Connect(t.Context(), bus.Address())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if c.bus.SupportsUnixFDs() {
		t.Error("the connection for signals accepts descriptors")
	}
	bus.Emit(true, strings.Repeat("x", maxSignalSize))
	bus.Emit(false)
	if got := <-c.signals; len(got.Body) != 1 {
		t.Errorf("received a signal of %d elements; want the long one skipped", len(got.Body))
	}
}

// message returns a message with a body of one string.
func message(t testing.TB, kind dbus.Type, order binary.ByteOrder, text string) []byte {
	t.Helper()
	headers := map[dbus.HeaderField]dbus.Variant{
		dbus.FieldPath: dbus.MakeVariant(dbus.ObjectPath("/a")), dbus.FieldInterface: dbus.MakeVariant("a.b"), dbus.FieldMember: dbus.MakeVariant("C"),
		dbus.FieldReplySerial: dbus.MakeVariant(uint32(1)), dbus.FieldErrorName: dbus.MakeVariant("a.b.E"),
		dbus.FieldSignature: dbus.MakeVariant(dbus.SignatureOf(text)),
	}
	var b bytes.Buffer
	if err := (&dbus.Message{Type: kind, Headers: headers, Body: []any{text}}).EncodeTo(&b, order); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// sent is a connection that reads from Reader.
type sent struct {
	net.Conn
	io.Reader
}

func (s sent) Read(p []byte) (int, error)  { return s.Reader.Read(p) }
func (s sent) Write(p []byte) (int, error) { return len(p), nil }

func TestStream(t *testing.T) {
	for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
		signal, long := message(t, dbus.TypeSignal, order, "s"), message(t, dbus.TypeSignal, order, strings.Repeat("l", maxSignalSize))
		reply := message(t, dbus.TypeMethodReply, order, strings.Repeat("r", maxSignalSize))
		failure, call := message(t, dbus.TypeError, order, "e"), message(t, dbus.TypeMethodCall, order, "c")
		in := bytes.Join([][]byte{[]byte("OK 1\r\n"), signal, long, reply, call, failure, long, signal}, nil)
		s := &stream{Conn: sent{Reader: bytes.NewReader(in)}}
		line := make([]byte, 6)
		if _, err := io.ReadFull(s, line); err != nil || string(line) != "OK 1\r\n" {
			t.Fatalf("Read() in the handshake = %q, %v; want it unchanged", line, err)
		}
		s.Write([]byte("BEGIN"))
		got, err := io.ReadAll(s)
		if want := bytes.Join([][]byte{signal, reply, failure, signal}, nil); err != nil || !bytes.Equal(got, want) {
			t.Errorf("Read() of %v = %d bytes, %v; want the %d of two signals and two replies", order, len(got), err, len(want))
		}
	}
}

func FuzzStream(f *testing.F) {
	for _, kind := range []dbus.Type{dbus.TypeSignal, dbus.TypeMethodReply, dbus.TypeMethodCall} {
		f.Add(message(f, kind, binary.LittleEndian, "text"))
	}
	f.Add([]byte("OK\r\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		s := &stream{Conn: sent{Reader: bytes.NewReader(in)}}
		s.framed.Store(true)
		if got, _ := io.ReadAll(s); len(got) > len(in) {
			t.Errorf("read %d bytes of %d", len(got), len(in))
		}
	})
}
