package cri

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	// CallTimeout bounds a call that only reads, unless its context ends earlier.
	// Runtimes normally answer within milliseconds; one that takes longer than this
	// counts as hung.
	CallTimeout = 2 * time.Second
	// StopMargin bounds a call that stops or removes, in addition to the grace
	// period. It leaves time to kill, to wait for the exit, to unmount and to tear
	// the network down.
	StopMargin = 10 * time.Second

	// maxMessage bounds a response, in bytes: the limit of the kubelet and of the
	// runtimes.
	maxMessage = 16 << 20
)

// Client is a connection to one container runtime. It is safe for concurrent use.
type Client struct {
	socket  string
	conn    *grpc.ClientConn
	runtime runtimev1.RuntimeServiceClient
	images  runtimev1.ImageServiceClient

	callTimeout time.Duration
	closeOnce   sync.Once
	closeErr    error
	closed      atomic.Bool
}

// bufferSizes are the sizes, in bytes, of the pooled buffers that answers are read into.
// gRPC's default pool has no size between 32 KiB and 1 MiB, and so takes 1 MiB for the
// 100 KiB that a list of 100 containers has.
var bufferSizes = []int{256, 4 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20}

// Connect returns a client of the runtime at endpoint (see [SocketPath]). The
// client dials at the first call, and again after the connection was lost.
func Connect(endpoint string) (*Client, error) {
	socket, err := SocketPath(endpoint)
	if err != nil {
		return nil, err
	}
	// The target is a fixed name. The socket path would become the :authority
	// header, in which some HTTP/2 servers refuse an escaped slash.
	conn, err := grpc.NewClient("passthrough:///localhost",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx, socket) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithNoProxy(),
		grpc.WithIdleTimeout(0),
		grpc.WithUserAgent("evictd"),
		experimental.WithBufferPool(mem.NewTieredBufferPool(bufferSizes...)),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithConnectParams(grpc.ConnectParams{
			// gRPC's default delays grow to two minutes. A restarted runtime must be
			// reachable again within a second.
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: CallTimeout,
		}),
	)
	if err != nil {
		return nil, fmt.Errorf("connect to container runtime: %w", err)
	}
	return &Client{
		socket:      socket,
		conn:        conn,
		runtime:     runtimev1.NewRuntimeServiceClient(conn),
		images:      runtimev1.NewImageServiceClient(conn),
		callTimeout: CallTimeout,
	}, nil
}

func dial(ctx context.Context, socket string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", socket)
}

// Close closes the connection and ends every call on it. Further calls return the
// result of the first one.
func (c *Client) Close() error {
	c.closeOnce.Do(func() {
		c.closed.Store(true)
		if err := c.conn.Close(); err != nil {
			c.closeErr = fmt.Errorf("close container runtime connection: %w", err)
		}
	})
	return c.closeErr
}

// call runs one request under ctx and timeout. If it fails with Unavailable, because
// the connection broke or gRPC is in its reconnect back-off, and the socket accepts
// connections now, call retries once, so that the first call after a restart of the
// runtime succeeds. All CRI calls in use are idempotent. If the socket does not accept
// connections, call returns the error of connect(2) (ENOENT, ECONNREFUSED) without
// waiting for gRPC.
func (c *Client) call(ctx context.Context, timeout time.Duration, op string, f func(context.Context, ...grpc.CallOption) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := f(ctx)
	if status.Code(err) == codes.Unavailable {
		probe, dialErr := dial(ctx, c.socket)
		if dialErr != nil {
			return c.dialFailed(ctx, op, dialErr)
		}
		probe.Close()
		c.conn.ResetConnectBackoff()
		err = f(ctx, grpc.WaitForReady(true))
	}
	if err != nil {
		return callFailed(ctx, c.closed.Load(), op, err)
	}
	return nil
}

// dialFailed returns the error of a failed connect(2): ErrUnreachable, or the error
// of the context if that has ended.
func (c *Client) dialFailed(ctx context.Context, op string, err error) error {
	if ctx.Err() != nil {
		return callFailed(ctx, c.closed.Load(), op, status.FromContextError(ctx.Err()).Err())
	}
	return &callError{op: op, kind: ErrUnreachable, cause: err}
}

// Version is the name and the versions of a runtime.
type Version struct {
	Runtime string // containerd, cri-o, docker
	Version string // the runtime's own, as in 1.6.20~ds1
	API     string // the CRI version, v1
}

// Version returns the name and versions of the runtime. It fails with
// ErrUnimplemented if the runtime does not have CRI v1 or its CRI plugin is disabled.
func (c *Client) Version(ctx context.Context) (Version, error) {
	const op = "runtime version"
	var resp *runtimev1.VersionResponse
	err := c.call(ctx, c.callTimeout, op, func(ctx context.Context, opts ...grpc.CallOption) (err error) {
		resp, err = c.runtime.Version(ctx, &runtimev1.VersionRequest{Version: "v1"}, opts...)
		return err
	})
	if err != nil {
		return Version{}, err
	}
	if resp.GetRuntimeName() == "" {
		return Version{}, fmt.Errorf("%s: %w: no runtime name", op, ErrMalformed)
	}
	return Version{Runtime: resp.GetRuntimeName(), Version: resp.GetRuntimeVersion(), API: resp.GetRuntimeApiVersion()}, nil
}
