package lanes

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

func thresholds(t testing.TB, values map[string]time.Duration) []signal.Threshold {
	t.Helper()
	var list []signal.Threshold
	for text, grace := range values {
		v, err := signal.ParseThreshold(text)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, signal.Threshold{Signal: signal.MemoryAvailable, Value: v, Grace: grace})
	}
	return list
}

func observed(available int64) signal.Observations {
	var o signal.Observations
	o[signal.MemoryAvailable] = signal.Observation{Status: signal.Observed, Available: available, Capacity: 24 << 30}
	return o
}

const mib, gib = 1 << 20, 1 << 30

func TestPeriod(t *testing.T) {
	armed := thresholds(t, map[string]time.Duration{"1Gi": 0, "2Gi": time.Minute})
	unreadable := observed(0)
	unreadable[signal.MemoryAvailable].Status = signal.Unreadable
	for _, tc := range []struct {
		name string
		o    signal.Observations
		rate float64
		want time.Duration
	}{
		{"far", observed(20 * gib), 6 * gib, time.Second},
		{"6 GiB above the soft threshold", observed(8 * gib), 6 * gib, 500 * time.Millisecond},
		{"slow fill rate", observed(4 * gib), gib, time.Second},
		{"close", observed(2*gib + 1<<20), 6 * gib, minPollInterval},
		{"below the soft, above the hard threshold", observed(gib + gib/2), 6 * gib, time.Second / 24},
		{"below both, to see when it is above again", observed(gib / 2), 6 * gib, minPollInterval},
		{"not observed", signal.Observations{}, 6 * gib, time.Second},
		{"unreadable", unreadable, 6 * gib, unreadablePollInterval},
	} {
		w := pollState{rate: tc.rate}
		if got := w.period(&tc.o, armed); got.Round(time.Microsecond) != tc.want.Round(time.Microsecond) {
			t.Errorf("%s: period = %v; want %v", tc.name, got, tc.want)
		}
	}
}

func TestCrossing(t *testing.T) {
	armed := thresholds(t, map[string]time.Duration{"1Gi": 0, "2Gi": time.Minute})
	start := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	unreadable := signal.Observations{signal.MemoryAvailable: {Status: signal.Unreadable, Err: errors.New("x")}}
	const hard, soft = signal.ThresholdID(1), signal.ThresholdID(2)
	var w pollState
	for i, tc := range []struct {
		o    signal.Observations
		want signal.ThresholdID
	}{
		{observed(3 * gib), 0},
		{observed(2 * gib), 0}, // equal to the threshold is not below
		{observed(2*gib - 1), soft},
		{observed(2*gib - 2), 0},
		{observed(gib - 1), hard},
		{observed(gib - 2), 0},
		{unreadable, 0},
		{observed(gib - 2), signal.IDOf(&armed[0])}, // may have been above while unreadable
		{observed(3 * gib), 0},
		{observed(0), signal.IDOf(&armed[0])}, // both at once: the first is returned
	} {
		if got, _ := w.update(start.Add(time.Duration(i)*time.Second), &tc.o, armed); got != tc.want {
			t.Errorf("reading %d: update() = %v; want %v", i, got, tc.want)
		}
	}
	if want := start.Add(8 * time.Second); !w.lastAbove.Equal(want) {
		t.Errorf("lastAbove = %v; want %v", w.lastAbove, want)
	}
}

// The alarm of a crossing that file cache brought is not answered. A second one, answered,
// follows when other memory has grown.
func TestPollAnswers(t *testing.T) {
	const hard = signal.ThresholdID(1)
	armed := thresholds(t, map[string]time.Duration{"1Gi": 0})
	cached := func(available, cache int64) signal.Observations {
		o := observed(available)
		o[signal.MemoryAvailable].Cache = cache
		return o
	}
	start := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	var w pollState
	for i, tc := range []struct {
		o        signal.Observations
		want     signal.ThresholdID
		answered bool
	}{
		{cached(3*gib, gib), 0, false},
		{cached(gib-1, 3*gib), hard, false},
		{cached(gib-16<<20, 3*gib), 0, false},
		{cached(gib-33<<20, 3*gib), hard, true},
		{cached(gib-33<<20, 3*gib), 0, false}, // it stays answered
		{cached(3*gib, 3*gib), 0, false},
		{cached(gib-1, 3*gib), hard, true}, // other memory brought it
	} {
		now := start.Add(time.Duration(i) * time.Second)
		if got, answered := w.update(now, &tc.o, armed); got != tc.want || answered != tc.answered {
			t.Errorf("reading %d: update() = %v, answered %t; want %v, %t", i, got, answered, tc.want, tc.answered)
		}
	}
}

// An answered crossing whose alarm was not received is raised again.
func TestPollRepeatsAnswer(t *testing.T) {
	armed := thresholds(t, map[string]time.Duration{"1Gi": 0})
	start := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	var w pollState
	update := func(at int, available int64) (signal.ThresholdID, bool) {
		o := observed(available)
		o[signal.MemoryAvailable].Cache = 3 * gib
		return w.update(start.Add(time.Duration(at)*time.Second), &o, armed)
	}
	update(0, gib-1)
	id, answered := update(1, gib-33<<20)
	if id != signal.ThresholdID(1) || !answered {
		t.Fatalf("update() = %v, %t; want the hard threshold, answered", id, answered)
	}
	w.repeatAnswer(id)
	if id, answered := update(2, gib-66<<20); id != signal.ThresholdID(1) || !answered {
		t.Errorf("after an alarm that was not received: update() = %v, %t; want it again", id, answered)
	}
	w.update(start.Add(3*time.Second), new(signal.Observations), nil) // not a threshold any more
	if w.crossings[id] != nil {
		t.Error("the crossing of a threshold that is not armed any more is still followed")
	}
}

func TestFillRate(t *testing.T) {
	w := pollState{rate: 6 * gib}
	at := func(seconds, available float64) {
		o := observed(int64(available))
		o[signal.MemoryAvailable].Time = time.Unix(0, int64(seconds*1e9)).Add(time.Hour)
		w.updateRate(&o)
	}
	at(0, 20*gib)
	at(0.1, 18*gib)
	if got := w.rate; got < 19*gib || got > 21*gib {
		t.Errorf("rate after 2 GiB in 0.1 s = %v; want 20 GiB/s", got/gib)
	}
	for i := range 20000 {
		at(1+float64(i), 18*gib)
	}
	if w.rate != minFillRate {
		t.Errorf("rate after a long time without change = %v; want %v", w.rate, float64(minFillRate))
	}
}

// A second crossing may follow the first at once: polling has to see that memory was above
// the threshold in between.
func TestPollRaisesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		p := NewPoll(func(now time.Time, o *signal.Observations) {
			available := int64(gib + 1<<20)
			// Below from 2.0 s to 2.2 s, and from 2.3 s on.
			if at := now.Sub(start); at > 2*time.Second && at < 2200*time.Millisecond || at > 2300*time.Millisecond {
				available = gib / 2
			}
			*o = observed(available)
			o[signal.MemoryAvailable].Time = now
		}, 2, 0)
		p.Arm(thresholds(t, map[string]time.Duration{"1Gi": 0}))
		alarms := make(chan Alarm, 1)
		ctx, cancel := context.WithCancel(t.Context())
		go p.Run(ctx, alarms)
		<-alarms
		var again Alarm
		select {
		case again = <-alarms:
		case <-time.After(10 * time.Second):
			t.Error("no second alarm")
		}
		if above := again.LastAbove.Sub(start); above < 2200*time.Millisecond || above > 2300*time.Millisecond {
			t.Errorf("second alarm: last above at %v; want between the two crossings", above)
		}
		cancel()
		synctest.Wait()
	})
}

// While memory falls from far above, polling reads often enough to raise an alarm soon after
// the crossing, and sets LastAbove.
func TestPollRaises(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		available := func(now time.Time) int64 {
			return 8*gib - int64(now.Sub(start).Seconds()*2*gib) // crosses 1 GiB after 3.5 s
		}
		p := NewPoll(func(now time.Time, o *signal.Observations) {
			*o = observed(max(0, available(now)))
			o[signal.MemoryAvailable].Time = now
		}, 2, 0)
		p.Arm(thresholds(t, map[string]time.Duration{"1Gi": 0}))
		alarms := make(chan Alarm, 1)
		ctx, cancel := context.WithCancel(t.Context())
		go p.Run(ctx, alarms)
		first := <-alarms
		crossing := start.Add(3500 * time.Millisecond)
		if late := first.Seen.Sub(crossing); late <= 0 || late > 15*time.Millisecond {
			t.Errorf("raised %v after the crossing; want within 15ms", late)
		}
		if !first.LastAbove.Before(first.Seen) || first.LastAbove.After(crossing) {
			t.Errorf("lastAbove = %v, seen = %v; the crossing was at %v", first.LastAbove, first.Seen, crossing)
		}
		time.Sleep(10 * time.Second)
		if got := time.Since(p.LastReading()); got > maxPollInterval {
			t.Errorf("last reading %v ago; want at most %v", got, maxPollInterval)
		}
		select {
		case again := <-alarms:
			t.Errorf("raised again at %v without a new crossing", again.Seen)
		default:
		}
		cancel()
		synctest.Wait()
	})
}
