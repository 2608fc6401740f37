package cri

import (
	"context"
	"errors"
	"net"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var (
	// ErrUnreachable says that nobody answers on the socket: it is missing, refuses
	// connections, or the connection broke. Nothing is known about the containers.
	ErrUnreachable = errors.New("container runtime not reachable")
	// ErrTimeout says that the runtime did not answer in time. A stop or removal may
	// still be carried out. Such an error is also a [context.DeadlineExceeded].
	ErrTimeout = errors.New("container runtime did not answer in time")
	// ErrUnimplemented says that this runtime does not have the call. It will not
	// have it until it is upgraded.
	ErrUnimplemented = errors.New("not implemented by the container runtime")
	// ErrNotFound says that the runtime knows no such sandbox or container. cri-dockerd
	// says so only to stops and removals: its status calls fail without a sentinel.
	ErrNotFound = errors.New("not known to the container runtime")
	// ErrMalformed says that the runtime answered with something that cannot be true.
	// A list that comes with it holds the entries that can be used.
	ErrMalformed = errors.New("malformed answer of the container runtime")
)

// callError is a failed call. It matches its kind, where it has one, and its cause.
type callError struct {
	op    string
	kind  error
	cause error
}

func (e *callError) Error() string {
	cause := e.cause.Error()
	if s, ok := status.FromError(e.cause); ok {
		cause = s.Message()
		if e.kind == nil {
			cause = s.Code().String() + ": " + cause
		}
	}
	if e.kind == nil {
		return e.op + ": " + cause
	}
	return e.op + ": " + e.kind.Error() + ": " + cause
}

func (e *callError) Unwrap() []error {
	errs := []error{e.cause}
	if e.kind != nil {
		errs = append(errs, e.kind)
	}
	if e.kind == ErrTimeout {
		errs = append(errs, context.DeadlineExceeded)
	}
	return errs
}

// callFailed turns the error of a gRPC call made under ctx into one of this
// package. gRPC reports a closed connection and a cancelled context with the same
// code, so ctx and closed tell them apart.
func callFailed(ctx context.Context, closed bool, op string, err error) error {
	e := &callError{op: op, cause: err}
	switch status.Code(err) {
	case codes.Unavailable:
		e.kind = ErrUnreachable
	case codes.DeadlineExceeded:
		e.kind = ErrTimeout
	case codes.Unimplemented:
		e.kind = ErrUnimplemented
	case codes.NotFound:
		e.kind = ErrNotFound
	case codes.Canceled:
		switch {
		case errors.Is(ctx.Err(), context.Canceled):
			e.kind = context.Canceled
		case closed:
			e.kind = net.ErrClosed
		}
	}
	return e
}
