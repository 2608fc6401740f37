package pollinterval

import (
	"testing"
	"time"
)

// A caller that waits as long as Spend returns uses its share and the saved burst, no
// more, however often it calls.
func TestBudget(t *testing.T) {
	const share, most = 10, 500 * time.Millisecond
	for _, step := range []time.Duration{100 * time.Microsecond, time.Millisecond, time.Second} {
		b := NewBudget(share, most)
		begin := b.updatedAt
		now, used := begin, time.Duration(0)
		for now.Sub(begin) < time.Minute {
			used += step
			now = now.Add(step) // it used one CPU in that time
			now = now.Add(b.Spend(step, now))
		}
		if limit := now.Sub(begin)/share + most; used > limit || used < limit*9/10 {
			t.Errorf("in steps of %v: used %v in %v; want 90 %% to 100 %% of %v", step, used, now.Sub(begin), limit)
		}
	}
	b := NewBudget(share, most)
	if wait := b.Spend(most, b.updatedAt); wait != 0 {
		t.Errorf("wait after using what was saved = %v; want 0", wait)
	}
	if wait := b.Spend(time.Millisecond, b.updatedAt); wait != 10*time.Millisecond {
		t.Errorf("wait after 1ms more = %v; want 10ms", wait)
	}
	if wait := b.Spend(0, b.updatedAt.Add(time.Hour)); wait != 0 || b.saved != most {
		t.Errorf("after 1h: wait %v, saved %v; want 0 and %v", wait, b.saved, most)
	}
}
