package pace

import (
	"testing"
	"time"
)

// However often it is asked, a user that rests as long as it is told to takes no
// more than its share, after what was saved.
func TestBudget(t *testing.T) {
	const share, most = 10, 500 * time.Millisecond
	for _, step := range []time.Duration{100 * time.Microsecond, time.Millisecond, time.Second} {
		b := NewBudget(share, most)
		begin := b.at
		now, used := begin, time.Duration(0)
		for now.Sub(begin) < time.Minute {
			used += step
			now = now.Add(step) // it used one processor meanwhile
			now = now.Add(b.Spend(step, now))
		}
		if limit := now.Sub(begin)/share + most; used > limit || used < limit*9/10 {
			t.Errorf("in steps of %v: %v of %v; want all of %v", step, used, now.Sub(begin), limit)
		}
	}
	b := NewBudget(share, most)
	if wait := b.Spend(most, b.at); wait != 0 {
		t.Errorf("rest after what was saved = %v; want none", wait)
	}
	if wait := b.Spend(time.Millisecond, b.at); wait != 10*time.Millisecond {
		t.Errorf("rest after 1ms more = %v; want 10ms", wait)
	}
	if wait := b.Spend(0, b.at.Add(time.Hour)); wait != 0 || b.saved != most {
		t.Errorf("after an hour: rest %v, saved %v; want no more saved than %v", wait, b.saved, most)
	}
}
