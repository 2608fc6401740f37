package redfish

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/evictd/evictd/agent/fence/device"
)

// defaultSessions is where sessions are created with most BMCs. The service root has the link.
const defaultSessions = "/redfish/v1/SessionService/Sessions"

// errNoSession means that the BMC can't have a session more, or has none at all.
var errNoSession = errors.New("no session")

// session is one session with a BMC.
type session struct {
	ctx    context.Context
	device *Device
	reads  *http.Transport
	ended  context.Context // ends connecting
	end    context.CancelFunc
	// answered says that a request was answered.
	answered *atomic.Bool

	token string // empty without a session
	basic bool   // basic authentication
	uri   string // of the session, empty if it can't be deleted
}

// session opens a session, calls use, and deletes the session.
func (d *Device) session(ctx context.Context, use func(*session) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s := &session{ctx: ctx, device: d, answered: new(atomic.Bool)}
	s.ended, s.end = context.WithCancel(context.WithoutCancel(ctx))
	s.reads = s.transport(false)
	defer s.close()
	err := s.open()
	if err == nil {
		err = use(s)
	}
	if err = s.clean(err); err != nil && s.answered.Load() {
		return &device.AnswerError{Err: err}
	}
	return err
}

// close deletes the session on the BMC, which has few of them, also if the context has ended, and closes the
// connections. What was done is known already.
func (s *session) close() {
	defer s.reads.CloseIdleConnections()
	defer s.end()
	if s.uri == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), closeTimeout)
	defer cancel()
	// A BMC that does not get this ends the session itself after some minutes.
	_, _ = s.request(ctx, s.reads, http.MethodDelete, s.uri, nil)
}

// open logs in. The service root is read at the same time, because it needs no login and a slow BMC needs seconds for
// each request.
func (s *session) open() error {
	found := s.device.found()
	if found.systems != "" {
		return s.login(found.sessions)
	}
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	anonymous := &session{ctx: s.ctx, device: s.device, reads: s.reads, ended: s.ended, answered: s.answered}
	root := make(chan error, 1)
	go func() {
		var err error
		found, err = anonymous.root(ctx)
		root <- err
	}()
	err := s.loginOnce(defaultSessions)
	if err != nil && !errors.Is(err, errNoSession) {
		cancel()
	}
	rootErr := <-root
	if err != nil && !errors.Is(err, errNoSession) {
		return err
	}
	if isClosed(rootErr) {
		s.basic = err != nil
		found, rootErr = s.root(s.ctx)
	}
	switch {
	case rootErr != nil:
		return rootErr
	case err == nil:
		found.sessions = defaultSessions
	case s.basic, found.sessions == defaultSessions:
		s.basic = true
	default:
		if err := s.login(found.sessions); err != nil {
			return err
		}
	}
	s.device.setFound(found)
	return nil
}

// isClosed reports whether a resource is only for those who are logged in. With some BMCs the service root is.
func isClosed(err error) bool {
	var e *statusError
	return errors.As(err, &e) && (e.status == http.StatusUnauthorized || e.status == http.StatusForbidden)
}

// root reads the service root:
//
//	{"Systems": {"@odata.id": "/redfish/v1/Systems"},
//	 "Links": {"Sessions": {"@odata.id": "/redfish/v1/SessionService/Sessions"}}}
func (s *session) root(ctx context.Context) (links, error) {
	o, err := s.get(ctx, serviceRoot)
	if err != nil {
		return links{}, err
	}
	found := links{sessions: defaultSessions}
	if found.systems, err = o.reference("Systems"); err != nil {
		return links{}, fmt.Errorf("service root: %w", err)
	}
	if !o.has("Links") {
		return found, nil
	}
	inner, err := o.object("Links")
	if err == nil && inner.has("Sessions") {
		found.sessions, err = inner.reference("Sessions")
	}
	if err != nil {
		return links{}, fmt.Errorf("service root: %w", err)
	}
	return found, nil
}

// login opens a session, or begins basic authentication if there is none to be had.
func (s *session) login(sessions string) error {
	err := s.loginOnce(sessions)
	if errors.Is(err, errNoSession) {
		s.basic = true
		return nil
	}
	return err
}

// loginOnce opens a session. The error is errNoSession if basic authentication may do.
func (s *session) loginOnce(sessions string) error {
	ctx, cancel := graced(s.ctx, loginGrace)
	defer cancel()
	body, err := json.Marshal(map[string]string{"UserName": s.device.username, "Password": s.device.password})
	if err != nil {
		return err
	}
	a, err := s.request(ctx, s.reads, http.MethodPost, sessions, body)
	if err != nil {
		return err
	}
	switch a.status {
	case http.StatusOK, http.StatusCreated, http.StatusNoContent:
	default:
		return loginError(a.failure())
	}
	if s.token = a.header.Get("X-Auth-Token"); s.token == "" {
		return errors.New("log in: the BMC opened a session without a token")
	}
	s.uri = a.session()
	if err := s.ctx.Err(); err != nil {
		return fmt.Errorf("log in: %w", err)
	}
	return nil
}

// loginError returns what a refused login means.
func loginError(e *statusError) error {
	full := slices.ContainsFunc(e.ids, func(id string) bool {
		// RAC0218 is Dell's.
		return strings.HasSuffix(id, ".SessionLimitExceeded") || strings.HasSuffix(id, ".RAC0218")
	})
	wrong := slices.ContainsFunc(e.ids, func(id string) bool { return strings.HasSuffix(id, ".UnauthorizedLoginAttempt") }) // HPE
	switch {
	case full:
		return fmt.Errorf("log in: %w: %w", errNoSession, e)
	case wrong, e.status == http.StatusUnauthorized, e.status == http.StatusForbidden:
		return fmt.Errorf("log in: %w: %w", ErrAuthentication, e)
	}
	switch e.status {
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented, http.StatusServiceUnavailable:
		return fmt.Errorf("log in: %w: %w", errNoSession, e)
	}
	if redirects(e.status) { // to the path with a slash at the end, which the service root has
		return fmt.Errorf("log in: %w: %w", errNoSession, e)
	}
	return fmt.Errorf("log in: %w", e)
}

// session returns the path of the session that a reply created, empty if it has none. Only the path of the Location
// counts: HPE iLO sends a whole URI, with whatever name it has. Dell PowerVault has it in the body only.
func (r *reply) session() string {
	valid := func(uri string) bool { return checkLink(uri) == nil && strings.Contains(uri, "/Sessions/") }
	if u, err := url.Parse(r.header.Get("Location")); err == nil && valid(u.Path) {
		return u.Path
	}
	if r.err == nil {
		if o, err := parseObject(r.body); err == nil {
			if uri, err := o.text("@odata.id"); err == nil && valid(uri) {
				return uri
			}
		}
	}
	return ""
}

// authorize adds what the BMC knows the session by.
func (s *session) authorize(r *http.Request) {
	switch {
	case s.token != "":
		r.Header.Set("X-Auth-Token", s.token)
	case s.basic:
		r.SetBasicAuth(s.device.username, s.device.password)
	}
}

// system reads the machine.
func (s *session) system() (system, error) {
	found := s.device.found()
	if found.system == "" {
		collection, err := s.get(s.ctx, found.systems)
		if err != nil {
			return system{}, err
		}
		if found.system, err = collection.member(s.device.member); err != nil {
			return system{}, fmt.Errorf("read %s: %w", found.systems, err)
		}
		s.device.setFound(found)
	}
	o, err := s.get(s.ctx, found.system)
	if err != nil {
		return system{}, err
	}
	return system{found.system, o}, nil
}

// action returns the target of the reset, and the first of the types that is allowed. A BMC that does not list them
// is not asked for any: it could carry out another one.
func (s *session) action(sys system, types []string) (target, resetType string, err error) {
	const inline, info = "ResetType@Redfish.AllowableValues", "@Redfish.ActionInfo"
	action, target, err := sys.resetAction()
	if err != nil {
		return "", "", err
	}
	var allowed []string
	switch {
	case action.has(inline):
		allowed, err = action.allowed(inline)
	case action.has(info):
		var uri string
		if uri, err = action.link(info); err != nil {
			break
		}
		var o object
		if o, err = s.get(s.ctx, uri); err == nil {
			allowed, err = o.allowedInfo()
		}
	default:
		err = errors.New("the BMC does not list the types of reset that it allows")
	}
	if err == nil {
		resetType, err = choose(types, allowed)
	}
	if err != nil {
		return "", "", err
	}
	return target, resetType, nil
}

// graced returns a context that ends some time after another one.
func graced(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	c, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-time.After(grace):
			cancel()
		case <-c.Done():
		}
	})
	return c, func() { stop(); cancel() }
}

// cleanError is an error whose text has no secrets, in one bounded line. A BMC may put into its answer what it wants.
type cleanError struct {
	text string
	err  error
}

func (e *cleanError) Error() string { return e.text }
func (e *cleanError) Unwrap() error { return e.err }

// clean removes the secrets of a session from an error.
func (s *session) clean(err error) error {
	const longest, shortest = 1024, 4
	if err == nil {
		return nil
	}
	text := strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, err.Error())
	basic := base64.StdEncoding.EncodeToString([]byte(s.device.username + ":" + s.device.password))
	quoted := strings.Trim(strconv.QuoteToASCII(s.device.password), `"`)
	for _, secret := range []string{basic, s.device.password, quoted, s.token} {
		if len(secret) >= shortest {
			text = strings.ReplaceAll(text, secret, "***")
		}
	}
	if len(text) > longest {
		text = strings.ToValidUTF8(text[:longest], "") + "…"
	}
	return &cleanError{text, err}
}
