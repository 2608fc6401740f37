package agent

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/disks"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/execute"
	"github.com/evictd/evictd/agent/hot"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/kernel/disk"
)

// logged has the daemon log into memory, and returns a function that lists the
// messages so far.
func logged(d *daemon) func() []string {
	var b bytes.Buffer
	l := slog.New(slog.NewTextHandler(&b, nil))
	d.log.Logger, d.loop.log = l, l
	message := regexp.MustCompile(`msg="?(.*?)"? (?:pod|uid)=`)
	return func() (all []string) {
		for _, m := range message.FindAllStringSubmatch(b.String(), -1) {
			all = append(all, m[1])
		}
		return all
	}
}

// hasty is an actuator that reports the end of an eviction before it returns.
type hasty struct{ report func(act.Progress) }

func (h hasty) Evict(_ context.Context, j act.Job) {
	h.report(act.Progress{UID: j.Order.UID, Stage: act.LastGone, Time: time.Now()})
	h.report(act.Progress{UID: j.Order.UID, Stage: act.Finished, Time: time.Now()})
}

func (h hasty) Follow(ctx context.Context, o evict.Order, hold *act.Hold, _ act.Strike) {
	h.Evict(ctx, act.Job{Order: o})
}

func (hasty) Harden(context.Context, act.Job) {}

// The log has the beginning of an eviction before its end, however short it is,
// and dry run never says that a pod is evicted.
func TestOrderOfLogLines(t *testing.T) {
	for _, tt := range []struct {
		name   string
		dryRun bool
		want   []string
	}{
		{"enforce", false, []string{"evicting pod", "eviction ended"}},
		{"dry run", true, []string{"would evict pod", "dry run: pod left alone"}},
	} {
		d := buildHere(t)
		messages := logged(d)
		l := d.loop
		actuator := func(report func(act.Progress)) act.Actuator { return hasty{report} }
		l.execute = execute.New(execute.Options{
			Killer: actuator, DryRun: actuator, Records: d.board.records, Log: d.log.Logger, Metrics: d.metrics, Save: d.keeper.poke,
		})
		v := &View{Time: time.Now(), Policy: l.policy, Config: l.config, Mode: mode{dryRun: tt.dryRun}}
		v.Orders.Evict = []evict.Order{{UID: "u", Pod: "default/p", Cause: signal.PIDAvailable.String(), Hard: true}}
		l.act(t.Context(), v)
		if got := messages(); !slices.Equal(got, tt.want) {
			t.Errorf("%s: log lines = %q; want %q", tt.name, got, tt.want)
		}

		v = &View{Time: time.Now(), Policy: l.policy, Config: l.config, Mode: v.Mode}
		v.Orders.Adopted = []evict.Order{{UID: "h", Pod: "default/hot", Cause: signal.MemoryAvailable.String(), Hard: true}}
		l.adopt(t.Context(), v, []hot.Kill{{
			Pod: &evict.Pod{UID: "h"}, Threshold: evict.Threshold{Threshold: signal.Threshold{Signal: signal.MemoryAvailable}}, DryRun: tt.dryRun, Hold: &act.Hold{},
		}})
		if got := messages()[len(tt.want):]; !slices.Equal(got, tt.want) {
			t.Errorf("%s, hot path: log lines = %q; want %q", tt.name, got, tt.want)
		}
	}
}

// The status for systemctl status has no reading: it is only sent when it changes.
func TestStatusLine(t *testing.T) {
	v := &View{}
	v.Observations[signal.MemoryAvailable] = signal.Observation{Status: signal.Observed, Available: 1 << 30}
	for _, tt := range []struct {
		dryRun     bool
		conditions []signal.Condition
		want       string
	}{
		{false, nil, "enforcing; no pressure"},
		{true, nil, "dry run, nothing is evicted; no pressure"},
		{false, []signal.Condition{signal.DiskPressure, signal.MemoryPressure}, "enforcing; DiskPressure; MemoryPressure"},
	} {
		v.Mode.dryRun, v.Orders.Conditions = tt.dryRun, tt.conditions
		if got := statusLine(v); got != tt.want {
			t.Errorf("statusLine() = %q; want %q", got, tt.want)
		}
	}
}

// One cause is one line, however many signals it leaves unread.
func TestUnreadable(t *testing.T) {
	v := &View{}
	missing := errors.New("the container runtime has not told where it is")
	for _, s := range []signal.Signal{signal.ImageFsAvailable, signal.ImageFsInodesFree, signal.ContainerFsAvailable} {
		v.Observations[s] = signal.Observation{Status: signal.Unreadable, Err: missing}
		v.Orders.Unreadable = append(v.Orders.Unreadable, s)
	}
	v.Orders.Unreadable = append(v.Orders.Unreadable, signal.PIDAvailable)
	const want = "imagefs.available, imagefs.inodesFree, containerfs.available can't be read: the container runtime has not told where it is; " +
		"pid.available can't be read: unknown"
	if got := unreadableText(v); got != want {
		t.Errorf("unreadableText() = %q; want %q", got, want)
	}
	d := buildHere(t)
	var b bytes.Buffer
	d.log.Logger = slog.New(slog.NewTextHandler(&b, nil))
	d.reports.announce(v)
	d.reports.announce(v) // nothing has changed
	if got := strings.Count(b.String(), "level=ERROR"); got != 2 {
		t.Errorf("%d errors are logged; want 2, one for each cause:\n%s", got, b.String())
	}
}

// A layout is named once it is known where all filesystems are.
func TestLayoutOf(t *testing.T) {
	found := disks.Status{Path: "/", Mount: disk.Mount{ID: 1}}
	for _, tt := range []struct {
		all  []disks.Status
		want string
	}{
		{nil, ""},
		{[]disks.Status{found, {Role: disks.Image}}, ""},
		{[]disks.Status{found, {Role: disks.Image, Path: "/var"}}, ""},
		{[]disks.Status{found, found}, "single"},
	} {
		if got := layoutOf(evict.SingleFs, tt.all); got != tt.want {
			t.Errorf("layoutOf(%+v) = %q; want %q", tt.all, got, tt.want)
		}
	}
}
