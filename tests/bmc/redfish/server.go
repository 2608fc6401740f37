// Package redfish is a BMC with a Redfish service over TLS, for tests: one or several machines, sessions of which there
// are few, and the faults of real BMCs. Its log is the truth about what was done to the machines.
package redfish

import (
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Options are what a BMC is.
type Options struct {
	// UUID is that of the machine; "" is none.
	UUID string
	// Systems are the names of the machines; one, "1", if there are none. All have the same UUID.
	Systems []string
	// Slash ends URIs with a slash, and redirects to such, as HPE iLO does.
	Slash bool
	// ActionInfo has the allowed resets in a resource of their own, as OpenBMC does.
	ActionInfo bool
	// Allowed are the resets; On, ForceOff, GracefulShutdown, ForceRestart and PowerCycle if there are none.
	Allowed []string
	// Certificate is that of the BMC.
	Certificate Certificate
	// SetPower is called after a reset that took effect.
	SetPower func(on bool)
}

// Faults are what is wrong with a BMC. They can be changed at any time.
type Faults struct {
	// Delay is the time before each answer.
	Delay time.Duration
	// Ignore accepts resets and does nothing.
	Ignore bool
	// Status is the status of the answer to a reset that is not carried out; 0 for none. Silent leaves the body out.
	Status int
	Silent bool
	// Hangup carries out resets and closes the connection instead of an answer.
	Hangup bool
	// NoSessions answers that there is no session service, Full that there are too many sessions.
	NoSessions, Full bool
	// Returns switches on again after a reset that switched off, as the power policy always-on does.
	Returns time.Duration
	// Answers replace the answers at some paths.
	Answers map[string]http.HandlerFunc
}

// Reset is a reset that the BMC got.
type Reset struct {
	// At is when it took effect, or would have.
	At     time.Time
	System string
	Type   string
	// Effect is done, ignored or refused.
	Effect string
}

// BMC is a Redfish service. Close stops it.
type BMC struct {
	options  Options
	server   *httptest.Server
	password string
	ca       []byte

	mu       sync.Mutex
	faults   Faults
	on       map[string]bool
	resets   []Reset
	sessions map[string]string // path by token
	logins   int
	requests []string
	frozen   chan struct{} // closed when the BMC goes on; nil if it is not frozen
}

// Username is the only one of a BMC.
const Username = "fence"

// Start starts a BMC whose machines are on.
func Start(o Options) (*BMC, error) {
	if len(o.Systems) == 0 {
		o.Systems = []string{"1"}
	}
	if len(o.Allowed) == 0 {
		o.Allowed = []string{"On", "ForceOff", "GracefulShutdown", "ForceRestart", "PowerCycle"}
	}
	config, ca, err := o.Certificate.config()
	if err != nil {
		return nil, fmt.Errorf("start Redfish service: %w", err)
	}
	b := &BMC{options: o, password: rand.Text(), ca: ca, on: map[string]bool{}, sessions: map[string]string{}}
	for _, name := range o.Systems {
		b.on[name] = true
	}
	b.server = httptest.NewUnstartedServer(http.HandlerFunc(b.serve))
	b.server.TLS = config
	b.server.Config.ErrorLog = log.New(io.Discard, "", 0) // refused certificates
	b.server.StartTLS()
	return b, nil
}

// Close stops the BMC. Requests that wait because of Freeze or Delay end.
func (b *BMC) Close() {
	b.Thaw()
	b.Set(func(f *Faults) { *f = Faults{} })
	b.server.CloseClientConnections()
	b.server.Close()
}

// Parameters returns the parameters of the device, with the certificate authority.
func (b *BMC) Parameters() map[string]string {
	host, port, _ := net.SplitHostPort(b.server.Listener.Addr().String())
	return map[string]string{"ip": host, "ipport": port, "username": Username, "password": b.password, "ssl_ca": b.Authority()}
}

// Authority returns the certificate authority in PEM.
func (b *BMC) Authority() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: b.ca}))
}

// Leaf returns the certificate of the BMC.
func (b *BMC) Leaf() []byte { return b.server.TLS.Certificates[0].Certificate[0] }

// Set changes the faults.
func (b *BMC) Set(change func(*Faults)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change(&b.faults)
}

// Freeze stops the BMC: it still accepts connections and requests. Thaw lets it go on, with the requests that it got.
func (b *BMC) Freeze() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.frozen == nil {
		b.frozen = make(chan struct{})
	}
}

// Thaw ends Freeze.
func (b *BMC) Thaw() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.frozen != nil {
		close(b.frozen)
		b.frozen = nil
	}
}

// Power returns whether the first machine is on.
func (b *BMC) Power() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.on[b.options.Systems[0]]
}

// SetPower changes the power of the first machine without the BMC's doing.
func (b *BMC) SetPower(on bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.on[b.options.Systems[0]] = on
}

// Resets returns the resets that the BMC got, oldest first.
func (b *BMC) Resets() []Reset {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]Reset(nil), b.resets...)
}

// Requests returns method and path of all requests, oldest first.
func (b *BMC) Requests() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string(nil), b.requests...)
}

// Sessions returns the number of open sessions, and of attempts to log in or to use a password.
func (b *BMC) Sessions() (open, logins int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.sessions), b.logins
}

func (b *BMC) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	b.mu.Lock()
	b.requests = append(b.requests, r.Method+" "+r.URL.Path)
	frozen, faults := b.frozen, b.faults
	b.mu.Unlock()
	// Checked before the wait: a client that gave up may delete the session before the request is carried out.
	authorized := b.authorized(r)
	if frozen != nil {
		<-frozen
	}
	time.Sleep(faults.Delay)
	if answer := faults.Answers[strings.TrimSuffix(r.URL.Path, "/")]; answer != nil {
		answer(w, r)
		return
	}
	if b.options.Slash && r.Method == http.MethodGet && !strings.HasSuffix(r.URL.Path, "/") {
		http.Redirect(w, r, r.URL.Path+"/", http.StatusPermanentRedirect)
		return
	}
	b.route(w, r, body, faults, authorized)
}

func (b *BMC) route(w http.ResponseWriter, r *http.Request, body []byte, f Faults, authorized bool) {
	path := strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, "/redfish/v1"), "/")
	if path == "" {
		b.answer(w, http.StatusOK, b.root())
		return
	}
	if path == "/SessionService/Sessions" && r.Method == http.MethodPost {
		b.login(w, body, f)
		return
	}
	if !authorized {
		fail(w, http.StatusUnauthorized, "Base.1.8.NoValidSession", false)
		return
	}
	name, rest, _ := strings.Cut(strings.TrimPrefix(path, "/Systems/"), "/")
	known := slices.Contains(b.options.Systems, name)
	switch {
	case strings.HasPrefix(path, "/SessionService/Sessions/") && r.Method == http.MethodDelete:
		b.logout(w, r)
	case path == "/Systems":
		b.answer(w, http.StatusOK, b.collection())
	case !known:
		fail(w, http.StatusNotFound, "Base.1.8.ResourceMissingAtURI", false)
	case rest == "":
		b.answer(w, http.StatusOK, b.system(name))
	case rest == "ResetActionInfo":
		b.answer(w, http.StatusOK, b.actionInfo(name))
	case rest == "Actions/ComputerSystem.Reset" && r.Method == http.MethodPost:
		b.reset(w, name, body, f)
	default:
		fail(w, http.StatusNotFound, "Base.1.8.ResourceMissingAtURI", false)
	}
}

func (b *BMC) authorized(r *http.Request) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if token := r.Header.Get("X-Auth-Token"); token != "" {
		return b.sessions[token] != ""
	}
	user, password, ok := r.BasicAuth()
	if ok {
		b.logins++
	}
	return ok && user == Username && password == b.password
}

func (b *BMC) login(w http.ResponseWriter, body []byte, f Faults) {
	const most = 4
	var request struct{ UserName, Password string }
	err := json.Unmarshal(body, &request)
	b.mu.Lock()
	defer b.mu.Unlock()
	if f.NoSessions {
		fail(w, http.StatusNotFound, "Base.1.8.ResourceMissingAtURI", false)
		return
	}
	b.logins++
	switch {
	case err != nil || request.UserName != Username || request.Password != b.password:
		fail(w, http.StatusUnauthorized, "Base.1.8.NoValidSession", false)
		return
	case f.Full || len(b.sessions) >= most:
		fail(w, http.StatusServiceUnavailable, "Base.1.8.SessionLimitExceeded", false)
		return
	}
	token := rand.Text()
	path := b.uri("/SessionService/Sessions/" + strconv.Itoa(b.logins))
	b.sessions[token] = path
	w.Header().Set("X-Auth-Token", token)
	w.Header().Set("Location", path)
	b.answer(w, http.StatusCreated, map[string]any{"@odata.id": path, "Id": strconv.Itoa(b.logins), "UserName": Username})
}

func (b *BMC) logout(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for token, path := range b.sessions {
		if path == r.URL.Path {
			delete(b.sessions, token)
		}
	}
	w.WriteHeader(http.StatusNoContent)
}

// reset carries out a reset.
func (b *BMC) reset(w http.ResponseWriter, name string, body []byte, f Faults) {
	var request struct{ ResetType string }
	if err := json.Unmarshal(body, &request); err != nil {
		fail(w, http.StatusBadRequest, "Base.1.8.MalformedJSON", false)
		return
	}
	b.mu.Lock()
	done := Reset{At: time.Now(), System: name, Type: request.ResetType, Effect: "done"}
	on := strings.HasSuffix(request.ResetType, "On") || request.ResetType == "ForceRestart" || request.ResetType == "PowerCycle"
	switch {
	case f.Status != 0:
		done.Effect = "refused"
	case f.Ignore:
		done.Effect = "ignored"
	default:
		b.on[name] = on
	}
	b.resets = append(b.resets, done)
	b.mu.Unlock()
	if done.Effect == "done" {
		if b.options.SetPower != nil {
			b.options.SetPower(on)
		}
		if f.Returns > 0 && !on {
			time.AfterFunc(f.Returns, func() { b.SetPower(true) })
		}
	}
	switch {
	case f.Status != 0:
		fail(w, f.Status, "Base.1.8.GeneralError", f.Silent)
	case f.Hangup:
		panic(http.ErrAbortHandler)
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}
