package logind

import (
	"testing"

	"github.com/evictd/evictd/agent/shutdown/logind/logindtest"
)

// Every user of the system bus may send a signal to one connection, whatever that
// has asked for. Only logind's own count.
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
	for range 2 { // gone, and there again
		if got := <-c.signals; got.Sender != busName {
			t.Errorf("signal from %s; want the bus's own", got.Sender)
		}
	}
	bus.EmitAs(":1.1", true)
	bus.Emit(false)
	next(":1.2", false)
}

// Where logind comes later than evictd, its first signal counts.
func TestSignalsOfALogindThatComesLate(t *testing.T) {
	bus := logindtest.New(t, t.TempDir())
	bus.Answer("GetNameOwner", []any{":1.0"}) // of before
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
		t.Errorf("signal from %q; want logind's", got.Sender)
	}
}
