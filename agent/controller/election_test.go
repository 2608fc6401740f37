package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/evictd/evictd/agent/fence"
)

func TestElectionCheck(t *testing.T) {
	for _, tt := range []struct {
		lease, renew, retry time.Duration
		err                 string
	}{
		{15 * time.Second, 10 * time.Second, 2 * time.Second, ""},
		{3 * time.Second, 1800 * time.Millisecond, 400 * time.Millisecond, ""},
		{3 * time.Second, 2 * time.Second, 400 * time.Millisecond, "--leader-elect-lease-duration 3s must be more than 1s above --leader-elect-renew-deadline 2s"},
		{10 * time.Second, 15 * time.Second, 2 * time.Second, "raise the first, or lower the second"},
		{3500 * time.Millisecond, 2 * time.Second, time.Second, "--leader-elect-lease-duration is in whole seconds, not 3.5s"},
		{15 * time.Second, 10 * time.Second, 10 * time.Second, "--leader-elect-renew-deadline 10s must be more than 12s"},
		{15 * time.Second, 0, 2 * time.Second, "--leader-elect-renew-deadline 0s must be more than 2.4s"},
		{15 * time.Second, 10 * time.Second, 0, "--leader-elect-retry-period is at least 100ms, not 0s"},
		{15 * time.Second, 10 * time.Second, -time.Second, "--leader-elect-retry-period is at least 100ms, not -1s"},
	} {
		e := Election{tt.lease, tt.renew, tt.retry}
		if err := e.Check(); tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
			t.Errorf("%+v.Check() = %v; want %q", e, err, tt.err)
		} else if err == nil && e.RenewDeadline+e.stopTimeout() >= e.LeaseDuration {
			t.Errorf("%+v.stopTimeout() = %s; want that it ends before the lease", e, e.stopTimeout())
		}
	}
}

// leaseServer is the API server as leader election sees it.
type leaseServer struct {
	mu     sync.Mutex
	record *resourcelock.LeaderElectionRecord
	// version is that of the record.
	version int
	away    map[string]bool // controllers whose requests get no answer
}

// lock is the lock of one controller.
type lock struct {
	server   *leaseServer
	identity string
	// seen is the version that was read or written last, which an update replaces.
	seen int
}

func (l *lock) Identity() string   { return l.identity }
func (l *lock) Describe() string   { return "evictd/" + leaseName }
func (l *lock) RecordEvent(string) {}

// answer returns an error if no answer comes.
func (l *lock) answer(ctx context.Context) error {
	l.server.mu.Lock()
	away := l.server.away[l.identity]
	l.server.mu.Unlock()
	if !away {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second) // as the client of resourcelock
	defer cancel()
	<-ctx.Done()
	return ctx.Err()
}

func (l *lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	if err := l.answer(ctx); err != nil {
		return nil, nil, err
	}
	l.server.mu.Lock()
	defer l.server.mu.Unlock()
	if l.server.record == nil {
		return nil, nil, apierrors.NewNotFound(schema.GroupResource{Resource: "leases"}, leaseName)
	}
	l.seen = l.server.version
	raw, err := json.Marshal(l.server.record)
	r := *l.server.record
	return &r, raw, err
}

func (l *lock) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	if err := l.answer(ctx); err != nil {
		return err
	}
	l.server.mu.Lock()
	defer l.server.mu.Unlock()
	if l.server.record != nil {
		return apierrors.NewAlreadyExists(schema.GroupResource{Resource: "leases"}, leaseName)
	}
	l.write(&r)
	return nil
}

// write replaces the record. l.server.mu is locked.
func (l *lock) write(r *resourcelock.LeaderElectionRecord) {
	l.server.version++
	l.server.record, l.seen = r, l.server.version
}

func (l *lock) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	if err := l.answer(ctx); err != nil {
		return err
	}
	l.server.mu.Lock()
	defer l.server.mu.Unlock()
	switch {
	case l.server.record == nil:
		return apierrors.NewNotFound(schema.GroupResource{Resource: "leases"}, leaseName)
	case l.seen != l.server.version:
		return apierrors.NewConflict(schema.GroupResource{Resource: "leases"}, leaseName, errors.New("changed"))
	}
	l.write(&r)
	return nil
}

func (s *leaseServer) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	s.version++
}

// candidate is a controller as leader election sees it.
type candidate struct {
	*leadership
	mu sync.Mutex
	// leads says since when it is the leader, stopped and lost since when it is not.
	leads, stopped, lost time.Time
	why                  error
	// busy says that an act does not end.
	busy bool
	// suspended is for how long its machine was suspended.
	suspended time.Duration
}

// elect runs leader election for a candidate.
func elect(ctx context.Context, t *testing.T, server *leaseServer, name string, times Election) *candidate {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	c := &candidate{}
	booted := time.Now()
	note := func(at *time.Time) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if at.IsZero() {
			*at = time.Now()
		}
	}
	c.leadership = &leadership{
		Interface: &lock{server: server, identity: name}, times: times, log: slog.New(slog.DiscardHandler),
		stop: func() bool { note(&c.stopped); return !c.busy },
		lost: func(why error) {
			note(&c.lost)
			c.why = why
			cancel()
		},
		holder: func(ctx context.Context) (string, error) {
			record, _, err := (&lock{server: server, identity: name}).Get(ctx)
			if err != nil {
				return "", err
			}
			return record.HolderIdentity, nil
		},
		uptime: func() (time.Duration, error) {
			c.mu.Lock()
			defer c.mu.Unlock()
			return time.Since(booted) + c.suspended, nil
		},
	}
	e, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: c.leadership, LeaseDuration: times.LeaseDuration, RenewDeadline: times.RenewDeadline, RetryPeriod: times.RetryPeriod,
		ReleaseOnCancel: true, Name: leaseName,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { note(&c.leads) }, OnStoppedLeading: func() { note(&c.stopped) },
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	go e.Run(ctx)
	return c
}

// TestLeaseNotRenewed: the acts of a leader that does not reach the API server end before another controller becomes the
// leader, although its requests hang.
func TestLeaseNotRenewed(t *testing.T) {
	for _, times := range []Election{DefaultElection(), {3 * time.Second, 1800 * time.Millisecond, 400 * time.Millisecond}} {
		for offset := time.Duration(0); offset < times.RetryPeriod; offset += 100 * time.Millisecond {
			synctest.Test(t, func(t *testing.T) {
				ctx, end := context.WithCancel(t.Context())
				server := &leaseServer{away: map[string]bool{}}
				first := elect(ctx, t, server, "first", times)
				time.Sleep(time.Second)
				second := elect(ctx, t, server, "second", times)
				time.Sleep(time.Minute + offset)
				synctest.Wait()
				if first.leads.IsZero() || !second.leads.IsZero() || !first.valid() || second.valid() {
					t.Fatalf("leaders since %v and %v; want the first one alone", first.leads, second.leads)
				}
				server.set(func() { server.away["first"] = true })
				time.Sleep(time.Minute)
				synctest.Wait()
				left := second.leads.Sub(first.stopped)
				if first.stopped.IsZero() || second.leads.IsZero() || left < times.stopTimeout() || !errors.Is(first.why, errNotRenewed) {
					t.Errorf("lease %v, %v after a renewal: acts end %v before the next leader, %v; want at least %v", times.LeaseDuration,
						offset, left, first.why, times.stopTimeout())
				}
				if first.valid() || !second.valid() {
					t.Errorf("valid: %t and %t; want the second one alone", first.valid(), second.valid())
				}
				if err := first.Update(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "first"}); err == nil {
					t.Error("the lease is renewed after the leadership was lost")
				}
				end()
			})
		}
	}
}

// slowLock is a lock whose requests are answered late.
type slowLock struct {
	*lock
	delay time.Duration
}

func (l *slowLock) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	err := l.lock.Create(ctx, r)
	time.Sleep(l.delay)
	return err
}

// TestSlowRenewal: the lease is valid from before the request that renews it, and not from its answer.
func TestSlowRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const delay = 4 * time.Second
		booted, times := time.Now(), DefaultElection()
		var lost time.Time
		l := &leadership{
			Interface: &slowLock{&lock{server: &leaseServer{}, identity: "first"}, delay}, times: times, log: slog.New(slog.DiscardHandler),
			stop: func() bool { return true }, lost: func(error) { lost = time.Now() },
			uptime: func() (time.Duration, error) { return time.Since(booted), nil },
		}
		if err := l.Create(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "first"}); err != nil || !l.valid() {
			t.Fatalf("Create = %v, valid %t; want the leader", err, l.valid())
		}
		time.Sleep(times.RenewDeadline - delay)
		synctest.Wait()
		if l.valid() || !lost.Equal(booted.Add(times.RenewDeadline)) {
			t.Errorf("valid %t, lost after %v; want the end after %v", l.valid(), lost.Sub(booted), times.RenewDeadline)
		}
	})
}

// TestSuspended: a leader whose machine was suspended does not act before it has renewed the lease again, although the
// clock of its timers stood still.
func TestSuspended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		server := &leaseServer{}
		c := elect(ctx, t, server, "first", DefaultElection())
		time.Sleep(time.Minute)
		synctest.Wait()
		suspend := func(d time.Duration) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.suspended += d
		}
		if suspend(time.Second); !c.valid() {
			t.Error("the leadership is not valid after a second")
		}
		if suspend(DefaultElection().RenewDeadline); c.valid() {
			t.Error("the leadership is valid after the renew deadline")
		}
		time.Sleep(DefaultElection().RetryPeriod * 2)
		synctest.Wait()
		if !c.valid() || c.why != nil {
			t.Errorf("valid %t, lost %v after a renewal; want the leader", c.valid(), c.why)
		}
		c.leadership.uptime = func() (time.Duration, error) { return 0, errors.New("no clock") }
		if c.valid() {
			t.Error("the leadership is valid without a clock")
		}
		end()
	})
}

// TestLeaseTaken: a leader whose lease another controller has, such as one that a person deleted, ends at its next
// look at it.
func TestLeaseTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		server := &leaseServer{}
		c := elect(ctx, t, server, "first", DefaultElection())
		time.Sleep(time.Minute)
		taken := time.Now()
		server.set(func() {
			*server.record = resourcelock.LeaderElectionRecord{HolderIdentity: "second", LeaseDurationSeconds: 15}
			server.record.RenewTime.Time = taken
		})
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if after := c.stopped.Sub(taken); after < 0 || after > 3*time.Second || !errors.Is(c.why, errOtherLeader) {
			t.Errorf("acts end %v after another controller took the lease, %v; want the next attempt to renew it", after, c.why)
		}
		end()
	})
}

// TestHolds: a leader whose lease was deleted, or is another controller's, learns of it from the API server before the
// next renewal.
func TestHolds(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*leaseServer)
		want   string
		lost   error
	}{
		"held":          {change: func(*leaseServer) {}},
		"deleted":       {change: func(s *leaseServer) { s.record = nil }, want: "not found"},
		"given up":      {change: func(s *leaseServer) { s.record.HolderIdentity = "" }, want: `held by ""`},
		"another's":     {change: func(s *leaseServer) { s.record.HolderIdentity = "second" }, want: `held by "second"`, lost: errOtherLeader},
		"no API server": {change: func(s *leaseServer) { s.away = map[string]bool{"first": true} }, want: "deadline exceeded"},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, end := context.WithCancel(t.Context())
			defer end()
			server := &leaseServer{}
			c := elect(ctx, t, server, "first", DefaultElection())
			time.Sleep(time.Minute + time.Millisecond)
			server.set(func() { tt.change(server) })
			if !c.valid() {
				t.Fatalf("%s: no leader before the read", name)
			}
			reads, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			defer cancel()
			err := c.holds(reads)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("%s: holds = %v; want %q", name, err, tt.want)
			}
			synctest.Wait()
			if !errors.Is(c.why, tt.lost) || tt.lost == nil && c.why != nil {
				t.Errorf("%s: leadership lost: %v; want %v", name, c.why, tt.lost)
			}
			// The election ends then, which gives up what it takes for its own.
			end()
			time.Sleep(time.Minute)
			synctest.Wait()
			if tt.lost != nil && server.record.HolderIdentity != "second" {
				t.Errorf("%s: the lease is held by %q at the end; want the other controller", name, server.record.HolderIdentity)
			}
		})
	}
}

// TestLeader: the holder of the lease is read from the API server.
func TestLeader(t *testing.T) {
	r, api := testReconciler(t, nil, interceptor.Funcs{}, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "evictd", Name: leaseName}, Spec: coordinationv1.LeaseSpec{HolderIdentity: new("c1-0")},
	})
	if got, err := r.observer.live.leader(t.Context()); got != "c1-0" || err != nil {
		t.Errorf("leader = %q, %v; want c1-0", got, err)
	}
	if err := api.DeleteAllOf(t.Context(), &coordinationv1.Lease{}, client.InNamespace("evictd")); err != nil {
		t.Fatal(err)
	}
	if got, err := r.observer.live.leader(t.Context()); !apierrors.IsNotFound(err) {
		t.Errorf("leader without a lease = %q, %v; want NotFound", got, err)
	}
}

// TestLeaseGivenUp: a leader that ends gives up its lease when all its acts have ended, and not before.
func TestLeaseGivenUp(t *testing.T) {
	for _, busy := range []bool{false, true} {
		t.Run(fmt.Sprint("busy ", busy), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, end := context.WithCancel(t.Context())
				server := &leaseServer{}
				c := elect(ctx, t, server, "first", DefaultElection())
				time.Sleep(time.Minute)
				synctest.Wait()
				c.busy = busy
				end()
				synctest.Wait()
				if given := server.record.HolderIdentity == ""; given == busy || c.stopped.IsZero() {
					t.Errorf("given up: %t, acts stopped: %t; want %t and true", given, !c.stopped.IsZero(), !busy)
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				if !busy && c.why != nil {
					t.Errorf("after the lease was given up: %v; want nothing", c.why)
				}
			})
		})
	}
}

// TestNotLeading: an executor whose leadership has ended, or may have, sends nothing and deletes nothing.
func TestNotLeading(t *testing.T) {
	for name, set := range map[string]func(*executor){
		"lease not renewed": func(e *executor) { e.leads = func() bool { return false } },
		"lease deleted":     func(e *executor) { e.holds = func(context.Context) error { return errors.New("gone") } },
		"stopped":           func(e *executor) { e.stop() },
	} {
		for _, action := range []fence.Action{fence.Off, fence.CleanPods} {
			t.Run(fmt.Sprintf("%s, %s", name, action), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					d := &faultyDevice{uuid: machine}
					e := testExecutor(t.Context(), d)
					e.objects = func(context.Context, *order) (fence.OutcomeKind, error) {
						t.Error("an object is changed")
						return fence.Succeeded, nil
					}
					e.pending("n1", fenceUID)
					set(e)
					o := offOrder("1")
					o.intent.Action, o.method.Action = action, action
					e.act(o)
					synctest.Wait()
					outcomes, _, _ := e.pending("n1", fenceUID)
					if d.called("off") > 0 || len(outcomes) != 1 || outcomes[0].Kind != fence.Refused {
						t.Errorf("calls %q, outcomes %+v; want no off, and Refused", d.calls, outcomes)
					}
				})
			})
		}
	}
}
