package critest

import (
	"context"
	"fmt"
	"net"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/evictd/evictd/cri"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Flavor is a runtime whose responses the server reproduces.
type Flavor uint8

// The runtimes. CRIO and CRIDockerd follow the source code of these runtimes,
// Containerd16 and Containerd17 the responses of a running containerd.
const (
	Containerd16 Flavor = iota // no events
	Containerd17               // with events
	CRIO                       // with events; its own verbose information and cgroup names
	CRIDockerd                 // no events; verbose information has only sandbox and pid of a container
)

// Server is a CRI server on a unix socket. Its methods are safe for concurrent use.
type Server struct {
	t      testing.TB
	socket string

	mu           sync.Mutex
	flavor       Flavor
	missing      map[string]bool
	pods         []*sandbox
	byID         map[string]*container
	podsAdded    int
	faults       map[string]*Fault
	calls        []Call
	changed      chan struct{} // closed and replaced at each call and subscription
	subs         map[chan *runtimev1.ContainerEventResponse]bool
	onStop       func(id string, grace time.Duration)
	imageFs      cri.ImageFs
	images       []cri.Image
	sandboxImage string

	server  *grpc.Server // nil while down
	stopped chan struct{}
	served  chan struct{}
}

// Call is one request, recorded when it arrives.
type Call struct {
	Method string        // such as ListContainers
	ID     string        // of the sandbox or container in the request, if any
	Grace  time.Duration // of StopContainer
}

// Start starts a server that runs until the test ends. It has no pods and the flavor
// [Containerd16].
func Start(t testing.TB) *Server {
	t.Helper()
	dir := t.TempDir()
	if len(dir) > 90 {
		// A socket path has at most 107 bytes, and the name of the test is part of it.
		var err error
		if dir, err = os.MkdirTemp("", "critest"); err != nil {
			t.Fatalf("critest: %v", err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
	}
	s := &Server{
		t:       t,
		socket:  filepath.Join(dir, "cri.sock"),
		byID:    make(map[string]*container),
		faults:  make(map[string]*Fault),
		changed: make(chan struct{}),
		subs:    make(map[chan *runtimev1.ContainerEventResponse]bool),
		imageFs: cri.ImageFs{Image: []cri.Filesystem{{
			Mountpoint: "/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs",
			UsedBytes:  new(uint64(1437696)),
			InodesUsed: new(uint64(2)),
			Measured:   time.Now(),
		}}},
	}
	s.SetFlavor(Containerd16)
	t.Cleanup(s.Stop)
	s.Restart()
	return s
}

// Endpoint returns the server's endpoint, unix:///….
func (s *Server) Endpoint() string { return "unix://" + s.socket }

// SetFlavor sets the flavor of the server and resets [Server.SetImplemented].
func (s *Server) SetFlavor(f Flavor) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flavor = f
	s.missing = map[string]bool{"StreamContainers": true, "StreamPodSandboxes": true}
	if f == Containerd16 || f == CRIDockerd {
		s.missing["GetContainerEvents"] = true
	}
}

// SetImplemented sets whether the runtime has a method. A call of a method that it does
// not have fails with Unimplemented.
func (s *Server) SetImplemented(method string, has bool) {
	s.checkMethod(method)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.missing[method] = !has
}

// SetFault sets the fault of a method, instead of an earlier one.
func (s *Server) SetFault(method string, f Fault) {
	s.checkMethod(method)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults[method] = &f
}

// ClearFault removes the fault of a method. Calls that hang continue to hang.
func (s *Server) ClearFault(method string) {
	s.checkMethod(method)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.faults, method)
}

func (s *Server) checkMethod(method string) {
	if _, ok := methods[method]; !ok {
		panic("critest: no method " + method)
	}
}

// methods is the set of CRI method names.
var methods = func() map[string]struct{} {
	names := make(map[string]struct{})
	for _, desc := range []grpc.ServiceDesc{runtimev1.RuntimeService_ServiceDesc, runtimev1.ImageService_ServiceDesc} {
		for _, m := range desc.Methods {
			names[m.MethodName] = struct{}{}
		}
		for _, m := range desc.Streams {
			names[m.StreamName] = struct{}{}
		}
	}
	return names
}()

// Stop stops the server as SIGTERM stops a runtime: open calls fail, and the socket is
// removed. It does nothing if the server is stopped.
func (s *Server) Stop() { s.stop(true) }

// Crash stops the server as SIGKILL stops a runtime: the socket stays and refuses
// connections.
func (s *Server) Crash() { s.stop(false) }

func (s *Server) stop(unlink bool) {
	s.mu.Lock()
	server, stopped, served := s.server, s.stopped, s.served
	s.server = nil
	s.mu.Unlock()
	if server == nil {
		return
	}
	close(stopped)
	server.Stop()
	<-served
	if unlink {
		os.Remove(s.socket)
	}
}

// Restart starts the server on the same path, after stopping it if necessary. Pods,
// faults and recorded calls are kept.
func (s *Server) Restart() {
	s.t.Helper()
	s.Stop()
	os.Remove(s.socket)
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: s.socket, Net: "unix"})
	if err != nil {
		s.t.Fatalf("critest: %v", err)
	}
	listener.SetUnlinkOnClose(false)
	stopped, served := make(chan struct{}), make(chan struct{})
	server := grpc.NewServer(
		grpc.MaxSendMsgSize(maxMessage),
		grpc.WaitForHandlers(true),
		grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
			return s.unary(ctx, stopped, path.Base(info.FullMethod), req, handle)
		}),
		grpc.StreamInterceptor(func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
			return s.stream(srv, stream, stopped, path.Base(info.FullMethod), handle)
		}),
	)
	runtimev1.RegisterRuntimeServiceServer(server, &runtimeService{Server: s})
	runtimev1.RegisterImageServiceServer(server, &imageService{Server: s})
	s.mu.Lock()
	s.server, s.stopped, s.served = server, stopped, served
	s.mu.Unlock()
	go func() {
		defer close(served)
		server.Serve(listener)
	}()
}

// maxMessage is containerd's limit of a message, in bytes.
const maxMessage = 16 << 20

// record records a call and returns its fault, which is empty if there is none. It
// fails with Unimplemented for a method that the runtime does not have.
func (s *Server) record(method string, req any) (*Fault, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, callOf(method, req))
	s.wake()
	if s.missing[method] {
		return nil, status.Errorf(codes.Unimplemented, "method %s not implemented", method)
	}
	f := s.faults[method]
	if f == nil {
		return &Fault{}, nil
	}
	now := *f
	if f.Times > 0 {
		if f.Times--; f.Times == 0 {
			delete(s.faults, method)
		}
	}
	return &now, nil
}

func (s *Server) unary(ctx context.Context, stopped <-chan struct{}, method string, req any, handle grpc.UnaryHandler) (any, error) {
	fault, err := s.record(method, req)
	if err != nil {
		return nil, err
	}
	if !fault.AfterCall {
		if err := fault.inject(ctx, stopped); err != nil {
			return nil, err
		}
	}
	resp, err := handle(ctx, req)
	if err != nil {
		return nil, err
	}
	if fault.AfterCall {
		if err := fault.inject(ctx, stopped); err != nil {
			return nil, err
		}
	}
	if fault.Mutate != nil {
		fault.Mutate(resp)
	}
	return resp, nil
}

func (s *Server) stream(srv any, stream grpc.ServerStream, stopped <-chan struct{}, method string, handle grpc.StreamHandler) error {
	fault, err := s.record(method, nil)
	if err != nil {
		return err
	}
	if !fault.AfterCall {
		if err := fault.inject(stream.Context(), stopped); err != nil {
			return err
		}
	}
	if err := handle(srv, &mutatedStream{ServerStream: stream, mutate: fault.Mutate}); err != nil {
		return err
	}
	if fault.AfterCall {
		return fault.inject(stream.Context(), stopped)
	}
	return nil
}

type mutatedStream struct {
	grpc.ServerStream
	mutate func(any)
}

func (m *mutatedStream) SendMsg(msg any) error {
	if m.mutate != nil {
		m.mutate(msg)
	}
	return m.ServerStream.SendMsg(msg)
}

func callOf(method string, req any) Call {
	c := Call{Method: method}
	switch r := req.(type) {
	case interface{ GetContainerId() string }:
		c.ID = r.GetContainerId()
	case interface{ GetPodSandboxId() string }:
		c.ID = r.GetPodSandboxId()
	}
	if r, ok := req.(*runtimev1.StopContainerRequest); ok {
		c.Grace = time.Duration(r.GetTimeout()) * time.Second
	}
	return c
}

// Calls returns the recorded calls, in the order of arrival.
func (s *Server) Calls() []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

// ResetCalls removes the recorded calls.
func (s *Server) ResetCalls() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = nil
}

// AwaitCalls waits until n calls of a method are recorded, hanging ones included.
func (s *Server) AwaitCalls(ctx context.Context, method string, n int) error {
	s.checkMethod(method)
	return s.await(ctx, method+" calls", n, func() (seen int) {
		for _, c := range s.calls {
			if c.Method == method {
				seen++
			}
		}
		return seen
	})
}

// AwaitSubscribers waits until n clients have subscribed to events. Until then events
// may be lost, because subscriptions are not acknowledged.
func (s *Server) AwaitSubscribers(ctx context.Context, n int) error {
	return s.await(ctx, "subscribers", n, func() int { return len(s.subs) })
}

// await waits until count, called with the mutex locked, returns at least n.
func (s *Server) await(ctx context.Context, what string, n int, count func() int) error {
	for {
		s.mu.Lock()
		seen, changed := count(), s.changed
		s.mu.Unlock()
		if seen >= n {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("critest: await %d %s, saw %d: %w", n, what, seen, ctx.Err())
		}
	}
}

// wake wakes every await. The mutex must be locked.
func (s *Server) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// OnStop sets a function that is called for each running container that StopContainer
// stops, before the response, so that a test can kill a real process. StopPodSandbox
// and the removals call it with grace 0. f must not call the server.
func (s *Server) OnStop(f func(containerID string, grace time.Duration)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onStop = f
}

// SetImageFs sets the response of ImageFsInfo.
func (s *Server) SetImageFs(fs cri.ImageFs) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.imageFs = fs
}
