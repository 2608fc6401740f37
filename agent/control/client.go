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
	// responseTimeout is how long a client waits for a whole response: longer than
	// the server waits for any command.
	responseTimeout = 5 * time.Second
	// maxResponse is the maximum length of a response in bytes.
	maxResponse = 16 << 20
)

// Errors for which a caller can suggest a remedy. A socket that the user may not
// open is fs.ErrPermission.
var (
	// ErrNotRunning means that no process listens on the control socket.
	ErrNotRunning = errors.New("evictd is not running")
	// ErrNoResponse means that the process that listens did not send a complete
	// response in time.
	ErrNoResponse = errors.New("evictd does not respond")
	// ErrNotEvictd means that the socket, or the response, is not evictd's.
	ErrNotEvictd = errors.New("not evictd's control socket")
)

// Client sends requests to a running evictd over its control socket.
type Client struct {
	socket string
	http   http.Client
}

// NewClient returns a client of the evictd at the socket. It does not open the
// socket: each request opens a new connection and waits up to responseTimeout.
func NewClient(socket string) *Client {
	c := &Client{socket: socket}
	c.http = http.Client{
		Timeout:       responseTimeout,
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

// Status returns the status of evictd and its node.
func (c *Client) Status(ctx context.Context) (Status, error) {
	return get[Status](ctx, c, "/v1/status")
}

// Explain returns which pods evictd would evict if the signal were low now.
func (c *Client) Explain(ctx context.Context, s signal.Signal) (Explanation, error) {
	return get[Explanation](ctx, c, "/v1/explain?signal="+url.QueryEscape(s.String()))
}

// Records returns the last evictions.
func (c *Client) Records(ctx context.Context) (Records, error) {
	return get[Records](ctx, c, "/v1/records")
}

func get[T any](ctx context.Context, c *Client, path string) (T, error) {
	return request[T](ctx, c, http.MethodGet, path)
}

func request[T any](ctx context.Context, c *Client, method, path string) (T, error) {
	var none T
	req, err := http.NewRequestWithContext(ctx, method, "http://evictd"+path, nil)
	if err != nil {
		return none, err
	}
	response, err := c.http.Do(req)
	if err != nil {
		return none, c.explain(ctx, err)
	}
	defer response.Body.Close()
	return read[T](ctx, c, response)
}

// read decodes a response, which another program than evictd may have sent.
func read[T any](ctx context.Context, c *Client, response *http.Response) (T, error) {
	var none, body T
	if kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type")); kind != "application/json" {
		return none, fmt.Errorf("%s: %w: it responded with %s and content type %q", c.socket, ErrNotEvictd, response.Status, kind)
	}
	data, err := io.ReadAll(io.LimitReader(response.Body, maxResponse+1))
	switch {
	case err != nil:
		return none, c.explain(ctx, err)
	case len(data) > maxResponse:
		return none, fmt.Errorf("%s: %w: the response is longer than %s", c.socket, ErrNotEvictd, Bytes(maxResponse))
	case response.StatusCode != http.StatusOK:
		var f failure
		if err := json.Unmarshal(data, &f); err != nil || f.Error == "" {
			return none, fmt.Errorf("%s: %w: it responded with %s", c.socket, ErrNotEvictd, response.Status)
		}
		return none, fmt.Errorf("evictd refused the request: %s", f.Error)
	}
	if err := json.Unmarshal(data, &body); err != nil {
		return none, fmt.Errorf("%s: %w: %w", c.socket, ErrNotEvictd, err)
	}
	return body, nil
}

// dial opens the socket by its absolute path. A name that begins with @ would
// otherwise be an abstract socket, which any user can create.
func (c *Client) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	path, err := filepath.Abs(c.socket)
	if err != nil {
		return nil, err
	}
	// connect(2) returns ECONNREFUSED for a file that is not a socket, too.
	if info, err := os.Stat(path); err == nil && info.Mode().Type() != fs.ModeSocket {
		return nil, errNotSocket
	}
	var d net.Dialer
	return d.DialContext(ctx, "unix", path)
}

var errNotSocket = fmt.Errorf("%w: it is not a socket", ErrNotEvictd)

// explain wraps the error of a failed request in the one for which a caller can
// suggest a remedy.
func (c *Client) explain(ctx context.Context, err error) error {
	var failed *url.Error
	if errors.As(err, &failed) {
		err = failed.Err
	}
	var timeout interface{ Timeout() bool }
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("send request to evictd: %w", ctx.Err())
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: control socket %s does not exist", ErrNotRunning, c.socket)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w: no process listens on control socket %s", ErrNotRunning, c.socket)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("open control socket %s: %w", c.socket, fs.ErrPermission)
	case errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("%w on %s within %v", ErrNoResponse, c.socket, responseTimeout)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return fmt.Errorf("%w on %s: it closed the connection", ErrNoResponse, c.socket)
	case errors.Is(err, ErrNotEvictd):
		return fmt.Errorf("%s: %w", c.socket, err)
	}
	return fmt.Errorf("%s: %w: %w", c.socket, ErrNotEvictd, err)
}
