package controller

import (
	"slices"
	"testing"

	"github.com/evictd/evictd/agent/controller/affinity"
)

// Without affinity nothing of it runs, and no right of it is needed.
func TestAffinityOff(t *testing.T) {
	// The manager is nil: whatever is added to it panics.
	if err := registerAffinity(nil, &Options{Affinity: affinity.Off}, recorder{}); err != nil {
		t.Error(err)
	}
	for mode, want := range map[affinity.Mode]bool{affinity.Off: false, affinity.Observe: true, affinity.Enforce: true} {
		list := rights("evictd", true, mode)
		got := slices.ContainsFunc(list, func(r right) bool { return r.resource == "pods/eviction" }) &&
			slices.ContainsFunc(list, func(r right) bool { return r.resource == "pods" && slices.Contains(r.verbs, "watch") })
		if got != want {
			t.Errorf("%s: rights to watch and evict pods: %t; want %t", mode, got, want)
		}
	}
}
