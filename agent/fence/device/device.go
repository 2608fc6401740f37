// Package device is what a fence needs of a power device: status, off, on, identity. Each call has a session of its
// own. The implementations are in directories below.
package device

import (
	"context"
	"errors"

	"github.com/evictd/evictd/agent/fence"
)

// Device is one plug of one power device, or one machine of one BMC.
type Device interface {
	// Status returns the state of the power. It never returns PowerOff without an answer of the device that says so.
	Status(ctx context.Context) (fence.Power, error)
	// Off switches the power off at once, without asking the operating system. Nil means that the device accepted it.
	// An error that is ErrRefused means that the device did not do it; any other error leaves that open.
	Off(ctx context.Context) error
	// On switches the power on; errors as of Off.
	On(ctx context.Context) error
	// UUID returns the UUID of the machine as the device reports it, empty if it has none.
	UUID(ctx context.Context) (string, error)
}

// AnswerError is an error of Status or UUID after an answer of the device, which is on and reached then.
type AnswerError struct{ Err error }

// Error implements error.
func (e *AnswerError) Error() string { return e.Err.Error() }

// Unwrap returns the error of the answer.
func (e *AnswerError) Unwrap() error { return e.Err }

// ErrRefused is in errors of Off and On if the device certainly did not do it.
var ErrRefused = errors.New("not done")
