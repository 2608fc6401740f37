package lanes

import "time"

// recordedSource is a source whose alarms the Set records. It is used as a value, so that two
// recordedSources of the same source are equal.
type recordedSource struct {
	Source
	set *Set
}

// Ready implements Source.
func (r recordedSource) Ready(now time.Time) (Alarm, bool) {
	a, raised := r.Source.Ready(now)
	if !raised || !r.set.recordAlarm(&a, now) {
		return Alarm{}, false
	}
	return a, true
}

// recordAlarm counts an alarm for its lane and records its time, against which missed alarms
// are determined. It reports whether the alarm is passed on: a [Fault] may discard it.
func (s *Set) recordAlarm(a *Alarm, now time.Time) bool {
	for _, e := range s.entries {
		if e.name != a.Lane {
			continue
		}
		if e.fault.dropAlarms() {
			return false
		}
		at := int64(now.Sub(s.start))
		e.alarms.Add(1)
		e.lastAlarmAt.Store(at)
		if a.Threshold != 0 {
			e.alarmAt[a.Threshold].Store(at)
		}
		if e.name == Memcg {
			s.notify() // move the threshold on growth after the crossing
		}
		return true
	}
	return true
}

// Add implements Waiter for the lanes, and records the alarms of their sources.
func (s *Set) Add(source Source) error { return s.o.Wait.Add(recordedSource{source, s}) }

// Remove implements Waiter.
func (s *Set) Remove(source Source) error { return s.o.Wait.Remove(recordedSource{source, s}) }

// Raise implements Waiter.
func (s *Set) Raise(a Alarm) error {
	if !s.recordAlarm(&a, time.Now()) {
		return nil
	}
	return s.o.Wait.Raise(a)
}
