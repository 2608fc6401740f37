package redfish

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/fence/device"
	"github.com/evictd/evictd/tests/bmc/redfish"
)

const (
	systemPath  = "/redfish/v1/Systems/1"
	systemsPath = "/redfish/v1/Systems"
	loginPath   = "/redfish/v1/SessionService/Sessions"
	resetPath   = systemPath + "/Actions/ComputerSystem.Reset"
)

func answer(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func redirect(status int, location string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", location)
		w.WriteHeader(status)
	}
}

// system returns the answer of a machine that is off, with a change.
func systemAnswer(old, changed string) http.HandlerFunc {
	const valid = `{"@odata.id":"/redfish/v1/Systems/1","PowerState":"Off","UUID":"` + uuid + `","Actions":` +
		`{"#ComputerSystem.Reset":{"target":"/redfish/v1/Systems/1/Actions/ComputerSystem.Reset",` +
		`"ResetType@Redfish.AllowableValues":["On","ForceOff"]}}}`
	if !strings.Contains(valid, old) {
		panic(old)
	}
	return answer(http.StatusOK, strings.Replace(valid, old, changed, 1))
}

func override(b *redfish.BMC, path string, h http.HandlerFunc) {
	b.Set(func(f *redfish.Faults) { f.Answers = map[string]http.HandlerFunc{path: h} })
}

// TestReadings: only an unambiguous answer of the right resource is off.
func TestReadings(t *testing.T) {
	t.Parallel()
	b, _ := start(t, redfish.Options{})
	long := strings.Repeat("x", 10000)
	for _, test := range []struct {
		name string
		path string
		h    http.HandlerFunc
		want fence.Power
		text string // of the error
	}{
		{"off", systemPath, systemAnswer("", ""), fence.PowerOff, ""},
		{"on", systemPath, systemAnswer("Off", "On"), fence.PowerOn, ""},
		{"powering off", systemPath, systemAnswer("Off", "PoweringOff"), fence.PowerUnknown, `PowerState is "PoweringOff", which is neither Off nor On`},
		{"powering on", systemPath, systemAnswer("Off", "PoweringOn"), fence.PowerUnknown, "PoweringOn"},
		{"paused", systemPath, systemAnswer("Off", "Paused"), fence.PowerUnknown, "Paused"},
		{"lower case", systemPath, systemAnswer("Off", "off"), fence.PowerUnknown, `"off"`},
		{"blank", systemPath, systemAnswer("Off", "Off "), fence.PowerUnknown, `"Off "`},
		{"long", systemPath, systemAnswer("Off", long), fence.PowerUnknown, "…"},
		{"number", systemPath, systemAnswer(`"Off"`, "0"), fence.PowerUnknown, "PowerState is not a string"},
		{"array", systemPath, systemAnswer(`"Off"`, `["Off"]`), fence.PowerUnknown, "PowerState is not a string"},
		{"null", systemPath, systemAnswer(`"Off"`, "null"), fence.PowerUnknown, "PowerState is missing"},
		{"another key", systemPath, systemAnswer("PowerState", "powerstate"), fence.PowerUnknown, "PowerState is missing"},
		{"a key in lower case too", systemPath, systemAnswer("{", `{"powerstate":"On","POWERSTATE":"On",`), fence.PowerOff, ""},
		{"a key twice", systemPath, systemAnswer("{", `{"PowerState":"On",`), fence.PowerUnknown, `the key "PowerState" occurs twice`},
		{"a key twice by escapes", systemPath, systemAnswer("{", `{"Power\u0053tate":"On",`), fence.PowerUnknown, "occurs twice"},
		{"another system", systemPath, systemAnswer("/redfish/v1/Systems/1", "/redfish/v1/Systems/2"), fence.PowerUnknown, "the answer is that of"},
		{"no id", systemPath, systemAnswer("@odata.id", "id"), fence.PowerUnknown, "@odata.id is missing"},
		{"text after it", systemPath, systemAnswer("{", "{}{"), fence.PowerUnknown, "more after the JSON object"},
		{"array of all", systemPath, systemAnswer("{", "[{"), fence.PowerUnknown, "not a JSON object"},
		{"nothing", systemPath, answer(http.StatusOK, ""), fence.PowerUnknown, "not a JSON object"},
		{"truncated", systemPath, answer(http.StatusOK, `{"@odata.id":"/redfish/v1/Systems/1","PowerState":"Off"`), fence.PowerUnknown, "not valid JSON"},
		{"deep", systemPath, answer(http.StatusOK, `{"a":`+strings.Repeat("[", 100000)), fence.PowerUnknown, "not valid JSON"},
		{"off in an error", systemPath, answer(http.StatusInternalServerError, `{"@odata.id":"/redfish/v1/Systems/1","PowerState":"Off"}`),
			fence.PowerUnknown, "500 Internal Server Error"},
		{"off with no content", systemPath, answer(http.StatusAccepted, `{"@odata.id":"/redfish/v1/Systems/1","PowerState":"Off"}`),
			fence.PowerUnknown, "202 Accepted"},
		{"endless", systemPath, endless, fence.PowerUnknown, "more than 1048576 bytes"},
		{"gzip", systemPath, bomb, fence.PowerUnknown, "not a JSON object"},
		{"short body", systemPath, short, fence.PowerUnknown, "unexpected EOF"},
		{"redirect to another system", systemPath, redirect(http.StatusFound, "/redfish/v1/Systems/2"), fence.PowerUnknown, "404"},
		{"redirect to another host", systemPath, redirect(http.StatusFound, "https://192.0.2.1"+systemPath), fence.PowerUnknown,
			"which is not the path of a resource of this BMC"},
		{"redirect without TLS", systemPath, redirect(http.StatusFound, "http://"+newDevice(t, b.Parameters()).address()+systemPath),
			fence.PowerUnknown, "not the path"},
		{"redirect without a host", systemPath, redirect(http.StatusFound, "//192.0.2.1"+systemPath), fence.PowerUnknown, "not the path"},
		{"redirect to a file", systemPath, redirect(http.StatusFound, "file:///etc/passwd"), fence.PowerUnknown, "not the path"},
		{"redirect out of the service", systemPath, redirect(http.StatusFound, "/redfish/v1/../../login"), fence.PowerUnknown, "not the path"},
		{"endless redirects", systemPath, redirect(http.StatusFound, systemPath), fence.PowerUnknown, "more than 3 redirects"},
		{"no redirect", systemPath, redirect(http.StatusFound, ""), fence.PowerUnknown, "not the path"},
		{"systems elsewhere", "/redfish/v1", answer(200, `{"@odata.id":"/redfish/v1","Systems":{"@odata.id":"https://192.0.2.1/redfish/v1/Systems"}}`),
			fence.PowerUnknown, "not the path"},
		{"no systems", "/redfish/v1", answer(200, `{"@odata.id":"/redfish/v1"}`), fence.PowerUnknown, "Systems is missing"},
		{"systems as text", "/redfish/v1", answer(200, `{"@odata.id":"/redfish/v1","Systems":"/redfish/v1/Systems"}`), fence.PowerUnknown, "Systems: not a JSON object"},
		{"only those that are logged in", "/redfish/v1", answer(http.StatusForbidden, ""), fence.PowerUnknown, "403 Forbidden"},
		{"no member", systemsPath, answer(200, `{"@odata.id":"/redfish/v1/Systems","Members":[]}`), fence.PowerUnknown, "the BMC has no system"},
		{"member twice", systemsPath, answer(200, `{"@odata.id":"/redfish/v1/Systems","Members":[{"@odata.id":"/redfish/v1/Systems/1"},{"@odata.id":"/redfish/v1/Systems/1"}]}`),
			fence.PowerUnknown, "2 systems"},
		{"more pages", systemsPath, answer(200, `{"@odata.id":"/redfish/v1/Systems","Members":[{"@odata.id":"/redfish/v1/Systems/1"}],"Members@odata.nextLink":"/redfish/v1/Systems?$skip=1"}`),
			fence.PowerUnknown, "several pages"},
		{"more members", systemsPath, answer(200, `{"@odata.id":"/redfish/v1/Systems","Members":[{"@odata.id":"/redfish/v1/Systems/1"}],"Members@odata.count":2}`),
			fence.PowerUnknown, "not the number of members"},
		{"member elsewhere", systemsPath, answer(200, `{"@odata.id":"/redfish/v1/Systems","Members":[{"@odata.id":"//192.0.2.1/redfish/v1/Systems/1"}]}`),
			fence.PowerUnknown, "not the path"},
		{"session without a token", loginPath, answer(http.StatusCreated, "{}"), fence.PowerUnknown, "without a token"},
		{"login fails", loginPath, answer(http.StatusInternalServerError, "{}"), fence.PowerUnknown, "log in: the BMC answers 500"},
	} {
		override(b, test.path, test.h)
		d := newDevice(t, b.Parameters())
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		got, err := d.Status(ctx)
		cancel()
		if got != test.want || (err == nil) != (got != fence.PowerUnknown) || !strings.Contains(fmt.Sprint(err), test.text) {
			t.Errorf("%s: Status = %s, %v; want %s, %s", test.name, got, err, test.want, test.text)
		}
		if text := fmt.Sprint(err); len(text) > 1200 || strings.ContainsAny(text, "\n\r") {
			t.Errorf("%s: the error has %d bytes or several lines: %.300q", test.name, len(text), text)
		}
	}
	b.Set(func(f *redfish.Faults) { *f = redfish.Faults{} })
	wantNoSession(t, b)
}

func endless(w http.ResponseWriter, r *http.Request) {
	line := bytes.Repeat([]byte(" "), 1<<16)
	for r.Context().Err() == nil {
		if _, err := w.Write(line); err != nil {
			return
		}
	}
}

func bomb(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Encoding", "gzip")
	z := gzip.NewWriter(w)
	for range 64 {
		_, _ = z.Write(make([]byte, 1<<20))
	}
	_ = z.Close()
}

func short(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Length", "1000")
	_, _ = io.WriteString(w, `{"@odata.id":"/redfish/v1/Systems/1","PowerState":"Off"}`)
}

// TestUUID: an answer without a valid UUID still has the state of the power, which contradicts a proof if it is on.
func TestUUID(t *testing.T) {
	t.Parallel()
	b, _ := start(t, redfish.Options{})
	for _, test := range []struct {
		value string // in JSON
		want  string
		text  string // of the error
	}{
		{`"` + uuid + `"`, uuid, ""},
		{"null", "", ""},
		{`""`, "", ""},
		{"7", "", "UUID is not a string"},
		{`"` + strings.Repeat("a", 65) + `"`, "", "UUID has 65 characters"},
	} {
		override(b, systemPath, systemAnswer(`"`+uuid+`"`, test.value))
		d := newDevice(t, b.Parameters())
		for range 2 {
			got, err := d.UUID(t.Context())
			if got != test.want || (err == nil) != (test.text == "") || !strings.Contains(fmt.Sprint(err), test.text) {
				t.Errorf("UUID of %s = %q, %v; want %q, %s", test.value, got, err, test.want, test.text)
			}
			wantStatus(t, d, fence.PowerOff)
		}
	}
	override(b, systemPath, systemAnswer("PowerState", "Power"))
	if _, err := newDevice(t, b.Parameters()).UUID(t.Context()); err != nil {
		t.Errorf("UUID of a machine without PowerState: %v", err)
	}
}

// TestKeptUUID: the UUID of a Status is used once, and not after a Status that failed.
func TestKeptUUID(t *testing.T) {
	t.Parallel()
	b, d := start(t, redfish.Options{UUID: uuid})
	wantStatus(t, d, fence.PowerOn)
	override(b, systemPath, answer(http.StatusInternalServerError, ""))
	if _, err := d.Status(t.Context()); err == nil {
		t.Error("Status: no error")
	}
	if got, err := d.UUID(t.Context()); err == nil {
		t.Errorf("UUID after a Status that failed = %q; want an error", got)
	}
}

// TestSlowBody: a BMC that sends its answer byte by byte is given up at the end of the context.
func TestSlowBody(t *testing.T) {
	t.Parallel()
	b, d := start(t, redfish.Options{})
	override(b, systemPath, func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			_, _ = io.WriteString(w, " ")
			_ = http.NewResponseController(w).Flush()
			time.Sleep(10 * time.Millisecond)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if power, err := d.Status(ctx); power != fence.PowerUnknown || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Status = %s, %v; want Unknown, deadline exceeded", power, err)
	}
	wantNoSession(t, b)
}

// TestTargets: a reset is sent to the machine's own action only, and only if the BMC lists it as allowed.
func TestTargets(t *testing.T) {
	t.Parallel()
	b, _ := start(t, redfish.Options{})
	for _, test := range []struct{ name, old, changed, text string }{
		{"another system", "Systems/1/Actions", "Systems/2/Actions", `the target of the reset is "/redfish/v1/Systems/2/Actions/ComputerSystem.Reset"`},
		{"the BMC", "/redfish/v1/Systems/1/Actions/ComputerSystem.Reset", "/redfish/v1/Managers/1/Actions/Manager.Reset", "the target of the reset is"},
		{"another host", "/redfish/v1/Systems/1/Actions", "https://192.0.2.1/redfish/v1/Systems/1/Actions", "not the path"},
		{"up", "1/Actions/ComputerSystem.Reset", "1/Actions/../../2/Actions/ComputerSystem.Reset", "not the path"},
		{"query", "ComputerSystem.Reset\",", "ComputerSystem.Reset?x=/\",", "not the path"},
		{"no target", `"target"`, `"Target"`, "target is missing"},
		{"no action", "#ComputerSystem.Reset", "#ComputerSystem.reset", "#ComputerSystem.Reset is missing"},
		{"no actions", "Actions", "actions", "Actions is missing"},
		{"no list", "ResetType@", "ResetTypes@", "does not list the types of reset"},
		{"list as text", `["On","ForceOff"]`, `"ForceOff"`, "not an array of strings"},
		{"list of numbers", `["On","ForceOff"]`, `["ForceOff",1]`, "not an array of strings"},
		{"lower case", "ForceOff", "forceoff", "does not allow the reset ForceOff"},
		{"empty list", `["On","ForceOff"]`, `[]`, "does not allow the reset ForceOff"},
		{"info elsewhere", `"ResetType@Redfish.AllowableValues":["On","ForceOff"]`, `"@Redfish.ActionInfo":"//192.0.2.1/redfish/v1/a"`, "not the path"},
		{"info is not there", `"ResetType@Redfish.AllowableValues":["On","ForceOff"]`, `"@Redfish.ActionInfo":"/redfish/v1/Systems/1/x"`, "404"},
	} {
		override(b, systemPath, systemAnswer(test.old, test.changed))
		wantError(t, test.name+": Off", newDevice(t, b.Parameters()).Off(t.Context()), test.text, true)
	}
	for _, body := range []string{`{"Name":"x"}`, `{"Parameters":[]}`, `{"Parameters":[{"Name":"ResetType"}]}`, `{"Parameters":[{"Name":"Other","AllowableValues":["ForceOff"]}]}`} {
		b, d := start(t, redfish.Options{ActionInfo: true})
		override(b, systemPath+"/ResetActionInfo", answer(http.StatusOK, strings.Replace(body, "{", `{"@odata.id":"`+systemPath+`/ResetActionInfo",`, 1)))
		wantError(t, "Off with "+body, d.Off(t.Context()), "missing", true)
		wantResets(t, b)
	}
	wantResets(t, b)
}

// TestExecutions counts the resets that arrive when the answer is a redirect, nothing, or garbage. None is repeated.
func TestExecutions(t *testing.T) {
	t.Parallel()
	for name, h := range map[string]http.HandlerFunc{
		"redirect that keeps the method": redirect(http.StatusTemporaryRedirect, resetPath),
		"permanent redirect":             redirect(http.StatusPermanentRedirect, resetPath+"/"),
		"hang-up":                        func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"garbage": func(w http.ResponseWriter, _ *http.Request) {
			if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
				_, _ = io.WriteString(conn, "\x00\x01 not HTTP\r\n\r\n")
				_ = conn.Close()
			}
		},
		"temporary": answer(http.StatusServiceUnavailable, ""),
	} {
		b, d := start(t, redfish.Options{})
		var executed atomic.Int32
		override(b, resetPath, func(w http.ResponseWriter, r *http.Request) {
			executed.Add(1)
			h(w, r)
		})
		wantError(t, name+": Off", d.Off(t.Context()), "may be carried out", false)
		if n := executed.Load(); n != 1 {
			t.Errorf("%s: the reset arrived %d times", name, n)
		}
		wantNoSession(t, b)
	}
	// A status alone says that the BMC accepted the reset, also if its body is broken.
	for name, h := range map[string]http.HandlerFunc{"endless": endless, "short": short, "task": answer(http.StatusAccepted, "{")} {
		b, d := start(t, redfish.Options{})
		override(b, resetPath, h)
		if err := d.Off(t.Context()); err != nil {
			t.Errorf("Off with a body that is %s = %v", name, err)
		}
	}
}

// TestNotSent: if the BMC closes its port before the reset, it is known that nothing was sent.
func TestNotSent(t *testing.T) {
	t.Parallel()
	_, d := start(t, redfish.Options{})
	closed := newDevice(t, map[string]string{"ip": "127.0.0.1", "ipport": "1", "username": "a", "password": "secret"})
	wantError(t, "Off", closed.Off(t.Context()), "connection refused", true)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	wantError(t, "Off", d.Off(ended), "context canceled", true)
}

// TestSecrets: no error has the password or the token, also if the BMC repeats them.
func TestSecrets(t *testing.T) {
	t.Parallel()
	b, _ := start(t, redfish.Options{})
	password := b.Parameters()["password"]
	var tokens []string
	echo := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			token := r.Header.Get("X-Auth-Token")
			if token != "" {
				tokens = append(tokens, token)
			}
			w.WriteHeader(http.StatusBadRequest)
			_, _ = fmt.Fprintf(w, `{"error":{"code":"Base.%[1]s.%[2]s","@Message.ExtendedInfo":[{"MessageId":"Base.1.%[1]s"}],"message":"%[1]s"}}`, text, token)
		}
	}
	for _, path := range []string{loginPath, systemsPath, systemPath, resetPath} {
		override(b, path, echo(password))
		err := newDevice(t, b.Parameters()).Off(t.Context())
		if err == nil || strings.Contains(err.Error(), password) || !strings.Contains(err.Error(), "***") {
			t.Errorf("%s: Off = %v; want an error without the password", path, err)
		}
		for _, token := range tokens {
			if strings.Contains(err.Error(), token) {
				t.Errorf("%s: Off = %v: it has the token", path, err)
			}
		}
	}
	if len(tokens) == 0 {
		t.Error("no request had a token")
	}
	override(b, systemPath, systemAnswer("Off", password))
	if _, err := newDevice(t, b.Parameters()).Status(t.Context()); err == nil || strings.Contains(err.Error(), password) {
		t.Errorf("Status = %v; want an error without the password", err)
	}
}

// TestSessionURI: only a session is deleted, at this BMC.
func TestSessionURI(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ location, body, want string }{
		{"/redfish/v1/SessionService/Sessions/7", "", "/redfish/v1/SessionService/Sessions/7"},
		{"https://bmc.example.org/redfish/v1/SessionService/Sessions/admin5f/", "", "/redfish/v1/SessionService/Sessions/admin5f/"},
		{"/redfish/v1/Sessions/7", "", "/redfish/v1/Sessions/7"},
		{"", `{"@odata.id":"/redfish/v1/SessionService/Sessions/7"}`, "/redfish/v1/SessionService/Sessions/7"},
		{"/redfish/v1/Systems/1", `{"@odata.id":"/redfish/v1/Systems/1"}`, ""},
		{"/redfish/v1/SessionService/Sessions/../../Systems/1", "", ""},
		{"%", "", ""},
		{"", "[]", ""},
	} {
		r := reply{header: http.Header{"Location": {test.location}}, body: []byte(test.body)}
		if got := r.session(); got != test.want {
			t.Errorf("session(%q, %s) = %q; want %q", test.location, test.body, got, test.want)
		}
	}
}

// TestClosedRoot: a service root that is only for those who are logged in is read with the session, or the password.
func TestClosedRoot(t *testing.T) {
	t.Parallel()
	for _, noSessions := range []bool{false, true} {
		b, d := start(t, redfish.Options{})
		root := answer(http.StatusOK, `{"@odata.id":"/redfish/v1/","Systems":{"@odata.id":"/redfish/v1/Systems"}}`)
		b.Set(func(f *redfish.Faults) {
			f.NoSessions = noSessions
			f.Answers = map[string]http.HandlerFunc{"/redfish/v1": func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("X-Auth-Token") == "" && r.Header.Get("Authorization") == "" {
					w.WriteHeader(http.StatusUnauthorized)
					return
				}
				root(w, r)
			}}
		})
		wantStatus(t, d, fence.PowerOn)
		if err := d.Off(t.Context()); err != nil {
			t.Errorf("Off = %v", err)
		}
		wantResets(t, b, "1 ForceOff done")
		wantNoSession(t, b)
	}
}

// TestNoLeak: a call that is given up leaves no goroutine behind. It is not parallel to other tests, whose goroutines
// it would count.
func TestNoLeak(t *testing.T) {
	b, d := start(t, redfish.Options{})
	wantStatus(t, d, fence.PowerOn)
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections, and does not begin TLS
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	_, port, _ := net.SplitHostPort(silent.Addr().String())
	b.Freeze()
	for range 3 {
		short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		wantError(t, "Off", newDevice(t, b.Parameters(), "ipport", port).Off(short), "deadline exceeded", true)
		cancel()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if err := d.Off(ctx); !errors.Is(err, device.ErrRefused) {
			t.Errorf("Off of a BMC that does not answer = %v; want ErrRefused: it did not come so far", err)
		}
		cancel()
	}
	var stacks string
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		buffer := make([]byte, 1<<20)
		stacks = string(buffer[:runtime.Stack(buffer, true)])
		if !strings.Contains(stacks, "net/http.(*Transport)") && !strings.Contains(stacks, "net/http.(*persistConn)") && !strings.Contains(stacks, "tls.(*Dialer)") &&
			!strings.Contains(stacks, "device/redfish.(*session)") {
			return
		}
	}
	t.Errorf("goroutines are left:\n%s", stacks)
}
