package kube

import (
	"strings"
	"testing"
	"time"
)

func TestAffinityNumbers(t *testing.T) {
	f := NewFeed("n1", "test", nil)
	state := func() string {
		f.sendState = true
		batch, _, err := f.next(time.Now())
		if err != nil || len(batch) == 0 {
			t.Fatalf("next = %q, %v; want a state", batch, err)
		}
		return string(batch[0])
	}
	if got := state(); strings.Contains(got, "affinity") {
		t.Errorf("state %s; want no numbers", got)
	}
	f.CountAffinity("")
	if got := state(); !strings.Contains(got, `"affinityAdmission":{}`) {
		t.Errorf("state %s; want numbers without a pod", got)
	}
	f.CountAffinity(AffinityRejected)
	f.CountAffinity(AffinityRejected)
	line := state()
	if !strings.Contains(line, `"affinityAdmission":{"rejected":2}`) {
		t.Errorf("state %s; want 2 rejected", line)
	}
	m, err := decode([]byte(strings.TrimSuffix(line, "\n")))
	if err != nil || m.State.AffinityAdmission.check() != nil {
		t.Fatalf("decode(%s) = %v; want a valid state", line, err)
	}
	facts := NewFacts()
	facts.connect(&Hello{}, time.Now())
	facts.setState(m.State, time.Now())
	facts.connect(&Hello{}, time.Now()) // a new session, before its first state
	if got := facts.Status(time.Now()).AffinityAdmission[AffinityRejected]; got != 2 {
		t.Errorf("rejected = %d after a reconnect; want 2", got)
	}
}

func TestAffinityNumbersCheck(t *testing.T) {
	for _, result := range AffinityResults {
		if err := (AffinityAdmission{result: 1}).check(); err != nil {
			t.Errorf("check of %s = %v; want nil", result, err)
		}
	}
	if err := (AffinityAdmission{"x": 1}).check(); err == nil {
		t.Error("check of an unknown result = nil; want an error")
	}
}
