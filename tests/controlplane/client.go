package controlplane

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/evictd/evictd/tests/node"
)

// The content types of a patch.
const (
	StrategicMergePatch = "application/strategic-merge-patch+json"
	MergePatch          = "application/merge-patch+json"
	JSONPatch           = "application/json-patch+json"
	ApplyPatch          = "application/apply-patch+yaml"
)

// Client makes requests to an API server as one user.
type Client struct {
	// HTTP verifies the certificate of the API server.
	HTTP    *http.Client
	address string
	token   string
}

// newHTTPClient returns a client that trusts the certificate in a file.
func newHTTPClient(ca string) (*http.Client, error) {
	pool := x509.NewCertPool()
	content, err := os.ReadFile(ca)
	if err != nil {
		return nil, fmt.Errorf("read the API server's certificate: %w", err)
	}
	if !pool.AppendCertsFromPEM(content) {
		return nil, fmt.Errorf("read the API server's certificate: %s has none", ca)
	}
	return &http.Client{
		Timeout:   node.ScaleTimeout(10 * time.Second),
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}},
	}, nil
}

// StatusError is an answer of the API server with a status code of at least 300.
type StatusError struct {
	Method, Path, Status string
	Code                 int
	Answer               []byte
}

// Error returns the request, the status and the begin of the answer.
func (e *StatusError) Error() string {
	return fmt.Sprintf("%s %s: %s: %.500s", e.Method, e.Path, e.Status, e.Answer)
}

// Request makes a request and returns the answer, with a StatusError if that has an error's status. The content type is
// that of the body.
func (c *Client) Request(ctx context.Context, method, path, contentType string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, "https://"+c.address+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := c.HTTP.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 4<<20))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= 300 {
		return answer, &StatusError{Method: method, Path: path, Status: resp.Status, Code: resp.StatusCode, Answer: answer}
	}
	return answer, nil
}

// Get reads an object or a list into out.
func (c *Client) Get(ctx context.Context, path string, out any) error {
	return c.send(ctx, http.MethodGet, path, "", nil, out)
}

// Create creates an object at the path of its resource.
func (c *Client) Create(ctx context.Context, path string, object any) error {
	return c.send(ctx, http.MethodPost, path, "application/json", object, nil)
}

// Patch patches an object. The content type says how.
func (c *Client) Patch(ctx context.Context, path, contentType string, patch any) error {
	return c.send(ctx, http.MethodPatch, path, contentType, patch, nil)
}

// Delete deletes an object with DeleteOptions.
func (c *Client) Delete(ctx context.Context, path string, options any) error {
	return c.send(ctx, http.MethodDelete, path, "application/json", options, nil)
}

func (c *Client) send(ctx context.Context, method, path, contentType string, in, out any) error {
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return fmt.Errorf("encode the body of %s %s: %w", method, path, err)
		}
	}
	answer, err := c.Request(ctx, method, path, contentType, body)
	if err != nil || out == nil {
		return err
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return fmt.Errorf("decode the answer to %s %s: %w", method, path, err)
	}
	return nil
}
