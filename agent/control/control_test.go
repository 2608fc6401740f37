package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
)

var discard = slog.New(slog.DiscardHandler)

// daemon is a Source with fixed data.
type daemon struct {
	status   Status
	explain  func(signal.Signal) (Explanation, error)
	shutdown Shutdown
	command  func(ctx context.Context, name string) error
}

func (d *daemon) Status() Status { return d.status }

func (d *daemon) Shutdown() Shutdown { return d.shutdown }

func (d *daemon) BeginShutdown(ctx context.Context) error { return d.command(ctx, "begin") }

func (d *daemon) CancelShutdown(ctx context.Context) error { return d.command(ctx, "cancel") }

func (d *daemon) Reload(ctx context.Context) error { return d.command(ctx, "reload") }

func (d *daemon) Explain(s signal.Signal) (Explanation, error) { return d.explain(s) }

// serve runs a server on a new socket until the test ends. It fails the test if
// Serve returns an error.
func serve(t *testing.T, source Source) string {
	t.Helper()
	path := filepath.Join(socketDir(t), "evictd.sock")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- New(source, discard).Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve() = %v; want nil when its context ends", err)
		}
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("after Serve: Stat(socket) = %v; want the socket removed", err)
		}
	})
	return path
}

// socketDir returns a directory with a short path. That of t.TempDir grows with the
// test's name, and the path of a socket has at most 107 bytes.
func socketDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "evictd-control-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func TestStatusAndRecords(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	period := 0.01
	want := Status{
		Version: "v1", PID: 7, Started: now.Add(-time.Hour), At: now, Missing: List[string]{"runtime: hangs"},
		Mode: Mode{DryRun: true, Why: List[string]{"--dry-run was given"}},
		Signals: []SignalStatus{
			{Signal: signal.MemoryAvailable, Status: Observed, Thresholds: List[ThresholdStatus]{{Value: "100Mi"}}},
		},
		Conditions:    List[signal.Condition]{signal.MemoryPressure},
		Lanes:         List[Lane]{{Name: "poll", Up: true, PeriodSeconds: &period}},
		Layout:        "single",
		Filesystems:   List[Filesystem]{{Name: "nodefs", Path: "/var/lib/kubelet", AvailableBytes: new(int64(7)), ReadOnly: true, Error: "hung"}},
		Pods:          Pods{Count: 3, Eligible: 2},
		Reclaims:      List[Reclaim]{{Kind: evict.ReclaimImages, Reason: "pressure", Signal: signal.NodeFsAvailable, Removed: List[string]{"a"}, Deficit: 9, Freed: 7, TookSeconds: 1.5}},
		DryRunVictims: List[DryRunVictim]{{Pod: "default/web", UID: "w"}},
		Victims:       List[evict.Victim]{{UID: "u", Pod: "default/hog", Signal: evict.ThresholdKey{Signal: signal.MemoryAvailable}, Status: evict.Stuck}},
		Futile:        List[evict.Futility]{{Signal: signal.MemoryAvailable, Deficit: 5, Until: now}},
		Records:       List[evict.Record]{{Pod: "default/hog", Cause: "memory.available", Hard: true, Decided: now}},
		Shutdown:      Shutdown{Phase: "idle", Why: List[string]{"a kubelet"}, Groups: List[ShutdownGroup]{}},
		Config:        Config{Files: List[string]{"/etc/evictd/config.yaml"}, LoadedAt: now, Changed: List[ConfigChange]{{Field: "dryRun", After: "true"}}, NeedsRestart: List[string]{"cgroupRoot"}},
		Warnings:      List[string]{"<odd> & \x1b[2J"},
		Runtime:       Runtime{Endpoint: "unix:///run/x", Connected: true, LastSync: now},
	}
	client := NewClient(serve(t, &daemon{status: want}))
	got, err := client.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmp.Transformer("items", emptyAsNil)); diff != "" {
		t.Errorf("Status() differs (-want +got):\n%s", diff)
	}
	records, err := client.Records(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Records{Records: want.Records}, records, cmp.AllowUnexported(evict.Ranked{})); diff != "" {
		t.Errorf("Records() differs (-want +got):\n%s", diff)
	}
}

// emptyAsNil makes a list that was decoded from [] equal to a nil one.
func emptyAsNil(l List[ThresholdStatus]) []ThresholdStatus {
	if len(l) == 0 {
		return nil
	}
	return l
}

func TestExplain(t *testing.T) {
	client := NewClient(serve(t, &daemon{explain: func(s signal.Signal) (Explanation, error) {
		if s == signal.PIDAvailable {
			return Explanation{}, errors.New("the first observation is not complete yet")
		}
		return Explanation{Signal: s, Ranking: List[Candidate]{{
			Ranked: evict.Ranked{Pod: "default/hog", OverRequest: true, Usage: 5}, QoS: evict.BestEffort, Why: "because",
		}}}, nil
	}}))
	e, err := client.Explain(t.Context(), signal.NodeFsAvailable)
	if err != nil {
		t.Fatal(err)
	}
	if e.Signal != signal.NodeFsAvailable || len(e.Ranking) != 1 || e.Ranking[0].Pod != "default/hog" || e.Ranking[0].Why != "because" {
		t.Errorf("Explain(nodefs.available) = %+v; want its ranking", e)
	}
	_, err = client.Explain(t.Context(), signal.PIDAvailable)
	if want := "evictd refused the request: the first observation is not complete yet"; err == nil || err.Error() != want {
		t.Errorf("Explain(pid.available) = %v; want %q", err, want)
	}
}

// TestWire checks the JSON that scripts depend on.
func TestWire(t *testing.T) {
	explain := func(s signal.Signal) (Explanation, error) {
		if s == signal.PIDAvailable {
			return Explanation{}, errors.New("no observation")
		}
		return Explanation{Signal: s}, nil
	}
	socket := serve(t, &daemon{explain: explain, command: onlyBegin})
	const emptyExplanation = `{"at":"0001-01-01T00:00:00Z","signal":"memory.available",` +
		`"observation":{"signal":"memory.available","status":"","available":null,"capacity":null,"dryRunAdds":0,"ageSeconds":null,"thresholds":[]},` +
		`"ranking":[],"exempt":[],"notOurs":[],"oomScores":[],"notes":[]}`
	const emptyShutdown = `{"at":"0001-01-01T00:00:00Z","phase":"","manual":false,"calledOff":false,"why":[],"dryRun":false,"stopped":0,"running":0,"wouldStop":0,` +
		`"needsSeconds":0,"limitSeconds":null,"held":false,"groups":[],"current":null,"last":{"clean":null,"reason":""}}`
	const emptyStatus = `{"version":"","pid":0,"started":"0001-01-01T00:00:00Z","at":"0001-01-01T00:00:00Z","ready":false,"missing":[],"mode":{"dryRun":false,"why":[]},` +
		`"node":{"name":"","procfs":"","cgroupfs":"","cgroupVersion":""},"signals":[],"conditions":[],` +
		`"runtime":{"declaredAbsent":false,"connected":false},"lanes":[],"layout":"","filesystems":[],"pods":{"count":0,"eligible":0},` +
		`"victims":[],"wouldBeVictims":[],"futile":[],"records":[],"reclaims":[],"shutdown":` + emptyShutdown + `,"config":{"files":[],"loadedAt":"0001-01-01T00:00:00Z","changed":[],"needsRestart":[]},"warnings":[]}`
	tests := []struct {
		method, path, body string
		code               int
		want               string
	}{
		{"GET", "/v1/status", "", 200, emptyStatus},
		{"GET", "/v1/records", "", 200, `{"records":[]}`},
		{"GET", "/v1/shutdown", "", 200, emptyShutdown},
		{"POST", "/v1/shutdown/begin", "", 200, emptyShutdown},
		{"POST", "/v1/shutdown/cancel", "", 409, `{"error":"no shutdown is in progress"}`},
		{"GET", "/v1/shutdown/begin", "", 405, `{"error":"this evictd has no GET /v1/shutdown/begin"}`},
		{"POST", "/v1/shutdown", "", 405, `{"error":"this evictd has no POST /v1/shutdown"}`},
		{"POST", "/v1/shutdown/begin", "now", 413, `{"error":"a request must not have a body"}`},
		{"GET", "/v1/explain", "", 200, emptyExplanation},
		{"GET", "/v1/explain?signal=memory.available", "", 200, emptyExplanation},
		{"GET", "/v1/explain?signal=", "", 400, `{"error":"unknown signal \"\"; want one of memory.available,`},
		{"GET", "/v1/explain?signal=<disk>", "", 400, `{"error":"unknown signal \"<disk>\"; want one of memory.available, allocatableMemory.available,`},
		{"GET", "/v1/explain?signal=pid.available", "", 503, `{"error":"no observation"}`},
		{"POST", "/v1/status", "", 405, `{"error":"this evictd has no POST /v1/status"}`},
		{"DELETE", "/v1/records", "", 405, `{"error":"this evictd has no DELETE /v1/records"}`},
		{"GET", "/v2/status", "", 404, `{"error":"this evictd has no GET /v2/status"}`},
		{"GET", "/", "", 404, `{"error":"this evictd has no GET /"}`},
		{"GET", "/v1/status", "a body", 413, `{"error":"a request must not have a body"}`},
		{"GET", "/v1/explain?signal=" + strings.Repeat("x", 1<<20), "", 431, ""},
	}
	for _, tt := range tests {
		name := tt.method + " " + tt.path[:min(len(tt.path), 40)]
		c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}}}
		r, err := http.NewRequest(tt.method, "http://evictd"+tt.path, strings.NewReader(tt.body))
		if err != nil {
			t.Fatal(err)
		}
		response, err := c.Do(r)
		if err != nil {
			t.Errorf("%s = %v; want a response", name, err)
			continue
		}
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		got := strings.TrimSpace(string(body))
		if response.StatusCode != tt.code || !strings.HasPrefix(got, tt.want) {
			t.Errorf("%s = %d %s; want %d %s", name, response.StatusCode, got, tt.code, tt.want)
		}
		if allow := response.Header.Get("Allow"); (allow != "") != (tt.code == http.StatusMethodNotAllowed) {
			t.Errorf("%s = %d with the header Allow %q; want it with 405 only", name, response.StatusCode, allow)
		}
	}
}

// onlyBegin accepts the command begin and rejects all others.
func onlyBegin(_ context.Context, name string) error {
	if name == "cancel" {
		return errors.New("no shutdown is in progress")
	}
	return nil
}

func TestShutdownCommands(t *testing.T) {
	limit := 5.0
	want := Shutdown{Phase: "stopping", Manual: true, LimitSeconds: &limit, Why: List[string]{"because"}, Groups: List[ShutdownGroup]{
		{Priority: -1, TimeSeconds: 60, Pods: List[ShutdownPod]{{Pod: "default/web", Last: true, Status: "asked", GraceSeconds: 30}}},
	}}
	var heard []string
	d := &daemon{shutdown: want, command: func(ctx context.Context, name string) error {
		heard = append(heard, name)
		if _, limited := ctx.Deadline(); !limited {
			t.Errorf("%s has no deadline", name)
		}
		return onlyBegin(ctx, name)
	}}
	client := NewClient(serve(t, d))
	got, err := client.BeginShutdown(t.Context())
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("BeginShutdown() = %v, differs (-want +got):\n%s", err, diff)
	}
	if got, err := client.Shutdown(t.Context()); err != nil || got.Phase != want.Phase {
		t.Errorf("Shutdown() = %+v, %v; want the same", got, err)
	}
	if _, err := client.CancelShutdown(t.Context()); err == nil || err.Error() != "evictd refused the request: no shutdown is in progress" {
		t.Errorf("CancelShutdown() = %v; want the reason why not", err)
	}
	if want := []string{"begin", "cancel"}; !slices.Equal(heard, want) {
		t.Errorf("commands = %v; want %v", heard, want)
	}
}

// TestReload checks that the response is the configuration in force, or the errors
// in the files.
func TestReload(t *testing.T) {
	want := Config{
		Files: List[string]{"/etc/evictd/config.yaml"}, NeedsRestart: List[string]{"notification"},
		Changed: List[ConfigChange]{{Field: "maxVictims", Before: "3", After: "5"}},
	}
	var wrong error
	d := &daemon{status: Status{Config: want}, command: func(ctx context.Context, name string) error {
		if _, limited := ctx.Deadline(); !limited || name != "reload" {
			t.Errorf("command %s has a deadline: %t; want a reload with one", name, limited)
		}
		return wrong
	}}
	client := NewClient(serve(t, d))
	got, err := client.Reload(t.Context())
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("Reload() = %v, differs (-want +got):\n%s", err, diff)
	}
	wrong = errors.New("config.yaml:5: evictionHrad: unknown field\nconfig.yaml:6: dryRun: not a boolean")
	if _, err := client.Reload(t.Context()); err == nil || err.Error() != "evictd refused the request: "+wrong.Error() {
		t.Errorf("Reload() = %v; want %v", err, wrong)
	}
}

// TestServeReadsNoBody sends a request that announces a body. The server must
// respond without reading it, and close the connection.
func TestServeReadsNoBody(t *testing.T) {
	conn, err := net.Dial("unix", serve(t, &daemon{}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "GET /v1/records HTTP/1.1\r\nHost: evictd\r\nContent-Length: 1073741824\r\n\r\nx")
	answer, err := io.ReadAll(conn)
	if err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Fatal(err)
	}
	if got := string(answer); !strings.HasPrefix(got, "HTTP/1.1 413 ") || !strings.Contains(got, "Connection: close\r\n") {
		t.Errorf("response to GET with a large body = %q; want 413 and the connection closed", got)
	}
}

// TestServeEndsWhileASourceHangs checks that Serve does not wait at its end for a
// source that hangs.
func TestServeEndsWhileASourceHangs(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	defer close(release)
	path := filepath.Join(socketDir(t), "evictd.sock")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	source := &daemon{explain: func(signal.Signal) (Explanation, error) {
		close(entered)
		<-release
		return Explanation{}, nil
	}}
	go func() { done <- New(source, discard).Serve(ctx, l) }()
	answered := make(chan error, 1)
	go func() {
		_, err := NewClient(path).Explain(context.Background(), signal.MemoryAvailable)
		answered <- err
	}()
	<-entered
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Serve() = %v; want nil", err)
	}
	if err := <-answered; !errors.Is(err, ErrNoResponse) {
		t.Errorf("Explain() of a daemon that ends = %v; want %v", err, ErrNoResponse)
	}
}

func TestServeTooManyAtOnce(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	client := NewClient(serve(t, &daemon{explain: func(signal.Signal) (Explanation, error) {
		entered <- struct{}{}
		<-release
		return Explanation{}, nil
	}}))
	answers := make(chan error, maxConcurrent)
	for range maxConcurrent {
		go func() {
			_, err := client.Explain(context.Background(), signal.MemoryAvailable)
			answers <- err
		}()
	}
	for range maxConcurrent {
		<-entered
	}
	_, err := client.Status(t.Context())
	if want := "evictd refused the request: too many requests at once"; err == nil || err.Error() != want {
		t.Errorf("Status() with %d other requests in progress = %v; want %q", maxConcurrent, err, want)
	}
	close(release)
	for range maxConcurrent {
		if err := <-answers; err != nil {
			t.Errorf("Explain() = %v; want a response", err)
		}
	}
	if _, err := client.Status(t.Context()); err != nil {
		t.Errorf("Status() afterwards = %v; want a response", err)
	}
}

// TestServeReturnsListenerError checks that Serve returns an error if it ends
// before its context.
func TestServeReturnsListenerError(t *testing.T) {
	l, err := Listen(filepath.Join(socketDir(t), "evictd.sock"))
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if err := New(&daemon{}, discard).Serve(t.Context(), l); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Serve(a closed listener) = %v; want %v", err, net.ErrClosed)
	}
}

// TestServeEndsWithSilentConnection checks that a connection without a request does
// not delay the end of Serve.
func TestServeEndsWithSilentConnection(t *testing.T) {
	path := filepath.Join(socketDir(t), "evictd.sock")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- New(&daemon{}, discard).Serve(ctx, l) }()
	silent, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	// The server responds to the second after it has accepted the first.
	if _, err := NewClient(path).Status(t.Context()); err != nil {
		t.Fatal(err)
	}
	// net/http by default waits 5 s for a connection that has not sent anything.
	const atOnce = 4 * time.Second
	began := time.Now()
	cancel()
	if err := <-done; err != nil || time.Since(began) > atOnce {
		t.Errorf("Serve() ends with %v after %v; want no error, within %v", err, time.Since(began), atOnce)
	}
}
