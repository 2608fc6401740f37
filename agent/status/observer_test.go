package status

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/loop"
	"github.com/evictd/evictd/agent/signal"
)

func TestStatusLine(t *testing.T) {
	v := &loop.View{}
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
		v.Mode.DryRun, v.Orders.Conditions = tt.dryRun, tt.conditions
		if got := statusLine(v); got != tt.want {
			t.Errorf("statusLine() = %q; want %q", got, tt.want)
		}
	}
}

// TestUnreadable checks that one cause is logged once, however many signals it
// affects.
func TestUnreadable(t *testing.T) {
	v := &loop.View{}
	missing := errors.New("path not known: no answer to ImageFsInfo from the container runtime")
	for _, s := range []signal.Signal{signal.ImageFsAvailable, signal.ImageFsInodesFree, signal.ContainerFsAvailable} {
		v.Observations[s] = signal.Observation{Status: signal.Unreadable, Err: missing}
		v.Orders.Unreadable = append(v.Orders.Unreadable, s)
	}
	v.Orders.Unreadable = append(v.Orders.Unreadable, signal.PIDAvailable)
	const want = "imagefs.available, imagefs.inodesFree, containerfs.available can't be read: path not known: no answer to ImageFsInfo from the container runtime; " +
		"pid.available can't be read: unknown"
	if got := unreadableText(v); got != want {
		t.Errorf("unreadableText() = %q; want %q", got, want)
	}
	var b bytes.Buffer
	r := NewObserver(ObserverOptions{Log: slog.New(slog.NewTextHandler(&b, nil))})
	r.ready = true // so that no status about failed checks is sent
	r.status = statusLine(v)
	r.reportChanges(v)
	r.reportChanges(v) // without a change
	if got := strings.Count(b.String(), "level=ERROR"); got != 2 {
		t.Errorf("%d errors were logged; want 2, one for each cause:\n%s", got, b.String())
	}
}

// TestLayoutOf checks that the layout is empty until all filesystems are located.
func TestLayoutOf(t *testing.T) {
	found := evict.FilesystemStatus{Path: "/", Device: "8:1"}
	for _, tt := range []struct {
		all  []evict.FilesystemStatus
		want string
	}{
		{nil, ""},
		{[]evict.FilesystemStatus{found, {Name: "imagefs"}}, ""},
		{[]evict.FilesystemStatus{found, {Name: "imagefs", Path: "/var"}}, ""},
		{[]evict.FilesystemStatus{found, found}, "single"},
	} {
		if got := layoutOf(evict.SingleFs, tt.all); got != tt.want {
			t.Errorf("layoutOf(%+v) = %q; want %q", tt.all, got, tt.want)
		}
	}
}
