package kube

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/evictd/evictd/agent/selffence"
)

// NodeMarks are annotations of the Node object that evictd maintains (agent/selffence).
type NodeMarks struct {
	// Number is that of the advert of the watchdog in these marks. Marks with the same number have the same advert.
	Number uint64 `json:"number"`
	// Watchdog is the advert, which evictd-kube writes without changing it. That of a node without self-fencing is written
	// only in place of another one.
	Watchdog string `json:"watchdog"`
	// PlannedShutdown is the mark of a planned shutdown; "" for none.
	PlannedShutdown string `json:"plannedShutdown,omitempty"`
}

// MarksReport is the answer to NodeMarks.
type MarksReport struct {
	// Number is that of the marks.
	Number uint64 `json:"number"`
	// Why is why they could not be written, with the remedy. Without it the API server has accepted them, or has shown
	// in a read that there was nothing to write.
	Why string `json:"why,omitempty"`
}

// maxMark is the length limit of a mark in bytes.
const maxMark = 1024

// check validates marks from evictd.
func (m *NodeMarks) check() error {
	switch {
	case m.Number == 0:
		return errors.New("node marks without a number")
	case m.Watchdog == "":
		return errors.New("node marks without an advert")
	}
	for _, text := range []string{m.Watchdog, m.PlannedShutdown} {
		if !isPrintable(text, maxMark) {
			return fmt.Errorf("node mark of %d bytes that cannot be printed or is too long", len(text))
		}
	}
	return nil
}

// check validates a report from evictd-kube.
func (r *MarksReport) check() error {
	if !isPrintable(r.Why, maxWhy) {
		return errors.New("marks report with a reason that can't be printed or is too long")
	}
	return nil
}

// Marks has the newest NodeMarks and sends them to evictd-kube: when they change, and at the beginning of each session.
// The methods are safe for concurrent use, and never wait for evictd-kube.
type Marks struct {
	// Peers is called with each count of the nodes that cannot reach the API server, and must not wait. It is set
	// before the first session; nil if counts are not used.
	Peers func(selffence.Count)

	accepted func(number uint64)
	log      *slog.Logger

	mu        sync.Mutex
	session   *outbox
	newest    *NodeMarks // nil before the first; immutable
	why       string     // the reason of the last report
	unwritten LogLimiter
}

// NewMarks returns Marks without any. accepted is called with the number of marks that the API server has accepted,
// from the goroutine that reads the session, and must not wait. A peer can call it with any number.
func NewMarks(accepted func(number uint64), log *slog.Logger) *Marks {
	return &Marks{accepted: accepted, log: log}
}

// Set sends new marks.
func (m *Marks) Set(marks NodeMarks) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.newest = &marks
	if m.session != nil {
		m.session.marks()
	}
}

func (m *Marks) attach(session *outbox) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.session = session
	if m.newest != nil {
		session.marks()
	}
}

func (m *Marks) detach(session *outbox) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.session == session {
		m.session = nil
	}
}

// take returns the newest marks, which are about to be sent.
func (m *Marks) take() *NodeMarks {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.newest
}

// report applies a report.
func (m *Marks) report(r *MarksReport, now time.Time) {
	m.mu.Lock()
	before := m.why
	m.why = r.Why
	m.mu.Unlock()
	if r.Why == "" {
		if before != "" {
			m.log.Info("marks of the Node are written")
		}
		m.accepted(r.Number)
		return
	}
	if skipped, ok := m.unwritten.Allow(now); ok {
		m.log.Warn("marks of the Node are not written; evictd-kube tries again", "reason", r.Why, "not_logged", skipped)
	}
}

// Why returns why the marks could not be written; "" if they could, or are not yet.
func (m *Marks) Why() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.why
}
