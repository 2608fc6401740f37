package fencing

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"time"

	"github.com/evictd/evictd/tests/controlplane"
)

// bootDelay is the time from power on to the start of the kubelet.
const bootDelay = time.Second

// Machine is a computer that is a node of the cluster.
type Machine struct {
	Name string
	// SystemUUID is the UUID of its firmware, which its BMC reports too.
	SystemUUID string

	client  *controlplane.Client
	storage *Storage
	// executors run the pods of Jobs; nil: they run in name only.
	executors *Executors
	log       func(Event)
	report    func(error) // of a kubelet's request that failed

	mu     sync.Mutex
	on     bool
	bootID string
	cancel context.CancelFunc // of the kubelet; nil if it does not run
	done   chan struct{}      // closed when the kubelet has ended
}

// newUUID returns a random UUID (RFC 9562, version 4).
func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// On reports whether the machine has power.
func (m *Machine) On() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.on
}

// BootID returns the ID of the present boot, or of the last one.
func (m *Machine) BootID() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.bootID
}

// SetPower is what the BMC does to the machine. Switching on boots it: it has a new boot ID, and its kubelet starts
// after bootDelay.
func (m *Machine) SetPower(on bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.on == on {
		return
	}
	m.on = on
	if !on {
		m.stopKubelet()
		m.storage.leaveAll(m.Name)
		return
	}
	m.bootID = newUUID()
	m.startKubelet(bootDelay)
}

// Isolate cuts the machine off from the API server: its Lease and its status are no longer renewed, while its pods run
// on and use their volumes.
func (m *Machine) Isolate() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stopKubelet()
	m.log(Event{At: time.Now(), Kind: Lost, Object: m.Name, Detail: "no longer reaches the API server; the machine is on and its pods run"})
}

// Rejoin ends Isolate, without a boot.
func (m *Machine) Rejoin() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.on && m.cancel == nil {
		m.startKubelet(0)
	}
}

// useExecutors has the machine run the pods of Jobs.
func (m *Machine) useExecutors(e *Executors) {
	m.mu.Lock()
	defer m.mu.Unlock()
	running := m.cancel != nil
	m.stopKubelet()
	m.executors = e
	if running {
		m.startKubelet(0)
	}
}

// startKubelet starts the kubelet after a delay.
func (m *Machine) startKubelet(delay time.Duration) {
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel, m.done = cancel, make(chan struct{})
	k := &kubelet{machine: m, bootID: m.bootID}
	go func(done chan<- struct{}) {
		defer close(done)
		select {
		case <-ctx.Done():
		case <-time.After(delay):
			k.run(ctx)
		}
	}(m.done)
}

// stopKubelet stops the kubelet and returns when it has made its last request.
func (m *Machine) stopKubelet() {
	if m.cancel == nil {
		return
	}
	m.cancel()
	<-m.done
	m.cancel = nil
}

// close ends the machine.
func (m *Machine) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.on = false
	m.stopKubelet()
}
