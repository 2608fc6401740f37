package reclaim

import (
	"context"
	"errors"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/cri"
)

// removeImages removes unused images, least recently used first.
func (r *Reclaimer) removeImages(ctx context.Context, b *batchRemover) {
	images, err := r.inspectImages(ctx, r.currentPolicy())
	if err != nil {
		b.report.Error = err.Error()
		return
	}
	if images.disabled != "" {
		b.report.Note = images.disabled
		return
	}
	r.removeImageList(ctx, b, images.removable)
}

// removeImageList removes images. The space that an image frees is learned from the
// ones before it: runtimes report the size of the download, which may be less than
// half of the disk usage, or shared with other images.
func (r *Reclaimer) removeImageList(ctx context.Context, b *batchRemover, images []cri.Image) {
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
		b.reportDryRun(list)
		return
	}
	b.run(ctx, list)
}

// errInUse reports that an image is in use since it was listed.
var errInUse = errors.New("image is in use")

// removeImage removes an image unless a container was made from it since the images
// were listed.
func (r *Reclaimer) removeImage(ctx context.Context, image *cri.Image) error {
	containers, err := r.o.Runtime.Containers(ctx)
	if err != nil {
		return err
	}
	if usedBy(containers, "").has(image) {
		return errInUse
	}
	return r.o.Runtime.RemoveImage(ctx, image.ID)
}

// imageList is the result of inspectImages.
type imageList struct {
	removable []cri.Image
	disabled  string // why images are not collected here; "" if they are
}

// inspectImages lists the images, updates their history, and determines which may
// be removed and whether evictd collects images here.
func (r *Reclaimer) inspectImages(ctx context.Context, p Policy) (imageList, error) {
	images, err := r.o.Runtime.Images(ctx)
	if err != nil {
		return imageList{}, err
	}
	// List containers after images, to see a container that was made from one of
	// them in between.
	sandboxes, containers, err := list(ctx, r.o.Runtime)
	if err != nil {
		return imageList{}, err
	}
	sandboxImage, err := r.o.Runtime.SandboxImage(ctx)
	if err != nil {
		return imageList{}, err
	}
	used, now := usedBy(containers, sandboxImage), time.Now()
	if r.o.OnImagesListed != nil {
		defer r.o.OnImagesListed()
	}
	exclusive := exclusiveBytes(images, containers)
	r.mu.Lock()
	r.exclusiveBytes = exclusive
	r.mu.Unlock()
	r.pruneEvicted(sandboxes)
	r.imagesMu.Lock()
	defer r.imagesMu.Unlock()
	r.history.update(images, used, now)
	return imageList{removable: r.history.removable(images, used, p.MinAge, now), disabled: r.disabled(p)}, nil
}

// disabled returns why images are not collected here, "" if they are.
func (r *Reclaimer) disabled(p Policy) string {
	switch p.Images {
	case On:
		return ""
	case Off:
		return "imageGC is off"
	}
	switch k := r.o.Kubelet(); {
	case !k.Known:
		return "pods not listed yet; unknown whether a kubelet runs here"
	case k.Absent:
		return ""
	case k.HasSandboxes:
		return "the kubelet of these pods collects images (imageGC: on lets evictd collect too)"
	case k.Process != "":
		return "a kubelet runs here and collects images (imageGC: on lets evictd collect too)"
	}
	return ""
}

// overThreshold returns the signal of imagefs whose usage is at or above High,
// bytes before inodes, and true; otherwise the signal of its bytes and false.
func (r *Reclaimer) overThreshold(now time.Time) (signal.Signal, bool) {
	p := r.currentPolicy()
	var o signal.Observations
	r.o.Filesystems.Read(now, &o)
	for _, s := range []signal.Signal{signal.ImageFsAvailable, signal.ImageFsInodesFree} {
		if _, over := gcTarget(&o[s], p.High, p.Low); over {
			return s, true
		}
	}
	return signal.ImageFsAvailable, false
}

// gcTarget returns the available amount at which usage is down to low, and whether
// usage is at or above high. A high of 100 disables collection, as in the kubelet.
// On a read-only filesystem a removal would free nothing.
func gcTarget(o *signal.Observation, high, low int32) (target int64, over bool) {
	if o.Status != signal.Observed || o.Capacity <= 0 || o.ReadOnly || high >= 100 {
		return 0, false
	}
	used := 100 - float64(o.Available)*100/float64(o.Capacity)
	return int64(float64(o.Capacity) * float64(100-low) / 100), used >= float64(high)
}

// collect removes images that were unused for too long and, if usage is above High,
// others.
func (r *Reclaimer) collect(ctx context.Context, s signal.Signal, over bool) {
	p := r.currentPolicy()
	report := evict.ReclaimReport{At: time.Now(), Kind: evict.ReclaimImages, Reason: Age, Signal: s, DryRun: r.o.DryRun(), Removed: []string{}}
	images, err := r.inspectImages(ctx, p)
	if err != nil {
		r.o.Log.Debug("could not list images for collection", "error", err)
		return
	}
	var now signal.Observations
	r.o.Filesystems.Read(report.At, &now)
	if images.disabled != "" || now[s].ReadOnly {
		return
	}
	before, _ := r.available(s)
	if p.MaxAge > 0 {
		r.imagesMu.Lock()
		// The list begins with images that were never used, which may be younger
		// than used ones.
		var old, others []cri.Image
		for _, i := range images.removable {
			if r.history.unusedFor(i.ID, report.At) > p.MaxAge {
				old = append(old, i)
			} else {
				others = append(others, i)
			}
		}
		r.imagesMu.Unlock()
		r.removeImageList(ctx, r.newBatchRemover(&report, unlimited), old)
		images.removable = others
	}
	if over {
		report.Reason = Threshold
		var o signal.Observations
		r.o.Filesystems.Read(time.Now(), &o)
		if target, still := gcTarget(&o[s], p.High, p.Low); still {
			report.Deficit = target - o[s].Available
			r.removeImageList(ctx, r.newBatchRemover(&report, target), images.removable)
		}
	}
	if len(report.Removed) == 0 && (report.Error == "" || ctx.Err() != nil) {
		return
	}
	after, _ := r.available(s)
	report.Freed, report.Duration = max(0, after-before), time.Since(report.At)
	r.addReport(report)
}
