package config

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestChanges(t *testing.T) {
	before := mustParse(t, "evictionHard: {memory.available: 1Gi, pid.available: 10%}\nmaxVictims: 3\nprotect: {names: [a/b]}\n")
	after := mustParse(t, "evictionHard: {memory.available: 2Gi, nodefs.available: 5%}\nmaxVictims: 5\ndryRun: true\n")
	got, err := after.Changes(before)
	if err != nil {
		t.Fatal(err)
	}
	want := []Change{
		{"evictionHard.memory.available", "1Gi", "2Gi"},
		{"evictionHard.nodefs.available", "", "5%"},
		{"dryRun", "false", "true"},
		{"protect.names", "", "[]"},
		{"maxVictims", "3", "5"},
		{"evictionHard.pid.available", "10%", ""},
		{"protect.names[0]", "a/b", ""},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Changes() differs (-want +got):\n%s", diff)
	}
	if got, err := before.Changes(before); err != nil || len(got) > 0 {
		t.Errorf("Changes() of the same = %v, %v; want none", got, err)
	}
}
