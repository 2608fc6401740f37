// Package ipmi switches and reads the power of one machine through its BMC, over IPMI 2.0 (RMCP+) on UDP.
//
// Each call of a [Device] opens a session of its own and closes it, also if its context has ended; there is one
// session per BMC at a time in this process. Only chassis power down (at once, without asking the operating system)
// and power up are ever sent, each in one datagram that is never repeated: a slow BMC carries out each copy that it
// gets.
//
// A reading is accepted only from a BMC that has proven in this session that it knows the password, with cipher suite
// 17 or 3, and only from a datagram with a correct authentication code. go-ipmi checks neither that the BMC kept to
// the suite nor the code, and it panics on some malformed datagrams in a goroutine of its own, where no caller can
// recover; so datagrams pass [link] before they reach it.
//
// A call returns at the latest [closeTimeout] after its context ended, and leaves no goroutine behind. Errors have no
// secrets. BMCs with a two-key login (a K_G that is set) are not supported.
package ipmi

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/bougou/go-ipmi/pkg/client"
	"github.com/bougou/go-ipmi/pkg/command/chassis"
	"github.com/bougou/go-ipmi/pkg/types"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/fence/device"
)

// commandTimeout is the time for the answer to a control command, longer than the slowest BMC takes (10 s).
const commandTimeout = 15 * time.Second

// readTimeout and readRetries bound a request that may be sent again, as those that set up the session are. Together
// they last as long as a control command: go-ipmi repeats a request of its own in a session that is 30 s old.
const (
	readTimeout = 5 * time.Second
	readRetries = 2
)

// closeTimeout bounds the end of a session. A BMC that is slower gets the request too.
const closeTimeout = time.Second

// ErrAuthentication is in errors if the BMC does not accept the user name or the password.
var ErrAuthentication = errors.New("wrong user name or password: " +
	"correct username and password in the Secret of the method")

var errNoSession = errors.New("all sessions of the BMC are in use: end those of other clients, or wait until it ends them")

var _ device.Device = (*Device)(nil)

// Device is a machine with a BMC. It can be used concurrently.
type Device struct{ parameters }

// New returns the device of a BMC. The parameters are ip (an address or a host name), ipport (623 if absent), username
// and password; others are errors. It sends nothing.
func New(parameters map[string]string) (*Device, error) {
	p, err := parse(parameters)
	if err != nil {
		return nil, err
	}
	return &Device{p}, nil
}

// Status returns the state of the power. An answer that contradicts itself, off after a failed attempt to change the
// power, is PowerUnknown.
func (d *Device) Status(ctx context.Context) (fence.Power, error) {
	power := fence.PowerUnknown
	err := d.session(ctx, func(s *session) error {
		status, err := s.client.GetChassisStatus(s.request())
		if err != nil {
			return s.explain("get chassis status", err)
		}
		switch {
		case status.PowerIsOn:
			power = fence.PowerOn
		case status.PowerControlFault:
			return errors.New("get chassis status: the BMC says off, and that it could not change the power: check the machine")
		default:
			power = fence.PowerOff
		}
		return nil
	})
	if err != nil {
		return fence.PowerUnknown, fmt.Errorf("read power of %s: %w", d, err)
	}
	return power, nil
}

// Off switches the power off at once.
func (d *Device) Off(ctx context.Context) error {
	if err := d.control(ctx, chassis.ChassisControlPowerDown); err != nil {
		return fmt.Errorf("switch off %s: %w", d, err)
	}
	return nil
}

// On switches the power on.
func (d *Device) On(ctx context.Context) error {
	if err := d.control(ctx, chassis.ChassisControlPowerUp); err != nil {
		return fmt.Errorf("switch on %s: %w", d, err)
	}
	return nil
}

// control sends a command once. The error is device.ErrRefused if it was not sent, or if the BMC answered that it did
// not carry it out.
func (d *Device) control(ctx context.Context, command chassis.ChassisControl) error {
	sent := false
	err := d.session(ctx, func(s *session) error {
		s.client.WithTimeout(commandTimeout).WithRetry(0)
		if err := s.ctx.Err(); err != nil {
			return fmt.Errorf("before the command was sent: %w", err)
		}
		sent = true
		_, err := s.client.ChassisControl(s.request(), command)
		if err == nil {
			return nil
		}
		if refusal(err) {
			return fmt.Errorf("%w: %w", device.ErrRefused, s.explain("chassis control", err))
		}
		return fmt.Errorf("the command was sent and may be carried out: %w", s.explain("chassis control", err))
	})
	if err != nil && !sent {
		return fmt.Errorf("%w: %w", device.ErrRefused, err)
	}
	return err
}

// refusal reports whether an error is the answer of a BMC that did not carry out a command. With some completion codes
// the BMC says only that it has no answer yet, or none any more.
func refusal(err error) bool {
	var answer *types.ResponseError
	if !errors.As(err, &answer) {
		return false
	}
	switch answer.CompletionCode() {
	case types.CodeOK, // go-ipmi could not parse the answer
		types.CodeProcessTimeout,
		types.CodeCannotProvideResponse,
		types.CodeCannotExecuteDuplicatedRequest: // the network made two of one datagram
		return false
	}
	return true
}

// UUID returns the System GUID: its bytes in the order in which the BMC sends them, as hexadecimal digits in groups
// of 8, 4, 4, 4 and 12 (RFC 4122). Vendors store the UUID of the machine in different orders, so the text may differ
// in order from nodeInfo.systemUUID. It is empty if the BMC does not have the command.
func (d *Device) UUID(ctx context.Context) (string, error) {
	uuid := ""
	err := d.session(ctx, func(s *session) error {
		id, err := s.client.GetSystemGUID(s.request())
		var answer *types.ResponseError
		if errors.As(err, &answer) && answer.CompletionCode() == types.CodeInvalidCommand {
			return nil
		}
		if err != nil {
			return s.explain("get system GUID", err)
		}
		h := hex.EncodeToString(id.GUID[:])
		uuid = h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("read UUID of %s: %w", d, err)
	}
	return uuid, nil
}

// newClient returns a go-ipmi client whose datagrams pass l.
func (d *Device) newClient(l *link) (*client.Client, error) {
	c, err := client.NewClient(d.host, d.port, d.username, d.password)
	if err != nil {
		return nil, errors.New("user name is too long") // go-ipmi's error has the name
	}
	return c.WithUDPProxy(l).WithCipherSuiteID(types.CipherSuiteID17, types.CipherSuiteID3).
		WithTimeout(readTimeout).WithRetry(readRetries), nil
}
