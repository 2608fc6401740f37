package kube

import (
	"cmp"
	"fmt"
	"strings"
	"time"
)

const (
	// MaxPods is the maximum number of pods with facts. The kubelet's default is 110 pods
	// on a node, and the largest tested values are about 1,000.
	MaxPods = 1000
	// maxFactsSize is the maximum of the facts' sizes, in bytes. evictd's heap is to stay
	// below 64 MiB (agent/self) while the GC does not run.
	maxFactsSize = 4 << 20
	// smallSize is the part of maxFactsSize that only facts in the smallest form use.
	smallSize = maxFactsSize / 4
	// retention is how long the facts of a pod that is no longer in the API are kept
	// after the runtime last listed the pod. It is listed at least every 30 s.
	retention = time.Minute
	// pruneInterval is the time between two visits of all facts for those that expired.
	pruneInterval = time.Second
	// askInterval is the time between two requests for the complete list.
	askInterval = time.Minute
)

// room is what is known about facts for which there was no room. Facts.mu protects it.
type room struct {
	unknown map[string]unknownPod // the running pods without facts, by UID
	wake    chan struct{}         // wakes the goroutine that asks for their facts
	// overflowed is set if facts were refused or deleted for lack of room since the last
	// list began.
	overflowed bool
	// missing is set if another list is expected to bring facts that can be stored now.
	missing  bool
	askedAt  time.Time // when evictd last asked for a list
	prunedAt time.Time
}

// scarce reports whether the facts about a pod can be stored in the smallest form only.
func (f *Facts) scarce(p *Pod) bool {
	size := p.cost()
	f.mu.Lock()
	defer f.mu.Unlock()
	before := 0
	if known := f.pods[p.UID]; known != nil {
		before = known.size
	}
	return size > before && f.size-before+size > maxFactsSize-smallSize
}

// makeRoom makes room for facts in place of earlier ones, which are empty if there are none.
// For a pod that the runtime lists it deletes the facts of those that it does not list, the
// largest first. It returns an error if there is no room.
func (f *Facts) makeRoom(next, before *fact, now time.Time) error {
	fits := func() bool {
		pods := len(f.pods)
		if before.pod == nil {
			pods++
		}
		return pods <= MaxPods && f.size-before.size+next.size <= maxFactsSize
	}
	if fits() {
		return nil
	}
	f.prune(now)
	for !fits() {
		var unlisted *fact
		if next.listed(now) {
			unlisted = f.largestUnlisted(next.pod.UID, now)
		}
		f.room.overflowed = true
		if unlisted == nil {
			return fmt.Errorf("no room: facts take at most %d pods and %d bytes, those of running pods first", MaxPods, maxFactsSize)
		}
		f.remove(unlisted)
		f.refuse(unlisted.pod, "deleted to make room for the facts of a running pod")
	}
	return nil
}

// largestUnlisted returns the largest fact of a pod that the runtime does not list, except
// one UID; nil if there is none. Of equal ones it is the one with the first UID.
func (f *Facts) largestUnlisted(except string, now time.Time) (largest *fact) {
	for uid, known := range f.pods {
		if uid == except || known.listed(now) {
			continue
		}
		if largest == nil || cmp.Or(cmp.Compare(largest.size, known.size), strings.Compare(uid, largest.pod.UID)) < 0 {
			largest = known
		}
	}
	return largest
}

func (f *Facts) remove(known *fact) {
	f.size -= known.size
	delete(f.pods, known.pod.UID)
	f.version++
}

// free removes facts that are no longer needed. Others may have been refused before.
func (f *Facts) free(known *fact) {
	f.remove(known)
	f.room.missing = f.room.missing || f.room.overflowed
}

// prune deletes the facts of pods that neither the API nor the runtime has.
func (f *Facts) prune(now time.Time) {
	if !f.room.prunedAt.IsZero() && now.Sub(f.room.prunedAt) < pruneInterval {
		return
	}
	f.room.prunedAt = now
	for _, known := range f.pods {
		if known.expired(now) {
			f.free(known)
		}
	}
	for uid, p := range f.room.unknown {
		if now.Sub(p.listed) >= retention {
			delete(f.room.unknown, uid)
		}
	}
}

// wantsList reports whether evictd-kube has to send the complete list again.
func (f *Facts) wantsList(now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.room.missing || !f.room.askedAt.IsZero() && now.Sub(f.room.askedAt) < askInterval {
		return false
	}
	f.room.missing, f.room.askedAt = false, now
	return true
}
