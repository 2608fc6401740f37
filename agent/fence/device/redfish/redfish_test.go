package redfish

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/fence/device"
	"github.com/evictd/evictd/tests/bmc/redfish"
)

const uuid = "A1234567-89AB-CDEF-A123-456789ABCDEF"

func start(t *testing.T, o redfish.Options) (*redfish.BMC, *Device) {
	t.Helper()
	b, err := redfish.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b, newDevice(t, b.Parameters())
}

// newDevice returns a device; changes are pairs of key and value, "-" removes the key.
func newDevice(t *testing.T, parameters map[string]string, changes ...string) *Device {
	t.Helper()
	m := maps.Clone(parameters)
	for pair := range slices.Chunk(changes, 2) {
		m[pair[0]] = pair[1]
	}
	maps.DeleteFunc(m, func(_, value string) bool { return value == "-" })
	d, err := New(m)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func wantStatus(t *testing.T, d *Device, want fence.Power) {
	t.Helper()
	if got, err := d.Status(t.Context()); got != want || err != nil {
		t.Errorf("Status = %s, %v; want %s", got, err, want)
	}
}

func wantResets(t *testing.T, b *redfish.BMC, want ...string) {
	t.Helper()
	var got []string
	for _, r := range b.Resets() {
		got = append(got, r.System+" "+r.Type+" "+r.Effect)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("resets (-want +got):\n%s", diff)
	}
}

// wantNoSession checks that no session is left on the BMC.
func wantNoSession(t *testing.T, b *redfish.BMC) {
	t.Helper()
	if open, _ := b.Sessions(); open != 0 {
		t.Errorf("%d sessions are left on the BMC", open)
	}
}

func wantError(t *testing.T, operation string, err error, text string, refused bool) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) || errors.Is(err, device.ErrRefused) != refused {
		t.Errorf("%s = %v; want %q and ErrRefused: %v", operation, err, text, refused)
	}
}

// TestPower switches the power of BMCs as different vendors build them.
func TestPower(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]redfish.Options{
		"Dell":    {Systems: []string{"System.Embedded.1"}},
		"HPE":     {Slash: true},
		"OpenBMC": {Systems: []string{"system"}, ActionInfo: true},
		"TLS 1.2": {Certificate: redfish.Certificate{Version: 0x0303}},
		"TLS 1.3": {Certificate: redfish.Certificate{Version: 0x0304}},
		"ForceOn": {Allowed: []string{"ForceOn", "ForceOff"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o.UUID = uuid
			b, d := start(t, o)
			wantStatus(t, d, fence.PowerOn)
			if err := d.Off(t.Context()); err != nil {
				t.Errorf("Off = %v", err)
			}
			wantStatus(t, d, fence.PowerOff)
			if err := d.On(t.Context()); err != nil {
				t.Errorf("On = %v", err)
			}
			wantStatus(t, d, fence.PowerOn)
			for range 2 { // the one of the last Status, and one that is read
				if got, err := d.UUID(t.Context()); got != uuid || err != nil {
					t.Errorf("UUID = %q, %v; want %s", got, err, uuid)
				}
			}
			on, system := "On", "1"
			if len(o.Allowed) > 0 {
				on = o.Allowed[0]
			}
			if len(o.Systems) > 0 {
				system = o.Systems[0]
			}
			wantResets(t, b, system+" ForceOff done", system+" "+on+" done")
			wantNoSession(t, b)
			if _, logins := b.Sessions(); logins != 6 && !o.Slash {
				t.Errorf("%d logins for 6 calls", logins)
			}
		})
	}
}

// TestRequests: a slow BMC answers a reading in time, because the reading has few requests.
func TestRequests(t *testing.T) {
	t.Parallel()
	b, d := start(t, redfish.Options{UUID: uuid})
	wantStatus(t, d, fence.PowerOn)
	if _, err := d.UUID(t.Context()); err != nil {
		t.Error(err)
	}
	got := b.Requests()
	slices.Sort(got[:2]) // at the same time
	if diff := cmp.Diff([]string{
		"GET /redfish/v1/", "POST /redfish/v1/SessionService/Sessions", "GET /redfish/v1/Systems",
		"GET /redfish/v1/Systems/1", "DELETE /redfish/v1/SessionService/Sessions/1",
	}, got); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

func TestSystems(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		systems []string
		name    string
		want    string // system that is switched, or text of the error
		ok      bool
	}{
		{[]string{"a", "b"}, "b", "b", true},
		{[]string{"a"}, "a", "a", true},
		{[]string{"a", "b"}, "", `the BMC has 2 systems: set system to one of "a", "b"`, false},
		{[]string{"a", "b"}, "c", `the BMC has no system c: set system to one of "a", "b"`, false},
		{[]string{"a", "ab"}, "A", `the BMC has no system A`, false},
	} {
		b, _ := start(t, redfish.Options{Systems: test.systems})
		d := newDevice(t, b.Parameters(), "system", test.name)
		err := d.Off(t.Context())
		if test.ok {
			wantResets(t, b, test.want+" ForceOff done")
			continue
		}
		wantError(t, "Off", err, test.want, true)
		wantResets(t, b)
		answer := (*device.AnswerError)(nil)
		if power, err := d.Status(t.Context()); power != fence.PowerUnknown || !errors.As(err, &answer) {
			t.Errorf("Status = %s, %v; want Unknown and an error of an answer", power, err)
		}
		b.Close()
		if _, err := d.UUID(t.Context()); err == nil || errors.As(err, &answer) {
			t.Errorf("UUID with nothing at the port = %v; want an error, and no answer", err)
		}
	}
}

// TestAllowed: nothing but a switch that does not ask the operating system is sent, and only if the BMC lists it.
func TestAllowed(t *testing.T) {
	t.Parallel()
	for _, info := range []bool{false, true} {
		b, d := start(t, redfish.Options{ActionInfo: info, Allowed: []string{"GracefulShutdown", "ForceRestart", "PowerCycle", "Nmi"}})
		wantError(t, "Off", d.Off(t.Context()), "does not allow the reset ForceOff", true)
		wantError(t, "On", d.On(t.Context()), "does not allow the reset On or ForceOn", true)
		wantResets(t, b)
	}
}

// TestRefusal: after the answers of a BMC that did nothing it is known that nothing was done, after others it is not.
func TestRefusal(t *testing.T) {
	t.Parallel()
	b, d := start(t, redfish.Options{})
	for _, test := range []struct {
		status          int
		refused, silent bool // silent: as refused, for an answer without a Redfish error
	}{
		{301, false, false}, {303, false, false}, {307, false, false}, {308, false, false},
		{400, true, false}, {401, true, true}, {403, true, true}, {404, true, true}, {405, true, true},
		{408, false, false}, {409, false, false}, {412, true, false}, {423, false, false}, {429, true, false},
		{500, false, false}, {501, false, false}, {502, false, false}, {503, false, false}, {504, false, false},
		{201, false, false},
	} {
		for _, silent := range []bool{false, true} {
			b.Set(func(f *redfish.Faults) { f.Status, f.Silent = test.status, silent })
			before := len(b.Resets())
			want := test.refused
			if silent {
				want = test.silent
			}
			err := d.Off(t.Context())
			wantError(t, fmt.Sprintf("Off with %d", test.status), err, fmt.Sprint(test.status), want)
			if errors.Is(err, ErrAuthentication) != (test.status == 401) {
				t.Errorf("Off with %d = %v; ErrAuthentication is not right", test.status, err)
			}
			if n := len(b.Resets()) - before; n != 1 {
				t.Errorf("Off with %d was sent %d times", test.status, n)
			}
		}
	}
	wantNoSession(t, b)
}

// TestOnce: a reset whose answer does not come was carried out once, and what came of it is open.
func TestOnce(t *testing.T) {
	t.Parallel()
	b, d := start(t, redfish.Options{})
	b.Set(func(f *redfish.Faults) { f.Hangup = true })
	for range 5 {
		wantError(t, "Off", d.Off(t.Context()), "ForceOff was sent and may be carried out", false)
	}
	wantResets(t, b, slices.Repeat([]string{"1 ForceOff done"}, 5)...)
	wantNoSession(t, b)
}

// TestIgnored: success is not proof.
func TestIgnored(t *testing.T) {
	t.Parallel()
	b, d := start(t, redfish.Options{})
	b.Set(func(f *redfish.Faults) { f.Ignore = true })
	if err := d.Off(t.Context()); err != nil {
		t.Errorf("Off = %v", err)
	}
	wantStatus(t, d, fence.PowerOn)
}

// TestReturns: a machine that its power policy switches on again is read as on.
func TestReturns(t *testing.T) {
	t.Parallel()
	b, d := start(t, redfish.Options{})
	b.Set(func(f *redfish.Faults) { f.Returns = 300 * time.Millisecond })
	if err := d.Off(t.Context()); err != nil {
		t.Errorf("Off = %v", err)
	}
	wantStatus(t, d, fence.PowerOff)
	for end := time.Now().Add(10 * time.Second); !b.Power() && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	wantStatus(t, d, fence.PowerOn)
}

// TestSlow: a BMC that needs 8 s for each answer is read within the 30 s that the controller has for Status and UUID.
// One that needs 3 s is also identified and switched within the default of a minute. It got 3 requests one after
// another, so that one that needs 8 s has the time, too.
func TestSlow(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	t.Run("read", func(t *testing.T) {
		t.Parallel()
		b, d := start(t, redfish.Options{UUID: uuid})
		b.Set(func(f *redfish.Faults) { f.Delay = 8 * time.Second })
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		if got, err := d.Status(ctx); got != fence.PowerOn || err != nil {
			t.Errorf("Status = %s, %v; want on", got, err)
		}
		if got, err := d.UUID(ctx); got != uuid || err != nil {
			t.Errorf("UUID = %q, %v", got, err)
		}
	})
	t.Run("switch", func(t *testing.T) {
		t.Parallel()
		const delay = 3 * time.Second
		b, d := start(t, redfish.Options{UUID: uuid})
		b.Set(func(f *redfish.Faults) { f.Delay = delay })
		if got, err := d.UUID(t.Context()); got != uuid || err != nil {
			t.Errorf("UUID = %q, %v", got, err)
		}
		begin := time.Now()
		if err := d.Off(t.Context()); err != nil {
			t.Errorf("Off = %v", err)
		}
		if took := time.Since(begin); took > 4*delay {
			t.Errorf("Off took %s; want 3 requests one after another, and an end that is not waited for", took)
		}
		wantResets(t, b, "1 ForceOff done")
	})
}

// TestFrozen: a BMC that hangs is unknown, and an act that it got may still be carried out when it goes on.
func TestFrozen(t *testing.T) {
	t.Parallel()
	b, d := start(t, redfish.Options{})
	b.Set(func(f *redfish.Faults) { f.Delay = 100 * time.Millisecond })
	ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer cancel()
	go func() {
		for len(b.Requests()) < 4 { // root, session, systems, system; the reset follows
			time.Sleep(time.Millisecond)
		}
		time.Sleep(50 * time.Millisecond) // the BMC has passed the point where it freezes
		b.Freeze()
	}()
	wantError(t, "Off", d.Off(ctx), "may be carried out", false)
	begin := time.Now()
	short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if power, err := d.Status(short); power != fence.PowerUnknown || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Status = %s, %v; want Unknown, deadline exceeded", power, err)
	}
	if took := time.Since(begin); took > 2*time.Second+200*time.Millisecond {
		t.Errorf("Status returned %s after it began, with a deadline of 200ms", took)
	}
	wantResets(t, b)
	b.Thaw()
	for end := time.Now().Add(10 * time.Second); b.Power() && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	wantStatus(t, d, fence.PowerOff)
	wantResets(t, b, "1 ForceOff done")
}

func TestWrongPassword(t *testing.T) {
	t.Parallel()
	for _, noSessions := range []bool{false, true} {
		b, _ := start(t, redfish.Options{})
		b.Set(func(f *redfish.Faults) { f.NoSessions = noSessions })
		for key, value := range map[string]string{"password": "wrong-pass", "username": "root"} {
			_, before := b.Sessions()
			d := newDevice(t, b.Parameters(), key, value)
			err := d.Off(t.Context())
			if !errors.Is(err, ErrAuthentication) || !errors.Is(err, device.ErrRefused) {
				t.Errorf("Off with a wrong %s = %v; want ErrAuthentication and ErrRefused", key, err)
			}
			if _, logins := b.Sessions(); logins != before+1 {
				t.Errorf("%d logins with a wrong %s; want 1", logins-before, key)
			}
		}
		wantResets(t, b)
	}
}

// TestNoFreeSession: without a session the BMC gets user name and password with each request.
func TestNoFreeSession(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(f *redfish.Faults){
		"none":  func(f *redfish.Faults) { f.NoSessions = true },
		"taken": func(f *redfish.Faults) { f.Full = true },
	} {
		b, d := start(t, redfish.Options{})
		b.Set(fault)
		if err := d.Off(t.Context()); err != nil {
			t.Errorf("%s: Off = %v", name, err)
		}
		wantStatus(t, d, fence.PowerOff)
		wantResets(t, b, "1 ForceOff done")
	}
}

// TestSessionsEnd: no call leaves a session behind, also if it failed or was given up.
func TestSessionsEnd(t *testing.T) {
	t.Parallel()
	b, d := start(t, redfish.Options{Systems: []string{"a", "b"}})
	for range 10 {
		wantError(t, "Off", d.Off(t.Context()), "has 2 systems", true)
	}
	wantNoSession(t, b)
	b.Set(func(f *redfish.Faults) { f.Delay = 50 * time.Millisecond })
	for i := range 10 {
		d := newDevice(t, b.Parameters(), "system", "a")
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(10+20*i)*time.Millisecond)
		_, _ = d.Status(ctx)
		cancel()
	}
	wantNoSession(t, b)
}

func TestCertificate(t *testing.T) {
	t.Parallel()
	valid, _ := start(t, redfish.Options{})
	expired, _ := start(t, redfish.Options{Certificate: redfish.Certificate{Expired: true}})
	named, _ := start(t, redfish.Options{Certificate: redfish.Certificate{Name: "bmc.example.org"}})
	old, _ := start(t, redfish.Options{Certificate: redfish.Certificate{Version: 0x0302}})
	for _, test := range []struct {
		name    string
		bmc     *redfish.BMC
		changes []string
		ok      bool
	}{
		{"authority", valid, nil, true},
		{"another authority", valid, []string{"ssl_ca", expired.Authority()}, false},
		{"two authorities", valid, []string{"ssl_ca", expired.Authority() + "\n" + valid.Authority()}, true},
		{"those of the system", valid, []string{"ssl_ca", "-"}, false},
		{"insecure", valid, []string{"ssl_ca", "-", "ssl_insecure", "1"}, true},
		{"not insecure", valid, []string{"ssl_ca", "-", "ssl_insecure", "0"}, false},
		{"insecure with another authority", valid, []string{"ssl_ca", expired.Authority(), "ssl_insecure", "1"}, false},
		{"fingerprint", valid, []string{"ssl_ca", "-", "ssl_fingerprint", fingerprint(valid)}, true},
		{"fingerprint of another", valid, []string{"ssl_ca", "-", "ssl_fingerprint", fingerprint(named)}, false},
		{"fingerprint of another, insecure", valid, []string{"ssl_ca", "-", "ssl_fingerprint", fingerprint(named), "ssl_insecure", "1"}, false},
		{"fingerprint of another, authority", valid, []string{"ssl_fingerprint", fingerprint(named)}, false},
		{"fingerprint, another authority", valid, []string{"ssl_ca", expired.Authority(), "ssl_fingerprint", fingerprint(valid)}, false},
		{"fingerprint, authority", valid, []string{"ssl_fingerprint", fingerprint(valid)}, true},
		{"expired", expired, nil, false},
		{"expired, fingerprint", expired, []string{"ssl_ca", "-", "ssl_fingerprint", fingerprint(expired)}, true},
		{"another name", named, nil, false},
		{"TLS 1.1", old, []string{"ssl_ca", "-", "ssl_insecure", "1"}, false},
	} {
		d := newDevice(t, test.bmc.Parameters(), test.changes...)
		before := len(test.bmc.Requests())
		power, err := d.Status(t.Context())
		if test.ok {
			if power != fence.PowerOn || err != nil {
				t.Errorf("%s: Status = %s, %v; want on", test.name, power, err)
			}
			continue
		}
		if power != fence.PowerUnknown || err == nil || errors.Is(err, ErrCertificate) != (test.bmc != old) {
			t.Errorf("%s: Status = %s, %v; want Unknown and the reason", test.name, power, err)
		}
		wantError(t, test.name+": Off", d.Off(t.Context()), "", true)
		if n := len(test.bmc.Requests()) - before; n != 0 {
			t.Errorf("%s: the BMC got %d requests", test.name, n)
		}
	}
}

// TestProxy: the proxies of the environment are not used.
func TestProxy(t *testing.T) {
	for _, key := range []string{"HTTPS_PROXY", "https_proxy", "ALL_PROXY"} {
		t.Setenv(key, "http://192.0.2.1:3128")
	}
	_, d := start(t, redfish.Options{})
	s := &session{device: d}
	if s.transport(false).Proxy != nil || s.transport(true).Proxy != nil {
		t.Error("transport has a proxy") // net/http excludes the loopback address, so that Status can't show it
	}
	wantStatus(t, d, fence.PowerOn)
}
