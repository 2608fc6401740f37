package kube

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
	"time"
)

const (
	// chunk is how many lines are chosen, and have writeTimeout, together.
	chunk = 16
	// maxQueued is the maximum number of pods whose facts evictd-kube keeps.
	maxQueued = 2 * MaxPods
	// updateInterval is the time between two lines about one pod that evictd knows and
	// does not ask for: a tenant can change the labels of a pod at any rate.
	updateInterval = 10 * time.Second
	// sendInterval is the time between two transfers of lines that nothing waits for.
	sendInterval = 100 * time.Millisecond
	// Lines that evictd does not need now leave reserveLines and reserveBytes of what it
	// reads at once to those that it needs: a pod without facts is not evicted by default.
	reserveLines, reserveBytes = 200, 1 << 20
)

// queue has the facts about the pods in the API, and what evictd has of them. It chooses the
// lines to send anew for each chunk, so that what tenants cause does not delay the facts
// about a pod that runs.
type queue struct {
	pods   map[string]*queued // by UID
	gone   map[string]uint64  // turns of the UIDs that evictd has and the API no longer has
	wanted map[string]bool    // UIDs that evictd has asked for
	turns  uint64             // counts the turns
	pace   pace

	complete bool      // pods has had the complete list of the API
	sendList bool      // the complete list has to be sent
	lists    uint64    // counts the lists that began in this session
	listing  bool      // a list has begun and not ended
	listedAt time.Time // when the last list ended

	urgent bool      // there may be lines that evictd needs now
	nextAt time.Time // when other lines may be sent
	others bool      // the last line of lanes changes and others was one of changes
}

// queued is a pod in the queue.
type queued struct {
	uid     string
	line    []byte
	started bool      // its containers have started
	arrived uint64    // the turn in which it came
	turn    uint64    // the turn in which it began to wait
	dirty   bool      // evictd does not have line
	listed  bool      // it is in the list that is being sent, or none is
	sent    bool      // evictd has had a line about it in this session
	sentAt  time.Time // when that was
	// expedited is set once a line was sent without waiting for updateInterval.
	expedited bool
}

// A lane is a class of lines. The lines of a lane are sent in the order of their turns.
type lane int

const (
	laneWanted  lane = iota // evictd lists the pod and lacks the facts
	laneStarted             // the containers have started, and the list or the session lacks the facts
	laneGone                // at most one for each line about a pod, so that no other lane starves
	laneChanges             // other facts of pods whose containers have started
	laneOthers              // alternates with laneChanges
	laneCount
)

// needed reports whether evictd needs the lines of a lane now.
func (l lane) needed() bool { return l <= laneStarted }

func newQueue() queue {
	return queue{pods: map[string]*queued{}, gone: map[string]uint64{}, wanted: map[string]bool{}}
}

func (q *queue) turn() uint64 {
	q.turns++
	return q.turns
}

// put adds or replaces the facts about a pod. It returns false if there is no room.
func (q *queue) put(uid string, line []byte, started bool) bool {
	p := q.pods[uid]
	if p == nil {
		if !q.makeRoom() {
			return false
		}
		turn := q.turn()
		_, sent := q.gone[uid]
		delete(q.gone, uid)
		p = &queued{uid: uid, arrived: turn, turn: turn, listed: true, sent: sent}
		q.pods[uid] = p
	}
	if !bytes.Equal(p.line, line) {
		if !p.waits() {
			p.turn = q.turn()
		}
		p.line, p.dirty = line, true
	}
	p.started = p.started || started
	q.urgent = q.urgent || q.wanted[uid] || p.started && !p.sent
	return true
}

// expedite has the next line about a pod sent without waiting for updateInterval, once: the pod is
// being deleted, on which a decision depends.
func (q *queue) expedite(uid string) {
	if p := q.pods[uid]; p != nil && !p.expedited {
		p.expedited, p.sentAt = true, time.Time{}
	}
}

// makeRoom makes room for a pod: it removes the pod that came first of those whose containers
// have not started. A pod that starts is put again. It returns false if there is no such pod.
func (q *queue) makeRoom() bool {
	if len(q.pods) < maxQueued {
		return true
	}
	var first *queued
	for uid, p := range q.pods {
		if !p.started && !q.wanted[uid] && (first == nil || p.arrived < first.arrived) {
			first = p
		}
	}
	if first == nil {
		return false
	}
	q.remove(first.uid)
	return true
}

// remove removes the facts about a pod. evictd need not learn of a pod that it never had in this
// session: the end of the list tells it about those of earlier ones.
func (q *queue) remove(uid string) {
	p := q.pods[uid]
	if p == nil {
		return
	}
	delete(q.pods, uid)
	if p.sent {
		q.gone[uid] = q.turn()
	}
}

// want records UIDs that evictd lists and lacks. Those that are not in the API yet are sent
// when they come.
func (q *queue) want(uids []string) {
	for _, uid := range uids {
		if len(q.wanted) >= MaxPods {
			clear(q.wanted) // evictd asks again
		}
		q.wanted[uid] = true
	}
	q.urgent = true
}

// begin begins a session with an evictd that reads a number of lines and bytes at once.
func (q *queue) begin(lines, bytes int, now time.Time) {
	clear(q.gone)
	clear(q.wanted)
	for _, p := range q.pods {
		p.sent, p.listed = false, true
	}
	q.sendList, q.listing, q.urgent = q.complete, false, true
	q.pace.set(lines, bytes, now)
}

// beginList begins the complete list: it has ended when each pod of now has been sent or has
// left the API. A change within it needs no other list: the facts that are sent are those of
// the time of sending, and what follows is a change.
func (q *queue) beginList() *ListID {
	turn := q.turn()
	for _, p := range q.pods {
		if !p.waits() {
			p.turn = turn
		}
		p.listed = false
	}
	q.lists++
	q.sendList, q.listing = false, true
	return &ListID{q.lists}
}

// waits reports whether a line about the pod has to be sent, even if evictd does not ask for it.
func (p *queued) waits() bool { return p.dirty || !p.listed }

// lane returns the lane of a pod, and when it may be sent.
func (q *queue) lane(p *queued) (l lane, at time.Time, ok bool) {
	switch {
	case q.wanted[p.uid]:
		return laneWanted, at, true
	case !p.waits():
		return 0, at, false
	case p.started && (!p.listed || !p.sent):
		return laneStarted, at, true
	case p.listed && p.sent:
		at = p.sentAt.Add(updateInterval)
	}
	if p.started {
		return laneChanges, at, true
	}
	return laneOthers, at, true
}

// candidate is a line that may be sent.
type candidate struct {
	lane lane
	turn uint64
	uid  string
	pod  *queued // nil for a pod that is gone
}

// next returns the lines to send now, about chunk of them, and when to call it again at the
// latest.
func (q *queue) next(now time.Time) (lines [][]byte, wait time.Duration, err error) {
	if !q.urgent && now.Before(q.nextAt) {
		return nil, q.nextAt.Sub(now), nil
	}
	add := func(m *Message) bool {
		var line []byte
		if line, err = encode(m); err == nil {
			lines = append(lines, line)
			q.pace.take(decodedSize(line), now)
		}
		return err == nil
	}
	if q.sendList && !q.listing && !add(&Message{List: q.beginList()}) {
		return nil, 0, err
	}
	candidates, wait := q.candidates(now)
	q.urgent = false
	for _, c := range candidates {
		size := goneSize
		if c.pod != nil {
			size = decodedSize(c.pod.line)
		}
		if w := q.pace.wait(size, c.lane.needed(), now); w > 0 {
			wait, q.urgent = min(wait, w), c.lane.needed()
			break
		}
		if len(lines) >= chunk {
			wait, q.urgent = 0, true
			break
		}
		if c.pod == nil {
			if !add(&Message{Gone: &Gone{c.uid}}) {
				return nil, 0, err
			}
			delete(q.gone, c.uid)
			continue
		}
		lines = append(lines, c.pod.line)
		q.pace.take(size, now)
		q.others = c.lane == laneChanges || q.others && c.lane != laneOthers
		c.pod.dirty, c.pod.listed, c.pod.sent, c.pod.sentAt = false, true, true, now
		delete(q.wanted, c.uid)
	}
	if q.listing && !q.lacks() {
		if w := q.listedAt.Add(listInterval).Sub(now); w > 0 { // else evictd would wait, and read nothing
			wait = min(wait, w)
		} else if q.listing, q.listedAt = false, now; !add(&Message{Listed: &ListID{q.lists}}) {
			return nil, 0, err
		}
	}
	if !q.urgent {
		q.nextAt, wait = now.Add(sendInterval), max(wait, sendInterval)
	}
	return lines, wait, nil
}

// goneSize is the most that decodedSize returns for a line about a pod that is gone.
const goneSize = 2 * (maxName + 30)

// lacks reports whether the list that is being sent lacks a pod.
func (q *queue) lacks() bool {
	for _, p := range q.pods {
		if !p.listed {
			return true
		}
	}
	return false
}

// candidates returns what may be sent, in the order of sending, and the time until another
// line may be.
func (q *queue) candidates(now time.Time) (list []candidate, wait time.Duration) {
	var lanes [laneCount][]candidate
	wait = StateInterval
	for uid, p := range q.pods {
		l, at, ok := q.lane(p)
		switch {
		case ok && now.Before(at):
			wait = min(wait, at.Sub(now))
		case ok:
			lanes[l] = append(lanes[l], candidate{l, p.turn, uid, p})
		}
	}
	for uid, turn := range q.gone {
		lanes[laneGone] = append(lanes[laneGone], candidate{laneGone, turn, uid, nil})
	}
	for _, l := range lanes {
		slices.SortFunc(l, func(a, b candidate) int { return cmp.Or(cmp.Compare(a.turn, b.turn), strings.Compare(a.uid, b.uid)) })
	}
	list = slices.Concat(lanes[laneWanted], lanes[laneStarted], lanes[laneGone])
	first, second := lanes[laneChanges], lanes[laneOthers]
	if q.others {
		first, second = second, first
	}
	for i := range max(len(first), len(second)) {
		list = append(list, first[min(i, len(first)):min(i+1, len(first))]...)
		list = append(list, second[min(i, len(second)):min(i+1, len(second))]...)
	}
	return list, wait
}

// pace computes what evictd has read, so that evictd-kube sends no faster: a line that evictd
// needs does not wait in the socket behind others.
type pace struct{ lines, decoded bucket }

// The rates are below those of evictd, because each side has its own clock.
const paceLines, paceBytes = lineRate * 9 / 10, decodeRate * 9 / 10

// set begins a session with an evictd that reads a number of lines and bytes at once.
func (p *pace) set(lines, bytes int, now time.Time) {
	p.lines = bucket{float64(lineBurst - min(max(lines, 0), lineBurst)), now}
	p.decoded = bucket{float64(decodeBurst - min(max(bytes, 0), decodeBurst)), now}
}

// wait returns how long a line of a size has to wait. One that evictd does not need now leaves
// the reserve.
func (p *pace) wait(size int, needed bool, now time.Time) time.Duration {
	lines, bytes := lineBurst, decodeBurst
	if !needed {
		lines, bytes = lines-reserveLines, bytes-reserveBytes
	}
	return max(p.lines.wait(1, lines, paceLines, now), p.decoded.wait(size, bytes, paceBytes, now))
}

// take counts a line that is sent.
func (p *pace) take(size int, now time.Time) {
	p.lines.take(1, lineBurst, paceLines, now)
	p.decoded.take(size, decodeBurst, paceBytes, now)
}
