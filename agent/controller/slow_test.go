package controller

import (
	"context"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/evictd/evictd/agent/fence"
)

// late carries each request out at once, and answers late, or not at all if the caller no longer waits.
func late(by time.Duration) func(context.Context, string, string, func() error) error {
	return func(ctx context.Context, _, _ string, carryOut func() error) error {
		if err := ctx.Err(); err != nil {
			return err // nothing is sent
		}
		err := carryOut()
		select {
		case <-time.After(by):
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// TestSlowServer: an API server that takes seconds for each answer of a whole fence has nothing released that runs, and
// the node recovers. One that is so slow that not all can be read has the fence wait, with a reason, until it is faster.
func TestSlowServer(t *testing.T) {
	for _, s := range scenarios() {
		t.Run("2s/"+s.name, func(t *testing.T) {
			t.Parallel()
			faulty(t, s, &server{answer: late(2 * time.Second)}, 0, 24*time.Hour, nil)
		})
	}
	for _, s := range scenarios()[:4] {
		t.Run("10s/"+s.name, func(t *testing.T) {
			t.Parallel()
			// Longer than that, a method of Recovery may use up its attempts.
			for from := time.Duration(0); from < 8*time.Minute; from += time.Duration(stride(97, 241)) * time.Second {
				faulty(t, s, &server{answer: late(10 * time.Second)}, from, 10*time.Minute, nil)
			}
		})
	}
	t.Run("10s, held", func(t *testing.T) {
		s := scenarios()[0]
		checked := false
		s.each = func(_ context.Context, w *world) {
			if checked || time.Since(w.begun) < 30*time.Minute {
				return
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			checked = true
			if w.fence == nil || len(w.intents) > 0 {
				t.Errorf("after 30 min: fence %+v, intents %v; want a fence without acts", w.fence, w.intents)
				return
			}
			c := meta.FindStatusCondition(w.fence.State.Conditions, fence.ConditionStormHold)
			if c == nil || c.Status != "True" || c.Reason != reasonUnknown {
				t.Errorf("StormHold = %+v; want the reason %s", c, reasonUnknown)
			}
		}
		faulty(t, s, &server{answer: late(10 * time.Second)}, 0, time.Hour, nil)
		if !checked {
			t.Error("the fence ended while nothing could be read")
		}
	})
}

// TestClockOff: during a whole fence the clocks of the machine and of the controller differ by 10 minutes. Nothing is
// released that runs, and the node recovers. Its fence begins one grace period after its last renewal, and as much later
// as its clock is ahead.
func TestClockOff(t *testing.T) {
	const minutes = 10 * time.Minute
	for _, s := range scenarios()[:4] {
		for name, skew := range map[string]time.Duration{"ahead": minutes, "behind": -minutes} {
			t.Run(name+"/"+s.name, func(t *testing.T) {
				t.Parallel()
				var opened time.Duration
				faulty(t, s, &server{answer: unanswered}, 24*time.Hour, 0, func(w *world, _ *life) {
					w.skew = skew
					lease := leaseOf("n1", time.Time{})
					check(t, w.api.Get(t.Context(), client.ObjectKeyFromObject(lease), lease))
					lease.Spec.RenewTime.Time = time.Now().Add(skew)
					check(t, w.api.Update(t.Context(), lease))
					each := s.each
					w.each = func(ctx context.Context, w *world) {
						w.mu.Lock()
						if w.fence != nil && opened == 0 {
							opened = time.Since(w.begun)
						}
						w.mu.Unlock()
						if each != nil {
							each(ctx, w)
						}
					}
				})
				want := time.Minute + max(skew, 0)
				if opened < want || opened > want+longestWait {
					t.Errorf("the fence began after %v; want %v", opened, want)
				}
			})
		}
	}
}
