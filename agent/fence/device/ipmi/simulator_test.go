package ipmi

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/fence/device"
	"github.com/evictd/evictd/tests/bmc"
)

// simulator starts ipmi_sim and a Device for it. It skips the test if ipmi_sim is missing.
func simulator(t *testing.T, o bmc.Options) (*bmc.Simulator, *Device) {
	t.Helper()
	o.Dir = t.TempDir()
	s, err := bmc.Start(t.Context(), o)
	if errors.Is(err, bmc.ErrMissing) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s, newDevice(t, s.Parameters())
}

func newDevice(t *testing.T, parameters map[string]string) *Device {
	t.Helper()
	d, err := New(parameters)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// answered reports whether an error is one of a BMC that answered.
func answered(err error) bool {
	answer := (*device.AnswerError)(nil)
	return errors.As(err, &answer)
}

func do(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantStatus(t *testing.T, d *Device, want fence.Power) {
	t.Helper()
	if got, err := d.Status(t.Context()); got != want || err != nil {
		t.Errorf("Status = %s, %v; want %s", got, err, want)
	}
}

// wantLog compares what the machine was given.
func wantLog(t *testing.T, s *bmc.Simulator, want ...string) {
	t.Helper()
	log, err := s.Log()
	do(t, err)
	var got []string
	for _, call := range log {
		got = append(got, call.Action+" "+call.Effect)
	}
	if len(got) != len(want) {
		t.Fatalf("the machine was given %q; want %q", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("the machine was given %q; want %q", got, want)
		}
	}
}

// witness reads the power with another implementation of IPMI, if it is there.
func witness(t *testing.T, s *bmc.Simulator, want string) {
	t.Helper()
	got, err := s.Ipmitool(t.Context(), "chassis", "power", "status")
	if errors.Is(err, bmc.ErrMissing) {
		t.Log(err)
		return
	}
	if want := "Chassis Power is " + want; got != want || err != nil {
		t.Errorf("ipmitool says %q, %v; want %q", got, err, want)
	}
}

func TestPower(t *testing.T) {
	t.Parallel()
	s, d := simulator(t, bmc.Options{})
	wantStatus(t, d, fence.PowerOn)
	do(t, d.Off(t.Context()))
	wantStatus(t, d, fence.PowerOff)
	witness(t, s, "off")
	do(t, d.Off(t.Context()))
	do(t, d.On(t.Context()))
	wantStatus(t, d, fence.PowerOn)
	witness(t, s, "on")
	wantLog(t, s, "power 0 done", "power 0 done", "power 1 done")
	do(t, s.SetPower(false))
	wantStatus(t, d, fence.PowerOff)
}

func TestUUID(t *testing.T) {
	t.Parallel()
	_, d := simulator(t, bmc.Options{GUID: "0123456789abcdeffedcba9876543210"})
	if got, err := d.UUID(t.Context()); got != "01234567-89ab-cdef-fedc-ba9876543210" || err != nil {
		t.Errorf("UUID = %s, %v; want the bytes in the order in which they are sent", got, err)
	}
}

// TestIgnore: that a command was accepted says nothing about the power.
func TestIgnore(t *testing.T) {
	t.Parallel()
	s, d := simulator(t, bmc.Options{})
	do(t, s.Ignore(true))
	do(t, d.Off(t.Context()))
	wantStatus(t, d, fence.PowerOn)
	wantLog(t, s, "power 0 ignored")
}

func TestRefuse(t *testing.T) {
	t.Parallel()
	s, d := simulator(t, bmc.Options{})
	do(t, s.Refuse(true))
	if err := d.Off(t.Context()); !errors.Is(err, device.ErrRefused) {
		t.Errorf("Off = %v; want ErrRefused", err)
	}
	wantLog(t, s, "power 0 refused")
	wantStatus(t, d, fence.PowerOn)
}

// TestSlow: a BMC carries out each datagram, so it must get one.
func TestSlow(t *testing.T) {
	for _, delay := range []time.Duration{3 * time.Second, 8 * time.Second} {
		t.Run(delay.String(), func(t *testing.T) {
			t.Parallel()
			s, d := simulator(t, bmc.Options{})
			do(t, s.Delay(delay))
			do(t, d.Off(t.Context()))
			wantLog(t, s, "power 0 done")
			wantStatus(t, d, fence.PowerOff)
			do(t, s.Delay(0))
			witness(t, s, "off")
			wantLog(t, s, "power 0 done")
		})
	}
}

// TestLateOff: the machine goes off after Off has returned. The error does not say that it was not done.
func TestLateOff(t *testing.T) {
	t.Parallel()
	s, d := simulator(t, bmc.Options{})
	do(t, s.Delay(4*time.Second))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	begin := time.Now()
	err := d.Off(ctx)
	if err == nil || errors.Is(err, device.ErrRefused) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Off = %v; want that it is unknown, and the deadline", err)
	}
	if took := time.Since(begin); took > time.Second+2*closeTimeout {
		t.Errorf("Off took %s; want %s and a little", took, time.Second+closeTimeout)
	}
	wantLog(t, s)
	do(t, s.Delay(0))
	wantStatus(t, d, fence.PowerOff)
	wantLog(t, s, "power 0 done")
}

// TestFrozen: the BMC freezes between the setup of the session and the command, and carries it out when it thaws.
func TestFrozen(t *testing.T) {
	t.Parallel()
	s, _ := simulator(t, bmc.Options{})
	inSession := 0
	r := newRelay(t, s.Endpoint())
	r.toBMC = func(b []byte) [][]byte {
		if kind, _, ok := payload(b); ok && kind == payloadIPMI {
			if inSession++; inSession == 2 { // the first one sets the privilege level
				if err := s.Freeze(); err != nil {
					t.Error(err)
				}
			}
		}
		return [][]byte{b}
	}
	d := newDevice(t, r.parameters(s.Parameters()))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if err := d.Off(ctx); err == nil || errors.Is(err, device.ErrRefused) {
		t.Errorf("Off while the BMC freezes = %v; want that it is unknown", err)
	}
	if power, err := d.Status(ctx); power != fence.PowerUnknown || err == nil {
		t.Errorf("Status of a frozen BMC = %s, %v; want Unknown and an error", power, err)
	}
	wantLog(t, s)
	do(t, s.Thaw())
	wantStatus(t, d, fence.PowerOff)
	wantLog(t, s, "power 0 done")
}

// TestAway: a command that was not sent was not carried out.
func TestAway(t *testing.T) {
	t.Parallel()
	s, d := simulator(t, bmc.Options{})
	do(t, s.Freeze())
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := d.Off(ctx); !errors.Is(err, device.ErrRefused) || !errors.Is(err, context.DeadlineExceeded) || answered(err) {
		t.Errorf("Off of a frozen BMC = %v; want ErrRefused and the deadline, and no answer", err)
	}
	s.Close()
	if err := d.Off(t.Context()); !errors.Is(err, device.ErrRefused) {
		t.Errorf("Off with nothing at the port = %v; want ErrRefused", err)
	}
	if _, err := d.UUID(t.Context()); err == nil || answered(err) {
		t.Errorf("UUID with nothing at the port = %v; want an error, and no answer", err)
	}
	wantLog(t, s)
}

func TestWrongPassword(t *testing.T) {
	t.Parallel()
	s, _ := simulator(t, bmc.Options{})
	for name, parameter := range map[string]string{"password": "not-the-secret", "username": "nosuchuser"} {
		parameters := s.Parameters()
		parameters[name] = parameter
		d := newDevice(t, parameters)
		begin := time.Now()
		err := d.Off(t.Context())
		if !errors.Is(err, ErrAuthentication) || !errors.Is(err, device.ErrRefused) {
			t.Errorf("Off with a wrong %s = %v; want ErrAuthentication and ErrRefused", name, err)
		}
		if power, err := d.Status(t.Context()); power != fence.PowerUnknown || !errors.Is(err, ErrAuthentication) || !answered(err) {
			t.Errorf("Status with a wrong %s = %s, %v; want Unknown and ErrAuthentication, as an answer", name, power, err)
		}
		if took := time.Since(begin); took > readTimeout {
			t.Errorf("a wrong %s took %s", name, took)
		}
		wantNoSecret(t, err, parameter)
	}
	wantLog(t, s)
}

// TestSessions: sessions are closed, also those whose context ended.
func TestSessions(t *testing.T) {
	t.Parallel()
	s, d := simulator(t, bmc.Options{})
	for range 60 {
		if _, err := d.Status(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	witness(t, s, "on")

	r := newRelay(t, s.Endpoint())
	answers := 0
	r.toClient = func(b []byte) [][]byte {
		if kind, _, ok := payload(b); ok && kind == payloadIPMI {
			if answers++; answers%3 == 2 { // privilege level, status, end
				return nil
			}
		}
		return [][]byte{b}
	}
	d = newDevice(t, r.parameters(s.Parameters()))
	for range 60 {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if power, err := d.Status(ctx); power != fence.PowerUnknown || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Status without an answer = %s, %v; want Unknown and the deadline", power, err)
		}
		cancel()
	}
	witness(t, s, "on")
}

// TestOneSession: concurrent calls wait for each other, as long as their context allows.
func TestOneSession(t *testing.T) {
	t.Parallel()
	s, d := simulator(t, bmc.Options{})
	do(t, s.Delay(300*time.Millisecond))
	unlock, err := lock(t.Context(), d.address()) // as another session
	do(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := d.Off(ctx); !errors.Is(err, device.ErrRefused) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Off while another session is open = %v; want ErrRefused and the deadline", err)
	}
	unlock()
	errs := make(chan error)
	begin := time.Now()
	for range 5 {
		go func() {
			_, err := d.Status(t.Context())
			errs <- err
		}()
	}
	for range 5 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if took := time.Since(begin); took < 1500*time.Millisecond {
		t.Errorf("5 readings of 300 ms took %s: they were not one after the other", took)
	}
	wantLog(t, s)
}

// TestNoFreeSession: a BMC whose sessions are all in use says so, nothing is sent to the machine, and it is switched when
// sessions have ended.
func TestNoFreeSession(t *testing.T) {
	t.Parallel()
	s, d := simulator(t, bmc.Options{})
	// Other clients ask for sessions and never use them: copies of a request, each with a session ID of its own.
	r := newRelay(t, s.Endpoint())
	r.toBMC = func(b []byte) [][]byte {
		kind, _, ok := payload(b)
		if !ok || kind != payloadOpenRequest {
			return [][]byte{b}
		}
		var all [][]byte
		for i := range 80 {
			other := bytes.Clone(b)
			other[headerSize+4] ^= byte(i + 1) // the session ID of the client
			all = append(all, other)
		}
		return all
	}
	flood := func() {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		if power, err := newDevice(t, r.parameters(s.Parameters())).Status(ctx); err == nil {
			t.Fatalf("Status = %s; want an error: the copies have the session IDs of others", power)
		}
	}
	power, err := fence.PowerUnknown, error(nil)
	for begin := time.Now(); !errors.Is(err, errNoSession); power, err = d.Status(t.Context()) {
		if time.Since(begin) > 20*time.Second { // a busy machine loses datagrams, and ipmi_sim reads them late
			t.Fatalf("Status after 20 s: %s, %v; want errNoSession", power, err)
		}
		flood()
	}
	if power != fence.PowerUnknown {
		t.Errorf("Status = %s; want Unknown", power)
	}
	if err := d.Off(t.Context()); !errors.Is(err, errNoSession) || !errors.Is(err, device.ErrRefused) {
		t.Errorf("Off = %v; want errNoSession and ErrRefused", err)
	}
	if _, err := d.UUID(t.Context()); !errors.Is(err, errNoSession) {
		t.Errorf("UUID = %v; want errNoSession", err)
	}
	wantLog(t, s)
	if testing.Short() {
		return
	}
	for begin := time.Now(); ; time.Sleep(time.Second) { // ipmi_sim ends a session after 30 s
		_, err := d.Status(t.Context())
		if err == nil {
			break
		}
		if time.Since(begin) > 90*time.Second {
			t.Fatalf("Status after 90 s: %v", err)
		}
	}
	do(t, d.Off(t.Context()))
	wantLog(t, s, "power 0 done")
}
