package fence

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestEditedStates: a NodeFence that a person has edited, to combinations that no Step makes, releases nothing without a
// proof that its plan can have. It makes no Step panic, and none that follows another at once without end.
func TestEditedStates(t *testing.T) {
	runs := uint64(50_000)
	if testing.Short() {
		runs = 5_000
	}
	for seed := range runs {
		rnd := rand.New(rand.NewPCG(seed, 3))
		s, in := editedState(t, rnd)
		checkEdited(t, seed, rnd, s, in)
		if t.Failed() {
			return
		}
	}
}

// checkEdited makes Steps of an edited state.
func checkEdited(t *testing.T, seed uint64, rnd *rand.Rand, s State, in Inputs) {
	t.Helper()
	before := s
	fail := func(format string, args ...any) {
		t.Helper()
		t.Errorf("seed %d: %s\nprogress %+v\n%+v\nbefore %+v\n%+v", seed, fmt.Sprintf(format, args...), s.Progress, s.Detail, before.Progress, before.Detail)
	}
	defer func() {
		if p := recover(); p != nil {
			fail("panic: %v", p)
		}
	}()
	now := begin
	for range 5 {
		for i := 0; ; i++ {
			next, o := Step(s, in, now)
			if o.Taints.OutOfService || len(o.Delete)+len(o.Detach) > 0 {
				fail("released: taints %+v, deleted %v, detached %v", o.Taints, o.Delete, o.Detach)
				return
			}
			if s.FinishedAt.IsZero() && next.FinishedAt.IsZero() && !o.Wake.After(now) {
				fail("Wake = %v at %v", o.Wake, now)
				return
			}
			same := reflect.DeepEqual(s, next)
			s, in.Outcomes, in.Readings = next, nil, nil
			if same {
				break
			}
			if i > 50 {
				fail("the state changes without end")
				return
			}
		}
		now = now.Add(time.Duration(rnd.IntN(600)) * time.Second)
		in.Readings = randomReadings(rnd, now)
	}
}

// editedState returns a state with random values in all fields that decide, without a proof that its plan can have, and
// inputs that prove nothing.
func editedState(t *testing.T, rnd *rand.Rand) (State, Inputs) {
	t.Helper()
	s, in := acted(t, "", level(true, "bmc"))
	if rnd.IntN(2) == 0 {
		s.Plan = randomPlan(rnd)
		s.Plan.Kdump = pick(rnd, KdumpOff, KdumpDelay, "x")
	}
	at := func() metav1.MicroTime {
		if rnd.IntN(3) == 0 {
			return metav1.MicroTime{}
		}
		return micro(begin.Add(time.Duration(rnd.IntN(7200)-3600) * time.Second))
	}
	number := func() int32 { return int32(rnd.IntN(7)) - 2 }
	s.Step = pick(rnd, Isolation, PowerManagement, PowerManagement, Recovery)
	s.Status = pick(rnd, New, Running, Done, Error, "")
	s.Phase = pick(rnd, "", Proving, OffProven, Releasing, Released, "x")
	s.Level, s.Attempt, s.Retries, s.OnRepeats = number(), number(), number(), number()
	s.Since, s.LastAct, s.LateUntil, s.LastOn, s.Untainted = at(), at(), at(), at(), at()
	s.PowerAt, s.FirstOff, s.Deadline, s.NextAttempt, s.HealthySince = at(), at(), at(), at(), at()
	s.IntentSeen, s.IntentSeenBy = at(), pick(rnd, "", "c0", "c1")
	s.Drill, s.DryRun, s.Resumed = rnd.IntN(4) == 0, rnd.IntN(8) == 0, rnd.IntN(4) == 0
	s.Result = pick(rnd, "", "", Recovered, Fenced, "x")
	s.Proof = pick(rnd, nil, &Proof{}, &Proof{How: ByReadings}, &Proof{How: "x", At: at()},
		&Proof{How: ByReadings, At: at(), LeaseRenewed: micro(in.Lease.Renewed), Readings: randomReadings(rnd, begin)})
	s.Readings = randomReadings(rnd, begin)
	for _, c := range []string{ConditionGaveUp, ConditionProofLost, ConditionVerificationFailed, ConditionWaiting, ConditionStormHold,
		ConditionKdumpWait, ConditionReleaseStuck, ConditionNodeDidNotReturn} {
		if rnd.IntN(4) == 0 {
			s.Conditions = append(s.Conditions, metav1.Condition{Type: c, Status: pick(rnd, metav1.ConditionTrue, metav1.ConditionFalse, "x"),
				Reason: "x", LastTransitionTime: metav1.NewTime(at().Time)})
		}
	}
	intent := Intent{ID: "1", Step: pick(rnd, Isolation, PowerManagement, Recovery), Level: number(), Index: number(), Attempt: number(),
		Action: pick(rnd, Off, On, CleanPods, "x"), Issued: at(), Deadline: at()}
	if rnd.IntN(3) == 0 {
		s.Intent = &intent
	}
	if rnd.IntN(2) == 0 {
		s.Acts = []Act{{Intent: intent, Outcome: Outcome{Intent: "1", Kind: pick(rnd, Succeeded, Failed, Unknown, Refused, "x"), Ended: at()}}}
	}
	if rnd.IntN(4) == 0 {
		s.Kdump = &KdumpSession{Phase: pick(rnd, KdumpStarted, KdumpDumping, KdumpFinished, "x"), Started: at(), Last: at(), Released: at()}
	}
	if rnd.IntN(4) == 0 {
		s.Storage = &StorageFence{Proven: at(), On: at(), Released: at()}
	}
	in.Node.Ready = pick(rnd, ReadyTrue, ReadyFalse, ReadyUnknown, "")
	in.Node.BootID = pick(rnd, "b1", "b2", "")
	in.Node.OutOfService = rnd.IntN(2) == 0
	in.Node.Unschedulable = rnd.IntN(2) == 0
	in.Lease.Known, in.Lease.Found = rnd.IntN(6) > 0, rnd.IntN(6) > 0
	in.Gate.Open, in.Executor, in.InFlight = rnd.IntN(4) > 0, "c0", pick(rnd, "", "1")
	in.Readings = randomReadings(rnd, begin)
	return s, in
}

// randomReadings returns readings that prove nothing: each is on, unknown, or off of another machine.
func randomReadings(rnd *rand.Rand, now time.Time) []Reading {
	var list []Reading
	for range rnd.IntN(4) {
		started := now.Add(-time.Duration(rnd.IntN(300)) * time.Second)
		x := Reading{Device: pick(rnd, "bmc", "plug1", "switch", ""), Power: pick(rnd, PowerOn, PowerUnknown, "x", ""),
			Started: micro(started), Ended: micro(started.Add(time.Second)), Answered: rnd.IntN(2) == 0}
		if rnd.IntN(3) == 0 {
			x.Device, x.Power, x.UUID = "bmc", PowerOff, "b"+uuid[1:]
		}
		list = append(list, x)
	}
	return list
}

// pick returns one of the values.
func pick[T any](rnd *rand.Rand, values ...T) T { return values[rnd.IntN(len(values))] }
