package reclaim

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/cri"
)

// removeDead removes what is dead, the oldest first, until the signal has come up
// to the target. It returns what of the signal evicted pods held that were
// removed, as far as that is known.
func (r *Reclaimer) removeDead(ctx context.Context, report *Report, target int64) (promised int64) {
	sandboxes, containers, evicted, err := r.listEnded(ctx, report.At)
	if err != nil {
		report.Error = err.Error()
		return 0
	}
	absent := r.settings().KubeletAbsent
	for _, d := range dead(sandboxes, containers, exits(ctx, r.o.Runtime, sandboxes, containers, evicted), evicted, absent, minimumAge, time.Now()) {
		if len(report.Removed) > 0 && r.settledAt(ctx, report, target, d.evicted) || ctx.Err() != nil {
			return promised
		}
		if !report.DryRun {
			if err := r.buryAgain(ctx, &d); err != nil {
				report.Error = err.Error()
				continue
			}
		}
		what := "sandbox " + d.name
		if d.container != "" {
			what = "container " + d.name
		}
		report.Removed = append(report.Removed, what)
		if held := evicted[d.sandbox.ID]; d.evicted && held.Inodes == report.Signal.IsInodes() {
			promised += held.Amount
		}
	}
	if absent {
		r.removeOrphans(ctx, report, target, sandboxes)
	}
	return promised
}

// listEnded lists what the runtime has, once it has seen the end of what is
// evicted: until then its layers can't be removed, and the next pod would go for
// them.
func (r *Reclaimer) listEnded(ctx context.Context, since time.Time) ([]cri.Sandbox, []cri.Container, map[string]Held, error) {
	for {
		sandboxes, containers, err := list(ctx, r.o.Runtime)
		if err != nil {
			return nil, nil, nil, err
		}
		evicted := r.stillThere(sandboxes)
		runs := false
		for i := range containers {
			_, ours := evicted[containers[i].SandboxID]
			runs = runs || ours && containers[i].State != cri.StateExited
		}
		if !runs || time.Since(since) >= endFor || !pause(ctx) {
			return sandboxes, containers, evicted, nil
		}
	}
}

// stillThere forgets evicted sandboxes that are gone and returns the others.
func (r *Reclaimer) stillThere(sandboxes []cri.Sandbox) map[string]Held {
	r.mu.Lock()
	defer r.mu.Unlock()
	there := map[string]Held{}
	for i := range sandboxes {
		if held, ours := r.evicted[sandboxes[i].ID]; ours {
			there[sandboxes[i].ID] = held
		}
	}
	r.evicted = maps.Clone(there)
	return there
}

// settledAt reports whether enough is back. What evictd evicted goes without
// looking: it was evicted for what it held.
func (r *Reclaimer) settledAt(ctx context.Context, report *Report, target int64, anyway bool) bool {
	return !anyway && !report.DryRun && r.settle(ctx, report.Signal, target)
}

// list lists what the runtime has, as a whole or not at all: what a part leaves
// out may be what keeps the rest alive.
func list(ctx context.Context, p Pods) ([]cri.Sandbox, []cri.Container, error) {
	// Containers first: the sandbox of each is then in the later list.
	containers, err := p.Containers(ctx)
	if err != nil {
		return nil, nil, err
	}
	sandboxes, err := p.Sandboxes(ctx)
	return sandboxes, containers, err
}

// exits asks when and where containers ended that are in sandboxes that are not
// ready, or evicted. What is not told is left out.
func exits(ctx context.Context, p Pods, sandboxes []cri.Sandbox, containers []cri.Container, evicted map[string]Held) map[string]exit {
	ready := map[string]bool{}
	for i := range sandboxes {
		_, ours := evicted[sandboxes[i].ID]
		ready[sandboxes[i].ID] = sandboxes[i].Ready && !ours
	}
	all := map[string]exit{}
	for i := range containers {
		c := &containers[i]
		if c.State != cri.StateExited || ready[c.SandboxID] {
			continue
		}
		if d, err := p.ContainerDetail(ctx, c.ID); err == nil {
			all[c.ID] = exit{d.Finished, d.LogPath}
		}
	}
	return all
}

// The times between two attempts to remove what was evicted, doubling.
const firstAgain, lastAgain = 100 * time.Millisecond, 1600 * time.Millisecond

// buryAgain is bury, and again for what evictd has just killed: a runtime may fail
// over that for a moment, and the next pod would go for what it holds.
func (r *Reclaimer) buryAgain(ctx context.Context, d *remains) error {
	err := r.bury(ctx, d)
	for wait := firstAgain; err != nil && d.evicted && wait <= lastAgain; wait *= 2 {
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
		}
		err = r.bury(ctx, d)
	}
	return err
}

// bury removes what is left of a pod, with its logs.
func (r *Reclaimer) bury(ctx context.Context, d *remains) error {
	if d.container != "" {
		return r.o.Runtime.RemoveContainer(ctx, d.container)
	}
	if d.sandbox.Ready { // evicted; nothing runs in it
		if err := r.o.Runtime.StopSandbox(ctx, d.sandbox.ID); err != nil {
			return err
		}
	}
	if err := r.o.Runtime.RemoveSandbox(ctx, d.sandbox.ID); err != nil {
		return err
	}
	if dir := d.logDir(); dir != "" {
		if err := os.RemoveAll(filepath.Join(r.o.Rootfs, dir)); err != nil {
			return fmt.Errorf("remove logs of %s: %w", d.name, err)
		}
	}
	return nil
}

// removeImages removes images that nothing uses, the least recently used first,
// until the signal has come up to the target.
func (r *Reclaimer) removeImages(ctx context.Context, report *Report, target int64, p Policy) {
	images, err := r.look(ctx, p)
	if err != nil {
		report.Error = err.Error()
		return
	}
	if images.off != "" {
		report.Note = images.off
		return
	}
	r.shed(ctx, report, target, images.removable)
}

// everything is more than any filesystem has.
const everything = 1 << 62

// shed removes images until enough is back. What an image gives back is learnt from
// those before it: runtimes tell the size of what they fetched, which may be less
// than half of what it takes up, or shared with others. While that is less than
// what lacks, the next image is not waited for.
func (r *Reclaimer) shed(ctx context.Context, report *Report, target int64, images []cri.Image) {
	left, _ := r.left(report.Signal)
	before := left
	var promised, removed int64
	ratio := 1.0
	for i := range images {
		if ctx.Err() != nil {
			return
		}
		first := len(report.Removed) == 1 && target < everything
		enough := float64(promised)*ratio >= float64(target-left) && !report.Signal.IsInodes() || report.Signal.IsInodes() && len(report.Removed) > 0
		switch {
		case !enough && !first:
		case report.DryRun && enough && !report.Signal.IsInodes():
			return
		case !report.DryRun:
			if r.settle(ctx, report.Signal, target) {
				return
			}
			left, _ = r.left(report.Signal)
			promised, ratio = 0, max(1, float64(left-before)/float64(max(1, removed)))
		}
		if !report.DryRun {
			if err := r.o.Runtime.RemoveImage(ctx, images[i].ID); err != nil {
				report.Error = err.Error()
				continue
			}
		}
		report.Removed = append(report.Removed, imageName(&images[i]))
		promised += images[i].Bytes
		removed += images[i].Bytes
	}
}

// collection is what there is to collect.
type collection struct {
	removable []cri.Image
	off       string // why nothing is; "" where it is
}

// look finds out which images are there, which are in use, and whether they are
// evictd's to remove.
func (r *Reclaimer) look(ctx context.Context, p Policy) (collection, error) {
	images, err := r.o.Runtime.Images(ctx)
	if err != nil {
		return collection{}, err
	}
	// After the images: what is made of one meanwhile is then seen.
	sandboxes, containers, err := list(ctx, r.o.Runtime)
	if err != nil {
		return collection{}, err
	}
	sandboxImage, err := r.o.Runtime.SandboxImage(ctx)
	if err != nil {
		return collection{}, err
	}
	used, now := usedBy(containers, sandboxImage), time.Now()
	if r.o.Seen != nil {
		defer r.o.Seen()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history.see(images, used, now)
	r.own = exclusive(images, containers)
	return collection{removable: r.history.removable(images, used, p.MinAge, now), off: r.off(p, sandboxes)}, nil
}

// off says why images are not collected here, "" where they are.
func (r *Reclaimer) off(p Policy, sandboxes []cri.Sandbox) string {
	switch p.Images {
	case On:
		return ""
	case Off:
		return "imageGC is off"
	}
	if p.KubeletAbsent {
		return ""
	}
	for i := range sandboxes {
		if _, ok := sandboxes[i].Annotations[configSource]; ok {
			return "a kubelet collects images here (imageGC: on does it too)"
		}
	}
	if r.o.KubeletSeen() {
		return "a kubelet runs here (imageGC: on collects images all the same)"
	}
	return ""
}

// overused returns the signal of imagefs whose usage is at or above the high
// mark, bytes before inodes, and else that of its bytes.
func (r *Reclaimer) overused(now time.Time) (signal.Signal, bool) {
	p := r.settings()
	var o signal.Observations
	r.o.Space.Read(now, &o)
	for _, s := range []signal.Signal{signal.ImageFsAvailable, signal.ImageFsInodesFree} {
		if _, over := lacks(&o[s], p.High, p.Low); over {
			return s, true
		}
	}
	return signal.ImageFsAvailable, false
}

// lacks returns what has to be left for usage to come down to the low mark, and
// whether it is at or above the high one. A high mark of 100 is none, as for the
// kubelet, and where the filesystem is read-only nothing would come of it.
func lacks(o *signal.Observation, high, low int32) (target int64, over bool) {
	if o.Status != signal.Observed || o.Capacity <= 0 || o.ReadOnly || high >= 100 {
		return 0, false
	}
	used := 100 - float64(o.Available)*100/float64(o.Capacity)
	return int64(float64(o.Capacity) * float64(100-low) / 100), used >= float64(high)
}

// collect removes images that have not been used for too long and, where the
// filesystem is used too much, others.
func (r *Reclaimer) collect(ctx context.Context, s signal.Signal, over bool) {
	p := r.settings()
	report := Report{At: time.Now(), Kind: evict.ReclaimImages, Reason: Age, Signal: s, DryRun: r.o.DryRun(), Removed: []string{}}
	images, err := r.look(ctx, p)
	if err != nil {
		r.o.Log.Debug("images not looked at", "error", err)
		return
	}
	var now signal.Observations
	r.o.Space.Read(report.At, &now)
	if images.off != "" || now[s].ReadOnly {
		return
	}
	before, _ := r.left(s)
	if p.MaxAge > 0 {
		r.mu.Lock()
		var old []cri.Image
		for _, i := range images.removable {
			if r.history.idle(i.ID, report.At) > p.MaxAge {
				old = append(old, i)
			}
		}
		r.mu.Unlock()
		r.shed(ctx, &report, everything, old)
		images.removable = images.removable[min(len(report.Removed), len(images.removable)):]
	}
	if over {
		report.Reason = Threshold
		var o signal.Observations
		r.o.Space.Read(time.Now(), &o)
		if target, still := lacks(&o[s], p.High, p.Low); still {
			r.shed(ctx, &report, target, images.removable)
		}
	}
	if len(report.Removed) == 0 && report.Error == "" || ctx.Err() != nil {
		return
	}
	after, _ := r.left(s)
	report.Freed, report.Took = max(0, after-before), time.Since(report.At)
	r.keep(report)
}
