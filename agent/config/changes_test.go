package config

import (
	"slices"
	"strings"
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

func TestNeedRestart(t *testing.T) {
	before := &Config{RuntimeEndpoint: "/a", CgroupRoot: "/", MemoryAccounting: AccountingKubelet}
	after := *before
	after.MaxVictims = 7
	if got := NeedRestart(before, &after); got != nil {
		t.Errorf("NeedRestart() = %v; want none", got)
	}
	after.RuntimeEndpoint, after.CgroupRoot, after.MemoryAccounting = "/b", "/c", AccountingAvailable
	if got, want := NeedRestart(before, &after), []string{"runtimeEndpoint", "cgroupRoot", "memoryAccounting"}; !slices.Equal(got, want) {
		t.Errorf("NeedRestart() = %v; want %v", got, want)
	}
}

func TestChangesText(t *testing.T) {
	for _, tt := range []struct {
		changes []Change
		want    string
	}{
		{nil, "nothing"},
		{[]Change{{"a", "1", "2"}, {"b", "", "3"}, {"c", "4", ""}}, "a: 1 -> 2; b: now 3; c: no longer 4"},
		{make([]Change, loggedChanges+2), strings.Repeat(": now ; ", loggedChanges) + "and 2 more"},
	} {
		if got := ChangesText(tt.changes); got != tt.want {
			t.Errorf("ChangesText(%v) = %q; want %q", tt.changes, got, tt.want)
		}
	}
}

func TestWhyDryRun(t *testing.T) {
	for content, want := range map[string]string{"dryRun: true\n": "the configuration says dryRun: true", "maxVictims: 3\n": ""} {
		if got := mustParse(t, content).WhyDryRun(); got != want {
			t.Errorf("WhyDryRun() with %q = %q; want %q", content, got, want)
		}
	}
}
