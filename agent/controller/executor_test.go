package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/fence/device"
)

func offOrder(id string) *order {
	now := time.Now()
	return &order{
		node: "n1", fence: fenceUID, method: offMethod(), target: fence.Target{UID: nodeUID, SystemUUID: machine},
		intent: fence.Intent{
			ID: id, Action: fence.Off, Issued: metav1.NewMicroTime(now), Deadline: metav1.NewMicroTime(now.Add(time.Minute)),
		},
	}
}

// hangs is a call that ends with its context, ignores is one that goes on.
func hangs(ctx context.Context) error {
	<-ctx.Done()
	return fmt.Errorf("chassis control: %w", ctx.Err())
}

func ignores(context.Context) error {
	time.Sleep(time.Hour)
	return nil
}

func TestOutcomes(t *testing.T) {
	for name, tt := range map[string]struct {
		device  *faultyDevice
		check   error
		change  func(*order)
		kind    fence.OutcomeKind
		message string
		sent    int
		after   time.Duration
	}{
		"accepted": {&faultyDevice{uuid: machine}, nil, nil, fence.Succeeded, "", 1, 0},
		"refused by the device": {&faultyDevice{uuid: machine, off: func(context.Context) error {
			return fmt.Errorf("chassis control: %w", device.ErrRefused)
		}}, nil, nil, fence.Failed, "chassis control", 1, 0},
		"another error": {&faultyDevice{uuid: machine, off: func(context.Context) error {
			return errors.New("connection reset")
		}}, nil, nil, fence.Unknown, "connection reset", 1, 0},
		"panic": {&faultyDevice{uuid: machine, off: func(context.Context) error {
			panic("index out of range")
		}}, nil, nil, fence.Unknown, "index out of range", 1, 0},
		"no answer":        {&faultyDevice{uuid: machine, off: hangs}, nil, nil, fence.Unknown, "deadline exceeded", 1, time.Minute},
		"no end":           {&faultyDevice{uuid: machine, off: ignores}, nil, nil, fence.Unknown, "no answer", 1, time.Minute + returnTimeout},
		"other machine":    {&faultyDevice{uuid: nodeUID}, nil, nil, fence.Refused, "does not match systemUUID", 0, 0},
		"no UUID":          {&faultyDevice{uuid: "none"}, nil, nil, fence.Refused, "does not match systemUUID", 0, 0},
		"UUID unreadable":  {&faultyDevice{}, nil, nil, fence.Failed, "nothing was sent: read UUID of device bmc1: no session", 0, 0},
		"identity none":    {&faultyDevice{}, nil, func(o *order) { o.method.Identity = fence.CheckNone }, fence.Succeeded, "", 1, 0},
		"no longer wanted": {&faultyDevice{uuid: machine}, errors.New("Node n1 is Ready"), nil, fence.Refused, "Node n1 is Ready", 0, 0},
		"too late": {&faultyDevice{uuid: machine}, nil, func(o *order) {
			o.intent.Deadline = metav1.NewMicroTime(time.Now().Add(-time.Second))
		}, fence.Refused, "deadline", 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := testExecutor(t.Context(), tt.device)
				e.check = func(context.Context, *order) error { return tt.check }
				e.pending("n1", fenceUID)
				o := offOrder("1")
				if tt.change != nil {
					tt.change(o)
				}
				began := time.Now()
				ended := make(chan time.Duration, 1)
				e.done = func(string) { ended <- time.Since(began) }
				e.act(o)
				if took := <-ended; took != tt.after {
					t.Errorf("outcome after %v; want %v", took, tt.after)
				}
				outcomes, _, inFlight := e.pending("n1", fenceUID)
				if len(outcomes) != 1 || inFlight != "" {
					t.Fatalf("outcomes = %+v, in flight %q; want one and none", outcomes, inFlight)
				}
				if got := outcomes[0]; got.Kind != tt.kind || !strings.Contains(got.Message, tt.message) {
					t.Errorf("outcome = %+v; want %s, %q", got, tt.kind, tt.message)
				}
				if n := tt.device.called("off"); n != tt.sent {
					t.Errorf("off was sent %d times; want %d", n, tt.sent)
				}
				synctest.Wait()
				time.Sleep(2 * time.Hour) // until calls that ignore their context end
			})
		})
	}
}

// While an act is in flight there is no other for its node, and no reading of its device.
func TestOneActInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &faultyDevice{uuid: machine, off: func(context.Context) error {
			time.Sleep(10 * time.Second)
			return nil
		}}
		e := testExecutor(t.Context(), d)
		e.pending("n1", fenceUID)
		e.act(offOrder("1"))
		synctest.Wait()
		if _, _, inFlight := e.pending("n1", fenceUID); inFlight != "1" {
			t.Errorf("in flight: %q; want 1", inFlight)
		}
		e.act(offOrder("2"))
		m := offMethod()
		e.read("n1", fenceUID, &m)
		e.read("n1", fenceUID, &m)
		time.Sleep(time.Minute)
		outcomes, readings, inFlight := e.pending("n1", fenceUID)
		if len(outcomes) != 2 || outcomes[0].Kind != fence.Refused || outcomes[1].Kind != fence.Succeeded || inFlight != "" {
			t.Errorf("outcomes = %+v, in flight %q; want 2 refused, 1 succeeded", outcomes, inFlight)
		}
		if len(readings) != 1 || readings[0].Power != fence.PowerOff || readings[0].UUID != machine {
			t.Errorf("readings = %+v; want one, off", readings)
		} else if readings[0].Started.Before(&outcomes[1].Ended) {
			t.Errorf("reading began at %v, before the act ended at %v", readings[0].Started, outcomes[1].Ended)
		}
		if d.called("off") != 1 || d.most != 1 {
			t.Errorf("off was sent %d times, %d calls at the same time; want 1 and 1", d.called("off"), d.most)
		}
	})
}

// A device that several wait for is used by one at a time, also by those that come when one of them has left.
func TestDeviceUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := testExecutor(t.Context(), &faultyDevice{})
		first, err := e.acquire(t.Context(), "bmc1")
		if err != nil {
			t.Fatal(err)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := e.acquire(short, "bmc1"); err == nil {
			t.Error("a device in use was acquired")
		}
		if _, err := e.acquire(short, "bmc1"); err == nil {
			t.Error("a device in use was acquired after another had given up")
		}
		go func() {
			time.Sleep(time.Minute)
			first()
		}()
		began := time.Now()
		second, err := e.acquire(t.Context(), "bmc1")
		if err != nil || time.Since(began) != time.Minute {
			t.Errorf("acquired after %v, %v; want when it was free", time.Since(began), err)
		}
		second()
		if len(e.devices) != 0 {
			t.Errorf("%d devices are remembered; want none", len(e.devices))
		}
	})
}

func TestReadings(t *testing.T) {
	for name, tt := range map[string]struct {
		device *faultyDevice
		power  fence.Power
		uuid   string
		err    string
		after  time.Duration
		// answered says that the device answered, although its power is unknown.
		answered bool
	}{
		"off":                  {&faultyDevice{uuid: machine}, fence.PowerOff, machine, "", 0, false},
		"off, UUID unreadable": {&faultyDevice{}, fence.PowerUnknown, "", "no session", 0, true},
		"on, UUID unreadable": {&faultyDevice{status: func(context.Context) (fence.Power, error) { return fence.PowerOn, nil }},
			fence.PowerOn, "", "no session", 0, false},
		"error": {&faultyDevice{status: func(context.Context) (fence.Power, error) { return "", errors.New("no route to host") }},
			fence.PowerUnknown, "", "no route to host", 0, false},
		"answer with an error": {&faultyDevice{status: func(context.Context) (fence.Power, error) {
			return fence.PowerUnknown, fmt.Errorf("read power: %w", &device.AnswerError{Err: errors.New("wrong password")})
		}}, fence.PowerUnknown, "", "wrong password", 0, true},
		"neither off nor on": {&faultyDevice{uuid: machine, status: func(context.Context) (fence.Power, error) { return fence.PowerUnknown, nil }},
			fence.PowerUnknown, machine, "", 0, true},
		"panic": {&faultyDevice{status: func(context.Context) (fence.Power, error) { panic("index out of range") }},
			fence.PowerUnknown, "", "index out of range", 0, false},
		"no end": {&faultyDevice{status: func(ctx context.Context) (fence.Power, error) { return fence.PowerOff, ignores(ctx) }},
			fence.PowerUnknown, "", "no answer", readingTimeout + returnTimeout, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := testExecutor(t.Context(), tt.device)
				m := offMethod()
				began := time.Now()
				r := e.reading("n1", fenceUID, &m)
				if r.Power != tt.power || r.UUID != tt.uuid || !strings.Contains(r.Error, tt.err) || (tt.err == "") != (r.Error == "") {
					t.Errorf("reading = %+v; want %s, UUID %q, error %q", r, tt.power, tt.uuid, tt.err)
				}
				if r.Answered != tt.answered {
					t.Errorf("Answered = %t; want %t", r.Answered, tt.answered)
				}
				if took := time.Since(began); took != tt.after {
					t.Errorf("reading took %v; want %v", took, tt.after)
				}
				time.Sleep(2 * time.Hour)
			})
		})
	}
}

// Results stay until they are consumed, and those of an earlier fence are dropped.
func TestPendingResults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := testExecutor(t.Context(), &faultyDevice{uuid: machine})
		m := offMethod()
		pending := func(uid string) [2]int {
			synctest.Wait()
			outcomes, readings, _ := e.pending("n1", uid)
			return [2]int{len(outcomes), len(readings)}
		}
		pending(fenceUID)
		e.act(offOrder("1"))
		synctest.Wait()
		e.read("n1", fenceUID, &m)
		for range 2 {
			if got := pending(fenceUID); got != [2]int{1, 1} {
				t.Errorf("results = %v; want one outcome and one reading", got)
			}
		}
		e.read("n1", fenceUID, &m)
		synctest.Wait()
		e.consumed("n1", 1, 1)
		if got := pending(fenceUID); got != [2]int{0, 1} {
			t.Errorf("results = %v; want the reading that came later", got)
		}
		if got := pending("another"); got != [2]int{0, 0} {
			t.Errorf("results of another fence = %v; want none", got)
		}
		e.read("n1", fenceUID, &m)
		if got := pending("another"); got != [2]int{0, 0} {
			t.Errorf("results of another fence = %v; want none", got)
		}
	})
}

// At the end of the leadership all calls end at once, and Start waits for them.
func TestLeadershipLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := testExecutor(t.Context(), &faultyDevice{uuid: machine, off: hangs})
		ctx, lose := context.WithCancel(t.Context())
		stopped := make(chan error, 1)
		go func() { stopped <- e.Start(ctx) }()
		e.pending("n1", fenceUID)
		e.act(offOrder("1"))
		synctest.Wait()
		began := time.Now()
		lose()
		if err := <-stopped; err != nil || time.Since(began) != 0 {
			t.Errorf("Start returned %v after %v; want nil at once", err, time.Since(began))
		}
		outcomes, _, _ := e.pending("n1", fenceUID)
		if len(outcomes) != 1 || outcomes[0].Kind != fence.Unknown {
			t.Errorf("outcomes = %+v; want one, Unknown", outcomes)
		}
		e.act(offOrder("2"))
		synctest.Wait()
		if outcomes, _, _ := e.pending("n1", fenceUID); len(outcomes) != 2 || outcomes[1].Kind != fence.Refused {
			t.Errorf("outcomes = %+v; want that an act after the end is refused", outcomes)
		}
	})
}
