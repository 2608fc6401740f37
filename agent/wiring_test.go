package agent

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/loop"
	"github.com/evictd/evictd/agent/signal"
)

// part returns a field, also an unexported one, of the struct that v points to. It panics
// with the name of a field that does not exist.
func part(v any, names ...string) reflect.Value {
	r := reflect.ValueOf(v)
	for _, name := range names {
		for r.Kind() == reflect.Pointer || r.Kind() == reflect.Interface {
			r = r.Elem()
		}
		if r = r.FieldByName(name); !r.IsValid() {
			panic("no field " + name)
		}
	}
	if r.Kind() == reflect.Interface {
		r = r.Elem()
	}
	return r
}

// missing returns the fields of a struct that are nil interfaces, functions and pointers.
func missing(v reflect.Value) (names []string) {
	for v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	for i := range v.NumField() {
		switch v.Field(i).Kind() {
		case reflect.Interface, reflect.Func, reflect.Pointer:
			if v.Field(i).IsNil() {
				names = append(names, v.Type().Field(i).Name)
			}
		}
	}
	return names
}

// All parts get their dependencies, and share one instance of each. Dry run never gets an
// actuator or killer that kills.
func TestWiring(t *testing.T) {
	d := buildHere(t)
	for name, shared := range map[string][]reflect.Value{
		"arbiter":    {reflect.ValueOf(d.arbiter), part(d.loop, "arbiter")},
		"liveness":   {reflect.ValueOf(d.liveness), part(d.loop, "liveness")},
		"executor":   {reflect.ValueOf(d.execute), part(d.loop, "execute"), part(d.shutdown, "o", "Execute")},
		"records":    {reflect.ValueOf(d.records), part(d.execute, "records"), part(d.loop, "records"), part(d.statusBackend, "o", "Records")},
		"view":       {reflect.ValueOf(d.lastView), part(d.loop, "observer", "o", "View")},
		"status":     {reflect.ValueOf(d.statusBackend), part(d.loop, "observer", "o", "Backend")},
		"hot path":   {reflect.ValueOf(d.hot), part(d.loop, "hot")},
		"watchdog":   {reflect.ValueOf(d.watchdog), part(d.loop, "watchdog")},
		"inventory":  {reflect.ValueOf(d.inventory), part(d.loop, "inventory"), part(d.shutdown, "o", "Inventory"), part(d.statusBackend, "o", "Inventory")},
		"delay lock": {reflect.ValueOf(d.delayLock), part(d.shutdown, "o", "DelayLock"), part(d.statusBackend, "o", "DelayLock")},
		"facts":      {reflect.ValueOf(d.facts), part(d.inventory, "specs"), part(d.statusBackend, "o", "Facts")},
		"orders":     {reflect.ValueOf(d.orders), part(d.evictions, "o", "Orders")},
		"evictions":  {reflect.ValueOf(d.evictions), part(d.killer, "Fencer")},
		"killer":     {reflect.ValueOf(d.killer), part(d.execute, "killer")},
	} {
		for _, other := range shared[1:] {
			if shared[0].IsNil() || other.Pointer() != shared[0].Pointer() {
				t.Errorf("%s: %v and %v are not the same", name, shared[0], other)
			}
		}
	}
	for _, tt := range []struct {
		name string
		of   reflect.Value
		want reflect.Type
	}{
		{"actuator", part(d.execute, "killer"), reflect.TypeFor[*act.Killer]()},
		{"actuator of a dry run", part(d.execute, "dryRun"), reflect.TypeFor[*act.DryRun]()},
		{"signaller", part(d.loop, "ownKiller", "FastKiller", "signaller"), part(act.NewFastKiller(nil), "signaller").Type()},
		{"signaller of a dry run", part(d.loop, "ownDryRun", "FastKiller", "signaller"), part(act.NewNoopKiller(), "signaller").Type()},
	} {
		if got := tt.of.Type(); got != tt.want {
			t.Errorf("%s = %v; want %v", tt.name, got, tt.want)
		}
	}
	for name, of := range map[string]struct {
		value reflect.Value
		later []string // what is nil until Run
	}{
		"loop":     {reflect.ValueOf(d.loop), []string{"view"}},
		"handles":  {part(d.loop, "killHandles"), nil},
		"observer": {part(d.loop, "observer", "o"), nil},
		"executor": {reflect.ValueOf(d.execute), nil},
		"shutdown": {part(d.shutdown, "o"), nil},
		"status":   {part(d.statusBackend, "o"), nil},
		"fences":   {part(d.evictions, "o"), nil},
	} {
		if got := missing(of.value); !slices.Equal(got, of.later) {
			t.Errorf("%s: nil = %q; want %q", name, got, of.later)
		}
	}
	if part(d.loop, "drift").Int() <= 0 || part(d.loop, "reclaimStalls", "tree").IsNil() || part(d.shutdown, "o", "Bus").Len() == 0 {
		t.Error("the loop lacks the drift of per-CPU counters or the hierarchy, or the shutdown its bus")
	}
	if part(d.killer, "Guard").IsNil() {
		t.Error("the killer has only the guard of an order")
	}
	if part(d.statusBackend, "o", "LastShutdown", "Reason").Len() == 0 {
		t.Error("the status lacks how the last boot ended: it was made before the state was restored")
	}
	// Function values can't be compared, but their code can.
	if part(d.loop, "observer", "o", "Changed").Pointer() != reflect.ValueOf(d.viewChanged).Pointer() {
		t.Error("views are not passed on")
	}
	if !slices.ContainsFunc(d.closers, func(f func() error) bool {
		return reflect.ValueOf(f).Pointer() == reflect.ValueOf(d.loop.Close).Pointer()
	}) {
		t.Error("nothing closes the loop at the end")
	}
}

// A run continues with the victims and records that the run before has saved.
func TestVictimsAreSaved(t *testing.T) {
	d := buildHere(t)
	victim := evict.Victim{UID: "u", Pod: "default/p", Cause: signal.MemoryAvailable.String(), Decided: time.Now(), ProgressAt: time.Now(), Status: evict.Unsettled}
	d.lastView.Store(&loop.View{State: evict.State{Victims: []evict.Victim{victim}}})
	d.records.Restore([]evict.Record{{UID: "u", Pod: "default/p", Result: evict.ResultKilled}})
	if err := d.save(); err != nil {
		t.Fatal(err)
	}
	d.close()
	d.closers = nil
	again, err := build(d.options, d.log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(again.close)
	runLoop(t, again)()
	if v := again.lastView.Load(); len(v.State.Victims) != 1 || v.State.Victims[0].UID != "u" {
		t.Errorf("victims = %+v; want the one that was saved", v.State.Victims)
	}
	if r := again.statusBackend.Status().Records; len(r) != 1 || r[0].UID != "u" {
		t.Errorf("records = %+v; want the one that was saved", r)
	}
}
