package cri

import (
	"context"
	"errors"
	"net"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var (
	// ErrUnreachable means that the socket does not exist or refuses connections, or
	// that the connection broke. Nothing is known about the containers.
	ErrUnreachable = errors.New("container runtime not reachable")
	// ErrTimeout means that the runtime did not answer before the deadline. It may
	// still carry out a stop or removal. The error also matches
	// [context.DeadlineExceeded].
	ErrTimeout = errors.New("container runtime did not answer in time")
	// ErrUnimplemented means that this runtime does not have the call, until it is
	// upgraded.
	ErrUnimplemented = errors.New("not implemented by the container runtime")
	// ErrNotFound means that the runtime has no such sandbox or container. cri-dockerd
	// returns it only for stops and removals; its status calls fail without a sentinel.
	ErrNotFound = errors.New("not known to the container runtime")
	// ErrMalformed means that a response has impossible values. A list returned with
	// it contains the valid entries.
	ErrMalformed = errors.New("malformed answer of the container runtime")
)

// callError is the error of a call. It matches its cause, and its kind if it has one.
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

// callFailed converts the error of a gRPC call made under ctx. gRPC reports a closed
// connection and a cancelled context with the same code; ctx and closed distinguish
// them.
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
