package logind

import (
	"testing"

	"github.com/evictd/evictd/agent/shutdown/logind/logindtest"
)

// Every user of the system bus may send a signal to a single connection, without a
// match rule. Only logind's signals are accepted.
func TestForgedSignals(t *testing.T) {
	const attacker = ":1.66"
	bus := logindtest.New(t, t.TempDir())
	c, err := Connect(t.Context(), bus.Address())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	next := func(sender string, begins bool) {
		t.Helper()
		got := <-c.signals
		if got.Sender != sender || len(got.Body) != 1 || got.Body[0] != begins {
			t.Errorf("signal = %s from %s %v; want %t from %s", got.Name, got.Sender, got.Body, begins, sender)
		}
	}
	bus.EmitAs(attacker, true)
	bus.EmitAs("", true)
	bus.Emit(false)
	next(":1.1", false)

	bus.ForgeOwner(attacker, attacker)
	bus.EmitAs(attacker, true)
	bus.Emit(false)
	next(":1.1", false)

	bus.RestartLogind()
	for range 2 { // exit and restart
		if got := <-c.signals; got.Sender != busName {
			t.Errorf("signal from %s; want one of the bus", got.Sender)
		}
	}
	bus.EmitAs(":1.1", true)
	bus.Emit(false)
	next(":1.2", false)
}

// The first signal of a logind that starts after evictd is accepted.
func TestSignalsOfLogindStartedLate(t *testing.T) {
	bus := logindtest.New(t, t.TempDir())
	bus.SetReply("GetNameOwner", []any{":1.0"}) // outdated
	c, err := Connect(t.Context(), bus.Address())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	bus.RestartLogind()
	<-c.signals
	<-c.signals
	bus.Emit(true)
	if got := <-c.signals; got.Sender != ":1.2" {
		t.Errorf("signal from %q; want logind's new name", got.Sender)
	}
}
