package podfence

import (
	"strings"
	"testing"
)

// A fence whose old limit the kernel does not accept is lifted by a later attempt, and not if it was
// set again meanwhile.
func TestLiftAgain(t *testing.T) {
	h := native(t)
	for _, again := range []bool{false, true} {
		p := newPod(t, h)
		file := marksFile(t)
		table, _ := openTable(t, h, file)
		p.write(p.files[0], "500")
		before := p.limits()
		f := p.prepare(table)
		if err := f.Set("1", "note"); err != nil {
			t.Fatal(err)
		}
		old := f.mark.old
		f.mark.old[p.files[0]] = 1 << 40 // more than the kernel accepts
		for i, lift := range []func() error{f.Lift, f.LiftAgain} {
			if err := lift(); err == nil || !strings.Contains(err.Error(), "write "+p.files[0].String()) || f.IsSet() {
				t.Errorf("attempt %d = %v; want the write refused, and the fence to be lifted again", i, err)
			}
		}
		f.mark.old = old
		want, marks := before, 0
		if again {
			want, marks = p.all("0"), 1
			if err := f.Set("2", ""); err != nil {
				t.Error(err)
			}
		}
		if err := f.LiftAgain(); err != nil || p.limits() != want || f.IsSet() != again || len(marksIn(t, file)) != marks {
			t.Errorf("again=%t: LiftAgain = %v, limits %s, marks %+v; want %s and %d marks", again, err, p.limits(), marksIn(t, file), want, marks)
		}
		if err := f.Lift(); err != nil || p.limits() != before {
			t.Errorf("again=%t: Lift = %v, limits %s; want %s", again, err, p.limits(), before)
		}
	}
}
