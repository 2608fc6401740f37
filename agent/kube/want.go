package kube

import (
	"context"
	"sync"
	"time"
)

const (
	// maxWanted is the maximum number of UIDs in a message: with the longest names it has
	// less than maxLine bytes.
	maxWanted = 200
	// wantInterval is the time between two requests for the facts about one pod.
	wantInterval = time.Minute
)

// unknownPod is a running pod without facts.
type unknownPod struct {
	since   time.Time // when the runtime first listed it
	listed  time.Time // when the runtime last listed it
	askedAt time.Time // when evictd last asked this evictd-kube for its facts
}

// noteUnknown records that a pod without facts runs, for which evictd then asks.
func (f *Facts) noteUnknown(uid string, now time.Time) {
	p, ok := f.room.unknown[uid]
	if !ok && (len(f.room.unknown) >= MaxPods || !IsName(uid)) {
		return
	}
	if !ok {
		p.since = now
		f.wakeAsking()
	}
	p.listed = now
	f.room.unknown[uid] = p
}

// wakeAsking wakes the goroutine that asks for facts.
func (f *Facts) wakeAsking() { wakeUp(f.room.wake) }

// wants returns UIDs for which evictd asks now, at most maxWanted.
func (f *Facts) wants(now time.Time) (uids []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for uid, p := range f.room.unknown {
		if len(uids) == maxWanted {
			break
		}
		if p.askedAt.IsZero() || now.Sub(p.askedAt) >= wantInterval {
			p.askedAt = now
			f.room.unknown[uid] = p
			uids = append(uids, uid)
		}
	}
	return uids
}

// startAsking starts a goroutine that asks for the facts about running pods without facts. The
// returned function ends it.
func (t *session) startAsking(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var asking sync.WaitGroup
	asking.Go(func() {
		again := time.NewTicker(wantInterval)
		defer again.Stop()
		for {
			for uids := t.Facts.wants(time.Now()); len(uids) > 0; uids = t.Facts.wants(time.Now()) {
				t.out.message(&Message{Want: &Want{uids}})
			}
			select {
			case <-ctx.Done():
				return
			case <-t.Facts.room.wake:
			case <-again.C:
			}
		}
	})
	return func() {
		cancel()
		asking.Wait()
	}
}

// foreignDelay is how long pods run without facts until evictd takes evictd-kube's node for
// another one.
const foreignDelay = time.Minute

// lacksAll reports whether, a minute after its first list, evictd-kube has sent no facts about
// any running pod, and one has been running for a minute.
func (f *Facts) lacksAll(now time.Time) bool {
	if !f.peer.listed || now.Sub(f.peer.listedAt) < foreignDelay {
		return false
	}
	for _, known := range f.pods {
		if known.listed(now) {
			return false
		}
	}
	for _, p := range f.room.unknown {
		if now.Sub(p.since) >= foreignDelay && now.Sub(p.listed) < retention {
			return true
		}
	}
	return false
}

// doubtful is the status if lacksAll.
const doubtful = "it has facts about no running pod; is its --node-name the name of this node?"

// checkNode logs once in a session if evictd-kube seems to watch another node.
func (t *session) checkNode(now time.Time) {
	if t.warned {
		return
	}
	t.Facts.mu.Lock()
	lacks, node := t.Facts.lacksAll(now), t.Facts.peer.hello.Node
	t.Facts.mu.Unlock()
	if !lacks {
		return
	}
	t.warned = true
	if skipped, ok := t.foreign.Allow(now); ok {
		t.Log.Warn("evictd-kube has facts about no running pod; is its --node-name the name of this node?", "node", printable(node), "not_logged", skipped)
	}
}
