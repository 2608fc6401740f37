package reclaim

import (
	"context"
	"errors"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/cri"
)

// removeImages removes images that nothing uses, the least recently used first.
func (r *Reclaimer) removeImages(ctx context.Context, b *batches) {
	images, err := r.look(ctx, r.settings())
	if err != nil {
		b.report.Error = err.Error()
		return
	}
	if images.off != "" {
		b.report.Note = images.off
		return
	}
	r.shed(ctx, b, images.removable)
}

// shed removes images. What one gives back is learnt from those before it: runtimes
// report the size of what they fetched, which may be less than half of what it takes
// up, or shared with others.
func (r *Reclaimer) shed(ctx context.Context, b *batches, images []cri.Image) {
	if !b.report.Signal.IsInodes() {
		b.minRatio = 1
	}
	list := make([]removal, 0, len(images))
	for i := range images {
		list = append(list, removal{
			key: "remove image " + images[i].ID, name: imageName(&images[i]), bytes: images[i].Bytes,
			do: func(ctx context.Context) error { return r.removeImage(ctx, &images[i]) },
		})
	}
	if b.report.DryRun {
		b.wouldRemove(list)
		return
	}
	b.run(ctx, list)
}

// errUsed says that an image is in use by now.
var errUsed = errors.New("image is in use")

// removeImage removes an image, unless a container has been made from it since the
// images were listed.
func (r *Reclaimer) removeImage(ctx context.Context, image *cri.Image) error {
	containers, err := r.o.Runtime.Containers(ctx)
	if err != nil {
		return err
	}
	if usedBy(containers, "").has(image) {
		return errUsed
	}
	return r.o.Runtime.RemoveImage(ctx, image.ID)
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
	own := exclusive(images, containers)
	r.mu.Lock()
	r.own = own
	r.mu.Unlock()
	r.stillThere(sandboxes)
	r.imagesMu.Lock()
	defer r.imagesMu.Unlock()
	r.history.see(images, used, now)
	return collection{removable: r.history.removable(images, used, p.MinAge, now), off: r.off(p)}, nil
}

// off says why images are not collected here, "" where they are.
func (r *Reclaimer) off(p Policy) string {
	switch p.Images {
	case On:
		return ""
	case Off:
		return "imageGC is off"
	}
	switch k := r.o.Kubelet(); {
	case !k.Known:
		return "the pods have not been listed yet, so whether they are a kubelet's is not known"
	case k.Absent:
		return ""
	case k.Pods:
		return "a kubelet collects images here (imageGC: on does it too)"
	case k.Process != "":
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
	report := evict.ReclaimReport{At: time.Now(), Kind: evict.ReclaimImages, Reason: Age, Signal: s, DryRun: r.o.DryRun(), Removed: []string{}}
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
		r.imagesMu.Lock()
		// Images that were never used come first, but may be younger than used ones.
		var old, others []cri.Image
		for _, i := range images.removable {
			if r.history.idle(i.ID, report.At) > p.MaxAge {
				old = append(old, i)
			} else {
				others = append(others, i)
			}
		}
		r.imagesMu.Unlock()
		r.shed(ctx, r.batches(&report, everything), old)
		images.removable = others
	}
	if over {
		report.Reason = Threshold
		var o signal.Observations
		r.o.Space.Read(time.Now(), &o)
		if target, still := lacks(&o[s], p.High, p.Low); still {
			report.Deficit = target - o[s].Available
			r.shed(ctx, r.batches(&report, target), images.removable)
		}
	}
	if len(report.Removed) == 0 && (report.Error == "" || ctx.Err() != nil) {
		return
	}
	after, _ := r.left(s)
	report.Freed, report.Took = max(0, after-before), time.Since(report.At)
	r.keep(report)
}
