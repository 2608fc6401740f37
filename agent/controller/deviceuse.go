package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/evictd/evictd/agent/fence/device"
)

// returnTimeout is how long a call may take to return after its context has ended.
const returnTimeout = 2 * time.Second

// errNoAnswer is the error of a call that has not returned after its deadline.
var errNoAnswer = errors.New("no answer before the deadline")

// deviceUse is a device that is in use or waited for.
type deviceUse struct {
	busy  chan struct{} // has an element while the device is in use
	users int           // of it and those that wait
}

// acquire waits until no other goroutine uses a device.
func (e *executor) acquire(ctx context.Context, name string) (release func(), err error) {
	e.mu.Lock()
	d := e.devices[name]
	if d == nil {
		d = &deviceUse{busy: make(chan struct{}, 1)}
		e.devices[name] = d
	}
	d.users++
	e.mu.Unlock()
	leave := func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if d.users--; d.users == 0 {
			delete(e.devices, name)
		}
	}
	if err := ctx.Err(); err != nil {
		leave()
		return nil, err
	}
	select {
	case d.busy <- struct{}{}:
		return func() {
			<-d.busy
			leave()
		}, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}

// bounded calls f, and release after it has returned. It does not wait for f for longer than returnTimeout after ctx
// has ended; the device then stays in use until f returns.
func (e *executor) bounded(ctx context.Context, release func(), f func() error) error {
	done := make(chan error, 1)
	if !e.begin(func() {
		defer release()
		done <- recovered(f)
	}) {
		release()
		return fmt.Errorf("%w: the controller ends", device.ErrRefused)
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done:
		return err
	case <-time.After(returnTimeout):
		return errNoAnswer
	}
}

// recovered calls f. A panic of it becomes an error: a device of one node must not end the fences of all.
func recovered(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return f()
}
