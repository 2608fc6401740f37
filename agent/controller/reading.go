package controller

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/fence/device"
)

// readingTimeout bounds one reading, as the deadline of its method does. A slow BMC needs some seconds for each command
// of a session.
const readingTimeout = 30 * time.Second

// read starts a reading of a device, unless one is in flight. Its result is a reading, whatever happens.
func (e *executor) read(node, uid string, m *fence.Method) {
	e.mu.Lock()
	w := e.work(node)
	busy := w.reading[m.Device]
	w.reading[m.Device] = true
	e.mu.Unlock()
	if busy {
		return
	}
	e.begin(func() {
		r := e.reading(node, uid, m)
		e.metrics.readings.WithLabelValues(string(r.Power)).Inc()
		e.log.Debug("device read", "node", node, "device", r.Device, "power", r.Power, "error", r.Error)
		e.mu.Lock()
		w := e.work(node)
		delete(w.reading, m.Device)
		if w.fence == uid && len(w.readings) < maxResults {
			w.readings = append(w.readings, r)
		}
		e.mu.Unlock()
		e.done(node)
	})
}

// reading reads a device in a session of its own. It begins after an act on the device has ended.
func (e *executor) reading(node, uid string, m *fence.Method) fence.Reading {
	timeout := readingTimeout
	if d := m.Deadline.Duration; d > 0 && (d < timeout || m.Executor == fence.InJob) {
		timeout = d // a Job needs more time than a session
	}
	ctx, cancel := context.WithTimeout(e.ctx, timeout)
	defer cancel()
	release, err := e.acquire(ctx, m.Device)
	r := fence.Reading{Device: m.Device, Power: fence.PowerUnknown, Started: metav1.NowMicro()}
	var power fence.Power
	var uuid string
	var answered bool
	if err == nil {
		err = e.bounded(ctx, release, func() error {
			d, err := e.open(ctx, &use{node: node, fence: uid, method: m, id: readingID()})
			if err != nil {
				return err
			}
			power, err = d.Status(ctx)
			if answered = err == nil; !answered || m.Identity == fence.CheckNone {
				return err
			}
			uuid, err = d.UUID(ctx)
			return err
		})
	}
	r.Ended = metav1.NowMicro()
	if errors.Is(err, errNoAnswer) {
		// The call may still write power and uuid.
		r.Error = err.Error()
		return r
	}
	if err != nil {
		r.Error = err.Error()
	}
	// Without the UUID it is unknown whose power is off. On counts, because it contradicts a proof.
	if power != "" && (err == nil || power == fence.PowerOn) {
		r.Power, r.UUID = power, uuid
	}
	answer := (*device.AnswerError)(nil)
	r.Answered = r.Power == fence.PowerUnknown && (answered || errors.As(err, &answer))
	return r
}

// readingID returns an id that no other reading has: what is reported under it was read after it was made.
func readingID() string {
	id := make([]byte, 8)
	rand.Read(id)
	return "read-" + hex.EncodeToString(id)
}
