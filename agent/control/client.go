package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

const (
	// answerTimeout is how long a client waits for a whole answer.
	answerTimeout = 5 * time.Second
	// maxAnswer is the longest answer that a client reads, in bytes.
	maxAnswer = 16 << 20
)

// What a caller may tell a user a remedy for; a socket that may not be opened
// is fs.ErrPermission.
var (
	// ErrNotRunning: nobody listens on the control socket.
	ErrNotRunning = errors.New("evictd is not running")
	// ErrNoAnswer: somebody listens, and did not answer in time or in full.
	ErrNoAnswer = errors.New("evictd does not answer")
	// ErrNotEvictd: what listens there, or its answer, is not evictd's.
	ErrNotEvictd = errors.New("not evictd's control socket")
)

// Client asks a daemon over its control socket, or tells it what to do.
type Client struct {
	socket string
	http   http.Client
}

// NewClient returns a client of the daemon at the socket. It does not touch the
// socket: each question opens it anew and waits five seconds for the answer.
func NewClient(socket string) *Client {
	c := &Client{socket: socket}
	c.http = http.Client{
		Timeout:       answerTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DialContext:            c.dial,
			DisableKeepAlives:      true,
			DisableCompression:     true,
			MaxResponseHeaderBytes: 64 << 10,
		},
	}
	return c
}

// Status asks for the daemon's status.
func (c *Client) Status(ctx context.Context) (Status, error) {
	return get[Status](ctx, c, "/v1/status")
}

// Explain asks what would happen if the signal were low now.
func (c *Client) Explain(ctx context.Context, s signal.Signal) (Explanation, error) {
	return get[Explanation](ctx, c, "/v1/explain?signal="+url.QueryEscape(s.String()))
}

// Records asks for the last evictions.
func (c *Client) Records(ctx context.Context) (Records, error) {
	return get[Records](ctx, c, "/v1/records")
}

func get[T any](ctx context.Context, c *Client, path string) (T, error) {
	return ask[T](ctx, c, http.MethodGet, path)
}

func ask[T any](ctx context.Context, c *Client, method, path string) (T, error) {
	var none T
	request, err := http.NewRequestWithContext(ctx, method, "http://evictd"+path, nil)
	if err != nil {
		return none, err
	}
	response, err := c.http.Do(request)
	if err != nil {
		return none, c.explain(ctx, err)
	}
	defer response.Body.Close()
	return read[T](ctx, c, response)
}

// read takes an answer that may be anybody's.
func read[T any](ctx context.Context, c *Client, response *http.Response) (T, error) {
	var none, answer T
	if kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type")); kind != "application/json" {
		return none, fmt.Errorf("%s: %w: answered %s with content type %q", c.socket, ErrNotEvictd, response.Status, kind)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	switch {
	case err != nil:
		return none, c.explain(ctx, err)
	case len(body) > maxAnswer:
		return none, fmt.Errorf("%s: %w: the answer is longer than %s", c.socket, ErrNotEvictd, Bytes(maxAnswer))
	case response.StatusCode != http.StatusOK:
		var f failure
		if err := json.Unmarshal(body, &f); err != nil || f.Error == "" {
			return none, fmt.Errorf("%s: %w: answered %s", c.socket, ErrNotEvictd, response.Status)
		}
		return none, fmt.Errorf("evictd answered: %s", f.Error)
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return none, fmt.Errorf("%s: %w: %w", c.socket, ErrNotEvictd, err)
	}
	return answer, nil
}

// dial opens the socket by its path alone: a name that begins with @ would
// otherwise be an abstract socket, which anybody can take.
func (c *Client) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	path, err := filepath.Abs(c.socket)
	if err != nil {
		return nil, err
	}
	// connect(2) refuses a file that is no socket with ECONNREFUSED too.
	if info, err := os.Stat(path); err == nil && info.Mode().Type() != fs.ModeSocket {
		return nil, errNotSocket
	}
	var d net.Dialer
	return d.DialContext(ctx, "unix", path)
}

var errNotSocket = fmt.Errorf("%w: it is no socket", ErrNotEvictd)

// explain tells in which of the ways that matter to a user a request failed.
func (c *Client) explain(ctx context.Context, err error) error {
	var request *url.Error
	if errors.As(err, &request) {
		err = request.Err
	}
	var timeout interface{ Timeout() bool }
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("ask evictd: %w", ctx.Err())
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: there is no control socket %s", ErrNotRunning, c.socket)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w: nobody listens on the control socket %s", ErrNotRunning, c.socket)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("open control socket %s: %w", c.socket, fs.ErrPermission)
	case errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("%w on %s within %v", ErrNoAnswer, c.socket, answerTimeout)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return fmt.Errorf("%w on %s: the connection broke off", ErrNoAnswer, c.socket)
	case errors.Is(err, ErrNotEvictd):
		return fmt.Errorf("%s: %w", c.socket, err)
	}
	return fmt.Errorf("%s: %w: %w", c.socket, ErrNotEvictd, err)
}
