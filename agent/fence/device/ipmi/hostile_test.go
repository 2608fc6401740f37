package ipmi

import (
	"context"
	"errors"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	ipmibmc "github.com/bougou/go-ipmi/pkg/bmc"
	"github.com/bougou/go-ipmi/pkg/hal/mock"
	"github.com/bougou/go-ipmi/pkg/handlers"
	"github.com/bougou/go-ipmi/pkg/server"
	"github.com/bougou/go-ipmi/pkg/transport/udp"
	"github.com/bougou/go-ipmi/pkg/types"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/fence/device"
	"github.com/evictd/evictd/tests/bmc"
)

// forgedOff is an answer "off" to the request Get Chassis Status of a session, neither encrypted nor authenticated. It
// is the third request: sequence number 3.
var forgedOff = []byte("\x06\x00\xff\x07\x06\x00\xa3\xa2\xa1\xa0\x02\x00\x00\x00\x0b\x00" +
	"\x81\x04\x7b\x20\x0c\x01\x00\x00\x00\x00\xd3")

// TestForged: what comes from others than the BMC is never a reading.
func TestForged(t *testing.T) {
	t.Parallel()
	s, _ := simulator(t, bmc.Options{})
	for name, change := range map[string]func(b []byte) [][]byte{
		"plain text":          func([]byte) [][]byte { return [][]byte{forgedOff} },
		"initialization flip": func(b []byte) [][]byte { b[headerSize+7] ^= 1; return [][]byte{b} }, // makes on off
		"no authentication":   func(b []byte) [][]byte { b[5] &^= payloadAuthentic; return [][]byte{b} },
		"truncated":           func(b []byte) [][]byte { return [][]byte{b[:len(b)-1], b[:headerSize], b[:5], nil} },
		"another session":     func(b []byte) [][]byte { b[6] ^= 1; return [][]byte{b} },
		"empty payload":       func(b []byte) [][]byte { b[14], b[15] = 0, 0; return [][]byte{b} },
		"large payload":       func(b []byte) [][]byte { b[14], b[15] = 255, 255; return [][]byte{b} },
		"padding":             func(b []byte) [][]byte { b[headerSize+31] ^= 0xff; return [][]byte{b} },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			r := newRelay(t, s.Endpoint())
			answers := 0
			r.toClient = func(b []byte) [][]byte {
				if kind, _, ok := payload(b); ok && kind == payloadIPMI {
					if answers++; answers == 2 {
						time.AfterFunc(200*time.Millisecond, cancel) // no other answer follows
						return change(b)
					}
				}
				return [][]byte{b}
			}
			d := newDevice(t, r.parameters(s.Parameters()))
			power, err := d.Status(ctx)
			if power != fence.PowerUnknown || err == nil || !strings.Contains(err.Error(), "dropped") {
				t.Errorf("Status = %s, %v; want Unknown, and that datagrams were dropped", power, err)
			}
		})
	}
}

// TestStray: datagrams other than the answer do no harm.
func TestStray(t *testing.T) {
	t.Parallel()
	s, _ := simulator(t, bmc.Options{})
	r := newRelay(t, s.Endpoint())
	var before []byte
	r.toClient = func(b []byte) [][]byte {
		pong := []byte{0x06, 0x00, 0xff, 0x06, 0, 0, 0x11, 0xbe}
		if kind, _, ok := payload(b); !ok || kind != payloadIPMI { // a repeated refusal would end the next attempt
			return [][]byte{nil, forgedOff, pong, b}
		}
		datagrams := [][]byte{nil, forgedOff, pong, before, b, b}
		before = b
		return datagrams
	}
	wantStatus(t, newDevice(t, r.parameters(s.Parameters())), fence.PowerOn)
}

// TestDowngrade: a BMC that does not authenticate itself is not believed, and gets no command.
func TestDowngrade(t *testing.T) {
	t.Parallel()
	s, _ := simulator(t, bmc.Options{})
	for name, offset := range map[string]int{"authentication": 16, "integrity": 24, "confidentiality": 32} {
		r := newRelay(t, s.Endpoint())
		r.toClient = func(b []byte) [][]byte {
			if kind, p, ok := payload(b); ok && kind == payloadOpenResponse && len(p) >= 36 {
				p[offset] = 0
			}
			return [][]byte{b}
		}
		d := newDevice(t, r.parameters(s.Parameters()))
		if err := d.Off(t.Context()); !errors.Is(err, errSuite) || !errors.Is(err, device.ErrRefused) {
			t.Errorf("Off without %s = %v; want errSuite and ErrRefused", name, err)
		}
	}
	wantLog(t, s)
}

// goServer starts the BMC of go-ipmi with other answers to one command.
func goServer(t *testing.T, command types.Command, data []byte, code types.CompletionCode) *Device {
	t.Helper()
	b := ipmibmc.New(ipmibmc.DeviceInfo{}, [16]byte{}, mock.New())
	user, err := b.Users.Add(2, "admin")
	do(t, err)
	user.SetPassword([]byte("secret"))
	user.Enabled = true
	user.ChannelAccess[1] = ipmibmc.UserChannelAccess{MaxPrivilege: ipmibmc.PrivilegeLevelAdministrator, Enabled: true}
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	do(t, err)
	r := handlers.NewRegistry()
	handlers.RegisterAllHandlers(r)
	r.RegisterFunc(command, func(context.Context, *handlers.HandlerContext, []byte) ([]byte, types.CompletionCode, error) {
		return data, code, nil
	})
	s := server.NewServer(b, udp.Wrap(conn), server.WithHandlerRegistry(r))
	go s.Serve(t.Context())
	t.Cleanup(func() { s.Close(); conn.Close() })
	_, port, _ := net.SplitHostPort(conn.LocalAddr().String())
	return newDevice(t, map[string]string{"ip": "127.0.0.1", "ipport": port, "username": "admin", "password": "secret"})
}

func TestStatusAnswers(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		data []byte
		code types.CompletionCode
		want fence.Power
	}{
		{"on", []byte{0x01, 0, 0}, types.CodeOK, fence.PowerOn},
		{"off", []byte{0x60, 0, 0, 0}, types.CodeOK, fence.PowerOff},
		{"off with a power control fault", []byte{0x10, 0, 0}, types.CodeOK, fence.PowerUnknown},
		{"on with a power control fault", []byte{0x11, 0, 0}, types.CodeOK, fence.PowerOn},
		{"nothing", nil, types.CodeOK, fence.PowerUnknown},
		{"one byte", []byte{0}, types.CodeOK, fence.PowerUnknown},
		{"busy", nil, types.CodeNodeBusy, fence.PowerUnknown},
		{"off in an error", []byte{0, 0, 0}, types.CodeUnspecifiedError, fence.PowerUnknown},
	} {
		d := goServer(t, types.CommandGetChassisStatus, test.data, test.code)
		if got, err := d.Status(t.Context()); got != test.want || (err == nil) != (got != fence.PowerUnknown) {
			t.Errorf("Status with the answer %s = %s, %v; want %s", test.name, got, err, test.want)
		}
	}
}

func TestControlAnswers(t *testing.T) {
	t.Parallel()
	for code, refused := range map[types.CompletionCode]bool{
		types.CodeNodeBusy:                       true,
		types.CodeNotSupported:                   true,
		types.CodeInsufficientPrivilege:          true,
		types.CodeProcessTimeout:                 false,
		types.CodeCannotProvideResponse:          false,
		types.CodeCannotExecuteDuplicatedRequest: false,
	} {
		d := goServer(t, types.CommandChassisControl, nil, code)
		if err := d.Off(t.Context()); err == nil || errors.Is(err, device.ErrRefused) != refused {
			t.Errorf("Off with completion code %#x = %v; want ErrRefused: %v", code, err, refused)
		}
	}
}

func TestNoUUID(t *testing.T) {
	t.Parallel()
	d := goServer(t, types.CommandGetSystemGUID, nil, types.CodeInvalidCommand)
	if got, err := d.UUID(t.Context()); got != "" || err != nil {
		t.Errorf("UUID of a BMC without the command = %q, %v; want none", got, err)
	}
	d = goServer(t, types.CommandGetSystemGUID, []byte{1, 2, 3}, types.CodeOK)
	if got, err := d.UUID(t.Context()); got != "" || err == nil {
		t.Errorf("UUID of 3 bytes = %q, %v; want an error", got, err)
	}
}

// TestNoLeak: a call that is given up leaves no goroutine and no lock behind. It is not parallel to other tests, whose
// goroutines it would count.
func TestNoLeak(t *testing.T) {
	s, d := simulator(t, bmc.Options{})
	do(t, s.Delay(2*time.Second))
	for _, freeze := range []bool{false, true} {
		if freeze {
			do(t, s.Freeze())
		}
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			if _, err := d.Status(ctx); err == nil {
				t.Error("Status of a BMC that does not answer: no error")
			}
			cancel()
		}
	}
	time.Sleep(50 * time.Millisecond) // go-ipmi's keep-alive goroutine ends when it runs next
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	if strings.Contains(string(stacks), "go-ipmi") {
		t.Errorf("goroutines of go-ipmi are left:\n%s", stacks)
	}
	locks.Lock()
	defer locks.Unlock()
	if n := len(locks.byAddress); n != 0 {
		t.Errorf("%d locks are left", n)
	}
}
