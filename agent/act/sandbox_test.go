package act

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/cri"
	"github.com/evictd/evictd/kernel/cgroup"
)

// flakyRuntime answers StopContainer with stopErr, and StopSandbox with one of sandboxErrs
// after the other, then nil.
type flakyRuntime struct {
	mu           sync.Mutex
	stopErr      error
	sandboxErrs  []error
	sandboxCalls int
}

func (a *flakyRuntime) StopContainer(context.Context, string, time.Duration) error { return a.stopErr }

func (a *flakyRuntime) StopSandbox(context.Context, string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sandboxCalls++
	if a.sandboxCalls > len(a.sandboxErrs) {
		return nil
	}
	return a.sandboxErrs[a.sandboxCalls-1]
}

// A sandbox is stopped when the runtime is back. The order's end is reported before that, and
// is no refusal if the containers have ended.
func TestStopSandboxLater(t *testing.T) {
	gone := []error{cri.ErrUnreachable, cri.ErrUnreachable, cri.ErrTimeout}
	for _, tt := range []struct {
		name    string
		runtime *flakyRuntime
		hard    bool
		end     Stage
		asked   int
	}{
		{"hard", &flakyRuntime{sandboxErrs: gone}, true, Finished, 4},
		{"soft", &flakyRuntime{sandboxErrs: gone}, false, Finished, 4},
		{"refused", &flakyRuntime{sandboxErrs: []error{cri.ErrMalformed}}, true, Finished, 1},
		{"containers run", &flakyRuntime{stopErr: cri.ErrUnreachable, sandboxErrs: gone}, true, Refused, 1},
		{"containers run, soft", &flakyRuntime{stopErr: cri.ErrUnreachable, sandboxErrs: gone}, false, Refused, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				reports := &progressLog{}
				k := NewKiller(&cgroup.Hierarchy{}, "/proc", tt.runtime, reports.record)
				k.Evict(t.Context(), Job{
					Order: evict.Order{UID: "u", Hard: tt.hard}, SandboxID: "s", Owned: true,
					Containers: []evict.RunningContainer{{ID: "c", Unproven: "for the test"}},
				})
				synctest.Wait()
				if last := reports.last(); last.Stage != tt.end || last.Err == nil {
					t.Errorf("last report before the runtime is back = %+v; want stage %d with an error", last, tt.end)
				}
				k.Wait()
				if tt.runtime.sandboxCalls != tt.asked {
					t.Errorf("sandbox stopped %d times; want %d", tt.runtime.sandboxCalls, tt.asked)
				}
			})
		})
	}
}

// Wait does not wait for an unreachable runtime after the context has ended.
func TestWaitWhileRuntimeUnreachable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		k := NewKiller(&cgroup.Hierarchy{}, "/proc", &flakyRuntime{sandboxErrs: slices.Repeat([]error{cri.ErrUnreachable}, 1000)}, func(Progress) {})
		k.Evict(ctx, Job{Order: evict.Order{UID: "u", Hard: true}, SandboxID: "s", Owned: true, Containers: []evict.RunningContainer{{ID: "c"}}})
		time.Sleep(time.Hour)
		began := time.Now()
		cancel()
		k.Wait()
		if took := time.Since(began); took != 0 || !errors.Is(ctx.Err(), context.Canceled) {
			t.Errorf("Wait took %v after the end; want 0", took)
		}
	})
}

// failingRuntime fails to stop a container that exits during the call.
type failingRuntime struct{ failures, calls int }

func (r *failingRuntime) StopContainer(context.Context, string, time.Duration) error {
	if r.calls++; r.calls <= r.failures {
		return errors.New("failed to kill container: ttrpc: closed")
	}
	return nil
}

func (r *failingRuntime) StopSandbox(context.Context, string) error { return nil }

// A runtime that fails because the container has just exited is asked once more.
func TestStopKilledRetries(t *testing.T) {
	for _, tt := range []struct {
		name         string
		times, asked int
		fails        bool
	}{
		{"once", 1, 2, false},
		{"always", 1000, 2, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				reports := &progressLog{}
				r := &failingRuntime{failures: tt.times}
				k := NewKiller(&cgroup.Hierarchy{}, "/proc", r, reports.record)
				k.Evict(t.Context(), Job{Order: evict.Order{UID: "u", Hard: true}, Containers: []evict.RunningContainer{{ID: "c"}}})
				k.Wait()
				last := reports.last()
				if r.calls != tt.asked || (last.Err != nil) != tt.fails {
					t.Errorf("%d calls, last report %+v; want %d, failure %t", r.calls, last, tt.asked, tt.fails)
				}
			})
		})
	}
}
