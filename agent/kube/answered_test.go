package kube

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// Answered is called once for each order, with its first final answer, also if the order ends
// with it, and without the mutex.
func TestAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newOrders(t)
		defer u.stop()
		var got []string
		u.o.Answered = func(uid string, answer Answer, at time.Time) {
			if !at.Equal(time.Now()) {
				t.Errorf("answered at %v; want now", at)
			}
			u.Status() // would not return if the mutex were locked
			got = append(got, uid+" "+string(answer))
		}
		killed(u)
		for _, a := range []Answer{AnswerMarked, AnswerDelayed, AnswerReported, AnswerAsserted, AnswerGone} {
			u.answer("u", a)
		}
		u.CgroupGone("u")
		killed(u)
		u.CgroupGone("u")
		u.answer("u", AnswerGone)
		if want := []string{"u reported", "u gone"}; !slices.Equal(got, want) {
			t.Errorf("answered %q; want %q", got, want)
		}
	})
}
