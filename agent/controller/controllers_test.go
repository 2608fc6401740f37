package controller

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestTwoControllers: two controllers, both without leader election by mistake, work on the same fence. An act is done
// once, and nothing is released from a machine that is on.
func TestTwoControllers(t *testing.T) {
	for _, s := range scenarios() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			for _, offset := range []time.Duration{0, time.Second, 61 * time.Second, 63 * time.Second, 70 * time.Second, 2 * time.Minute} {
				synctest.Test(t, func(t *testing.T) {
					ctx, end := context.WithCancel(t.Context())
					w, base := s.begin(t)
					w.moved = true // by the other one
					go w.run(ctx)
					var wg sync.WaitGroup
					lives := []*life{{killAt: -1, yields: true}, {killAt: -1, yields: true}}
					wg.Go(func() { live(ctx, t, w, lives[0], base, 0) })
					wg.Go(func() {
						time.Sleep(offset)
						live(ctx, t, w, lives[1], base, 1)
					})
					wg.Wait()
					w.judgeTaints(t)
					t.Logf("the second after %v: ended after %v with %d and %d writes and acts, waits: %t, acts %v", offset,
						time.Since(w.begun), len(lives[0].points)/2, len(lives[1].points)/2, w.waits(0), w.intents)
					end()
					synctest.Wait()
					time.Sleep(10 * time.Minute)
				})
			}
		})
	}
}
