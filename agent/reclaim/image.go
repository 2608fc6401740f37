package reclaim

import (
	"cmp"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/cri"
)

// history is when images were used, by image ID. It is not safe for concurrent use.
type history map[string]evict.ImageUse

// update records the images of a new list and which of them are in use now.
func (h history) update(images []cri.Image, used *inUse, now time.Time) {
	present := make(map[string]bool, len(images))
	for i := range images {
		id := images[i].ID
		present[id] = true
		u, known := h[id]
		if !known {
			u = evict.ImageUse{ID: id, First: now}
		}
		if used.has(&images[i]) {
			u.Last = now
		}
		h[id] = u
	}
	for id := range h {
		if !present[id] {
			delete(h, id)
		}
	}
}

// list returns the uses, ordered by ID.
func (h history) list() []evict.ImageUse {
	all := make([]evict.ImageUse, 0, len(h))
	for _, u := range h {
		all = append(all, u)
	}
	slices.SortFunc(all, func(a, b evict.ImageUse) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// inUse are the names of images that containers, also dead ones, and sandboxes were
// made from.
type inUse struct{ names map[string]bool }

func usedBy(containers []cri.Container, sandboxImage string) *inUse {
	u := &inUse{names: map[string]bool{}}
	for i := range containers {
		u.names[containers[i].Image] = true
		u.names[containers[i].ImageRef] = true
	}
	u.names[sandboxImage] = true
	delete(u.names, "")
	return u
}

// has reports whether the image is in use under any of its names.
func (u *inUse) has(i *cri.Image) bool {
	for name := range names(i) {
		if u.names[name] {
			return true
		}
	}
	return false
}

// names yields the names by which a container may refer to its image. A missing tag
// means latest, and the prefix docker.io may be omitted.
func names(i *cri.Image) iter.Seq[string] {
	return func(yield func(string) bool) {
		if !yield(i.ID) || !yield(strings.TrimPrefix(i.ID, "sha256:")) {
			return
		}
		for _, list := range [][]string{i.Tags, i.Digests} {
			for _, name := range list {
				short := strings.TrimPrefix(strings.TrimPrefix(name, "docker.io/"), "library/")
				if !yield(name) || !yield(short) || !yield(strings.TrimSuffix(name, ":latest")) || !yield(strings.TrimSuffix(short, ":latest")) {
					return
				}
			}
		}
	}
}

// exclusiveBytes returns, by container ID, the bytes of images that only containers of
// one sandbox were made from, each image with one of them: evicting that pod would
// make the image unused.
func exclusiveBytes(images []cri.Image, containers []cri.Container) map[string]int64 {
	exclusive := map[string]int64{}
	byName := map[string][]int{} // indices of containers, by the names of their image
	for j := range containers {
		for name := range usedBy(containers[j:j+1], "").names {
			byName[name] = append(byName[name], j)
		}
	}
	for i := range images {
		first := len(containers) // none
		var sandbox string
		shared := false
		for name := range names(&images[i]) {
			for _, j := range byName[name] {
				shared = shared || first < len(containers) && containers[j].SandboxID != sandbox
				sandbox, first = containers[j].SandboxID, min(first, j)
			}
		}
		if first < len(containers) && !shared {
			exclusive[containers[first].ID] += images[i].Bytes
		}
	}
	return exclusive
}

// removable returns the images that may be removed, least recently used first: not
// pinned, not in use, and first seen at least minAge ago.
func (h history) removable(images []cri.Image, used *inUse, minAge time.Duration, now time.Time) []cri.Image {
	var list []cri.Image
	for i := range images {
		image := &images[i]
		if image.Pinned || used.has(image) || now.Sub(h[image.ID].First) < minAge {
			continue
		}
		list = append(list, *image)
	}
	slices.SortFunc(list, func(a, b cri.Image) int {
		x, y := h[a.ID], h[b.ID]
		return cmp.Or(x.Last.Compare(y.Last), x.First.Compare(y.First), cmp.Compare(a.ID, b.ID))
	})
	return list
}

// unusedFor returns for how long an image has been unused.
func (h history) unusedFor(id string, now time.Time) time.Duration {
	u := h[id]
	if u.Last.After(u.First) {
		return now.Sub(u.Last)
	}
	return now.Sub(u.First)
}

// imageName returns the name of an image for reports.
func imageName(i *cri.Image) string {
	switch {
	case len(i.Tags) > 0:
		return i.Tags[0]
	case len(i.Digests) > 0:
		return i.Digests[0]
	}
	return i.ID
}
