package lanes

import (
	"context"
	"errors"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// stoppedLane is a lane that is opened or reconciled while the daemon stops. The Waiter
// has closed its poller then, so both fail.
type stoppedLane struct {
	*fakeLane
	stop              context.CancelFunc
	atOpen, partFails bool
}

func (l *stoppedLane) open(now time.Time, in *laneInput) error {
	err := l.fakeLane.open(now, in)
	if l.atOpen {
		l.stop()
		err = errors.Join(err, os.ErrClosed)
	}
	return err
}

func (l *stoppedLane) reconcile(now time.Time, in *laneInput) error {
	err := l.fakeLane.reconcile(now, in)
	if err != nil || now.Sub(l.opens[0]) < reportInterval {
		return err
	}
	l.stop()
	if !l.partFails {
		return os.ErrClosed
	}
	l.setFailure("the pods' memory: " + os.ErrClosed.Error())
	return nil
}

// TestStopDegradesNoLane checks that a lane that fails because the daemon stops is not
// reported, whatever the Set was doing with it, and that it is closed.
func TestStopDegradesNoLane(t *testing.T) {
	for _, tt := range []struct {
		name              string
		atOpen, partFails bool
		state             State // at the end
		changes           int
	}{
		{"while it is opened", true, false, Starting, 0},
		{"while it is reconciled", false, false, Up, 1},
		{"while a part of it is reconciled", false, true, Up, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancel(t.Context())
				ts := newTestSet(t, nil, Auto)
				ts.entries[0].lane = &stoppedLane{fakeLane: ts.lane, stop: stop, atOpen: tt.atOpen, partFails: tt.partFails}
				time.AfterFunc(time.Hour, stop)
				if err := ts.Run(ctx); err != nil {
					t.Errorf("Run() = %v; want nil", err)
				}
				if got := ts.status(); got.State != tt.state || len(ts.changes) != tt.changes {
					t.Errorf("lane is %s, changes %+v; want %s and %d changes", got.State, ts.changes, tt.state, tt.changes)
				}
				if err := ts.Close(); err != nil || ts.lane.closes != 1 {
					t.Errorf("Close() = %v, closed %d times; want nil, once", err, ts.lane.closes)
				}
			})
		})
	}
}
