package controller

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/fence/nodefence"
	"github.com/evictd/evictd/agent/selffence"
)

// advertOf returns what a node says of a hardware watchdog of 20 s, which a case changes.
func advertOf(change func(*selffence.Advert)) selffence.Advert {
	at := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	a := selffence.Advert{Version: 1, Armed: true, Identity: "iTCO_wdt", TimeoutSeconds: 20, FeedGapSeconds: 20, RenewSeconds: 10,
		BootID: "boot1", Sequence: 7, ArmedAt: at, RenewedAt: at}
	if change != nil {
		change(&a)
	}
	return a
}

func TestWatchdogFacts(t *testing.T) {
	start := time.Now()
	bound := advertOf(nil).Bound()
	for name, tt := range map[string]struct {
		text func() string
		// lease and advert are when they were seen first, and majority since when there is one, before the end.
		lease, advert, majority time.Duration
		change                  func(*fence.Lease)
		armed                   bool
		unchanged               time.Duration
	}{
		"all over":         {lease: 200, advert: 300, majority: 400, armed: true, unchanged: 200},
		"advert is young":  {lease: 200, advert: 20, majority: 400, armed: true, unchanged: 20},
		"no long majority": {lease: 200, advert: 300, majority: 30, armed: true, unchanged: 30},
		"no majority":      {lease: 200, advert: 300, armed: true},
		"no Lease":         {lease: 200, advert: 300, majority: 400, change: func(l *fence.Lease) { l.Found = false }, armed: true},
		"Lease unknown":    {lease: 200, advert: 300, majority: 400, change: func(l *fence.Lease) { l.Known = false }, armed: true},
		"Lease never seen": {lease: 200, advert: 300, majority: 400, change: func(l *fence.Lease) { l.UnchangedSince = time.Time{} }, armed: true},
		"softdog": {text: func() string {
			return advertOf(func(a *selffence.Advert) { a.Identity = selffence.SoftwareWatchdog }).String()
		}, lease: 200, advert: 300, majority: 400, unchanged: 200},
		"disarmed": {text: func() string {
			return advertOf(func(a *selffence.Advert) { a.Armed = false }).String()
		}, lease: 200, advert: 300, majority: 400, unchanged: 200},
		"not readable": {text: func() string { return "armed" }, lease: 200, advert: 300, majority: 400},
	} {
		n, l := deadNode(), &leases{}
		text := advertOf(nil).String()
		if tt.text != nil {
			text = tt.text()
		}
		n.Annotations = map[string]string{selffence.AnnotationWatchdog: text}
		before := func(seconds time.Duration) time.Time { return start.Add(-seconds * time.Second) }
		l.observeAdvert(n, true, before(tt.advert))
		lease := fence.Lease{Known: true, Found: true, UnchangedSince: before(tt.lease)}
		if tt.change != nil {
			tt.change(&lease)
		}
		if tt.majority > 0 {
			l.majority, l.counted = before(tt.majority), before(5)
		}
		got := watchdogFacts(n, lease, l, start)
		if got.Armed != tt.armed || got.Unchanged != tt.unchanged*time.Second || got.Advert != text || got.Armed == (got.Why != "") {
			t.Errorf("%s: watchdogFacts = %+v; want armed: %t, unchanged for %v", name, got, tt.armed, tt.unchanged*time.Second)
		}
		if got.Armed && (got.Bound != bound || got.BootID != "boot1") {
			t.Errorf("%s: bound %v of boot %q; want %v", name, got.Bound, got.BootID, bound)
		}
		if tt.majority == 0 {
			continue
		}
		if later := watchdogFacts(n, lease, l, start.Add(leaseMaxAge)); later.Unchanged != 0 {
			t.Errorf("%s: unchanged for %v although nothing was listed for %v", name, later.Unchanged, leaseMaxAge)
		}
		if l.forgetAll(); watchdogFacts(n, lease, l, start).Unchanged != 0 {
			t.Errorf("%s: the bound goes on across an outage", name)
		}
	}
	if got := watchdogFacts(deadNode(), fence.Lease{}, &leases{}, start); got.Armed || got.Why == "" || got.Advert != "" {
		t.Errorf("without the annotation: %+v", got)
	}
}

// An advert counts from its last change, also to an earlier text. What an older Node says does not count: that of the
// cache may be late for minutes. After etcd was restored all Nodes are older than those before.
func TestObserveAdvert(t *testing.T) {
	l, start := &leases{}, time.Now()
	for i, tt := range []struct {
		text, version string
		live          bool
		want          int
	}{
		{"a", "10", false, 0}, {"a", "11", false, 0}, {"b", "12", false, 2}, {"b", "12", false, 2}, {"a", "13", false, 4}, {"", "14", true, 5},
		{"a", "13", false, 5}, {"", "14", false, 5}, // the cache is late
		{"c", "20", false, 8}, {"c", "30", true, 8}, {"b", "25", false, 8}, {"c", "31", false, 8}, {"d", "31", false, 12},
		{"e", "", false, 13}, {"e", "1", false, 13}, // a version that is not known
		{"f", "40", false, 15}, {"g", "50", true, 16},
		{"a", "7", false, 17}, {"b", "8", false, 18}, {"b", "9", true, 18}, // restored, and seen in the cache first
		{"c", "60", true, 20},
		{"d", "40", true, 21}, {"d", "5", true, 22}, {"e", "7", true, 23}, // restored twice, and read live first
		{"x", "6", false, 23}, {"e", "8", false, 23}, {"f", "9", false, 26}, // the cache is late again
	} {
		n := deadNode()
		n.ResourceVersion, n.Annotations = tt.version, map[string]string{selffence.AnnotationWatchdog: tt.text}
		got := l.observeAdvert(n, tt.live, start.Add(time.Duration(i)*time.Second))
		if !got.Equal(start.Add(time.Duration(tt.want) * time.Second)) {
			t.Errorf("%d, %q of version %q: unchanged since %v; want %d s", i, tt.text, tt.version, got.Sub(start), tt.want)
		}
		// What a restore brings back is not a change that the node made.
		if moved := l.adverts[n.Name].moved; i > 1 && moved == (i == 17 || i == 21 || i == 22) {
			t.Errorf("%d: moved = %t", i, moved)
		}
	}
	l.pruneAdverts(map[string]bool{"n2": true})
	if len(l.adverts) != 0 {
		t.Errorf("%v is kept of a node that is gone", l.adverts)
	}
}

// More than half of all nodes must renew their Leases all the time, of those that were seen to be renewed.
func TestMajority(t *testing.T) {
	start := time.Now()
	nodes := func(n int) (all []corev1.Node) {
		for i := range n {
			all = append(all, *healthyNode(fmt.Sprintf("n%d", i)))
		}
		return all
	}
	for name, tt := range map[string]struct {
		nodes, renew int
		// silent are the lists, every 10 s, in which no Lease is renewed, and missed those that there are not.
		silent, missed map[int]bool
		want           int // since this list; -1: no majority
	}{
		"all":                {nodes: 4, renew: 4, want: 1},
		"half":               {nodes: 4, renew: 2, want: -1},
		"more than half":     {nodes: 3, renew: 2, want: 1},
		"none":               {nodes: 0, renew: 0, want: -1},
		"one renewal missed": {nodes: 3, renew: 2, silent: map[int]bool{10: true}, want: 1},
		"an outage of all":   {nodes: 3, renew: 3, silent: map[int]bool{10: true, 11: true, 12: true}, want: 13},
		"lists missed":       {nodes: 3, renew: 3, missed: map[int]bool{10: true, 11: true, 12: true}, want: 13},
	} {
		l, all := &leases{}, nodes(tt.nodes)
		renewed := start
		var now time.Time
		for i := range 20 {
			now = start.Add(time.Duration(i) * 10 * time.Second)
			if tt.missed[i] {
				continue
			}
			if !tt.silent[i] {
				renewed = now
			}
			list := map[string]renewal{}
			for k := range all {
				list[all[k].Name] = renewal{start, uint64(k + 1)}
				if k < tt.renew {
					list[all[k].Name] = renewal{renewed, uint64(100*i + k + 1)}
				}
			}
			l.list(list, now, now)
			l.countMajority(all, now)
		}
		want := time.Time{}
		if tt.want >= 0 {
			want = start.Add(time.Duration(tt.want) * 10 * time.Second)
		}
		if got := l.majoritySince(now); !got.Equal(want) {
			t.Errorf("%s: majority since %v; want list %d", name, got.Sub(start), tt.want)
		}
	}
}

// For a node that asks its peers a node counts whose advert changes, too, if it may be one of those peers, and that
// is old enough to be in every list of peers.
func TestMajorityOfPeers(t *testing.T) {
	start := time.Now()
	const lists = 20
	advert := func(sequence int) string {
		return advertOf(func(a *selffence.Advert) { a.Peers, a.Sequence = true, uint64(sequence) }).String()
	}
	for name, tt := range map[string]struct {
		text func(i int) string
		age  time.Duration
		want bool
	}{
		"advert changes":   {text: advert, age: 2 * selffence.MinNodeAge, want: true},
		"every other list": {text: func(i int) string { return advert(i / 2) }, age: 2 * selffence.MinNodeAge, want: true},
		"every fifth list": {text: func(i int) string { return advert(i / 5) }, age: 2 * selffence.MinNodeAge},
		"advert does not":  {text: func(int) string { return advert(1) }, age: 2 * selffence.MinNodeAge},
		"says nothing":     {text: func(int) string { return "" }, age: 2 * selffence.MinNodeAge, want: true},
		"does not ask":     {text: func(int) string { return advertOf(nil).String() }, age: 2 * selffence.MinNodeAge, want: true},
		"not valid":        {text: func(i int) string { return fmt.Sprint(i) }, age: 2 * selffence.MinNodeAge},
		"nodes are young":  {text: advert, age: selffence.MinNodeAge / 2},
		"withdrawn, with peers": {text: func(int) string {
			return advertOf(func(a *selffence.Advert) { a.Peers, a.Armed = true, false }).String()
		}, age: 2 * selffence.MinNodeAge},
	} {
		l := &leases{}
		var nodes []corev1.Node
		for i := range 3 {
			n := *healthyNode(fmt.Sprintf("n%d", i))
			n.CreationTimestamp = metav1.NewTime(start.Add(-tt.age))
			nodes = append(nodes, n)
		}
		var now time.Time
		for i := range lists {
			now = start.Add(time.Duration(i) * 10 * time.Second)
			list := map[string]renewal{}
			for k, n := range nodes[:2] {
				list[n.Name] = renewal{now, uint64(100*i + k + 1)}
				n.Annotations = map[string]string{selffence.AnnotationWatchdog: tt.text(i)}
				l.observeAdvert(&n, false, now)
			}
			l.list(list, now, now)
			l.countMajority(nodes, now)
		}
		if since, _ := l.peersSince(now, 3); since.IsZero() == tt.want || l.majoritySince(now).IsZero() {
			t.Errorf("%s: majority since %v; want one: %t, and one by Leases", name, since, tt.want)
		}
	}
	l := &leases{majority: start.Add(-time.Hour), counted: start}
	n := deadNode()
	n.Annotations = map[string]string{selffence.AnnotationWatchdog: advert(1)}
	l.observeAdvert(n, true, start.Add(-time.Hour))
	lease := fence.Lease{Known: true, Found: true, UnchangedSince: start.Add(-time.Hour)}
	if got := watchdogFacts(n, lease, l, start); got.Unchanged != 0 {
		t.Errorf("a node that asks its peers is unchanged for %s by a majority of Leases", got.Unchanged)
	}
	for ago := tallyKept; ago >= 0; ago -= 10 * time.Second {
		l.tallies = append(l.tallies, peerTally{at: start.Add(-ago), reaching: 2, size: 3})
	}
	if got := watchdogFacts(n, lease, l, start); got.Unchanged != time.Hour {
		t.Errorf("unchanged for %s; want an hour", got.Unchanged)
	}
}

// A young Node does not count as an old one because the controller's clock is ahead, also from its start on, nor because
// less than half of the nodes say so.
func TestMinNodeAge(t *testing.T) {
	start := time.Now()
	const young, old = selffence.MinNodeAge - 10*time.Minute, selffence.MinNodeAge + 10*time.Minute
	for name, tt := range map[string]struct {
		age   time.Duration
		ahead time.Duration    // the controller's clock
		nodes [5]time.Duration // how far those of the nodes are ahead
		want  bool
	}{
		"old":                           {age: old, want: true},
		"young":                         {age: young},
		"young, controller ahead":       {age: young, ahead: 8 * time.Hour},
		"old, controller ahead":         {age: old, ahead: 8 * time.Hour, want: true},
		"old, controller behind":        {age: old, ahead: -8 * time.Hour},
		"young, two nodes, and it":      {age: young, ahead: time.Hour, nodes: [5]time.Duration{2: time.Hour, 4: time.Hour}},
		"young, nodes ahead":            {age: young, nodes: [5]time.Duration{time.Hour, time.Hour, time.Hour, time.Hour, time.Hour}},
		"old, two nodes behind":         {age: old, nodes: [5]time.Duration{-time.Hour, -time.Hour}, want: true},
		"old, most of the nodes behind": {age: old, nodes: [5]time.Duration{-time.Hour, -time.Hour, -time.Hour}},
	} {
		l := &leases{}
		var now time.Time
		for i := range 20 {
			is := start.Add(time.Duration(i) * 10 * time.Second)
			now = is.Add(tt.ahead)
			list := map[string]renewal{}
			var nodes []corev1.Node
			for k := range tt.nodes {
				n := *healthyNode(fmt.Sprintf("n%d", k))
				n.CreationTimestamp = metav1.NewTime(start.Add(-tt.age))
				nodes = append(nodes, n)
				list[n.Name] = renewal{is.Add(tt.nodes[k]), uint64(100*i + k + 1)}
				l.observeAdvert(&n, false, now)
			}
			l.list(list, now, now)
			l.countMajority(nodes, now)
		}
		since, _ := l.peersSince(now, 5)
		if since.IsZero() == tt.want || l.majoritySince(now).IsZero() {
			t.Errorf("%s: majority of peers since %v; want one: %t, and one by Leases", name, since, tt.want)
		}
	}
}

// The majority of peers is one of the Nodes there are, and one of the list by which the node feeds its watchdog: two of
// five may have been deleted since. It begins again after a gap between lists.
func TestPeersSince(t *testing.T) {
	start := time.Now()
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	type tally struct{ second, reaching, size int }
	for name, tt := range map[string]struct {
		tallies []tally
		listed  int
		now     int
		want    int // -1: none
	}{
		"no list":             {nil, 3, 0, -1},
		"of all Nodes":        {[]tally{{0, 2, 3}, {10, 2, 3}}, 3, 12, 0},
		"of few":              {[]tally{{0, 2, 3}, {10, 1, 3}, {20, 2, 3}}, 3, 22, 20},
		"not now":             {[]tally{{0, 2, 3}, {10, 1, 3}}, 3, 12, -1},
		"Nodes were deleted":  {[]tally{{0, 2, 3}, {10, 2, 3}}, 5, 12, -1},
		"Nodes were added":    {[]tally{{0, 2, 3}, {10, 2, 5}}, 3, 12, -1},
		"no list of peers":    {[]tally{{0, 2, 3}, {10, 2, 3}}, 0, 12, 0},
		"half of the list":    {[]tally{{0, 2, 3}, {10, 2, 3}}, 4, 12, -1},
		"a gap between lists": {[]tally{{0, 2, 3}, {16, 2, 3}, {26, 2, 3}}, 3, 27, 16},
		"no list for a while": {[]tally{{0, 2, 3}, {10, 2, 3}}, 3, 26, -1},
	} {
		l := &leases{}
		for _, seen := range tt.tallies {
			l.tallies = append(l.tallies, peerTally{at: at(seen.second), reaching: seen.reaching, size: seen.size})
		}
		want := time.Time{}
		if tt.want >= 0 {
			want = at(tt.want)
		}
		if got, _ := l.peersSince(at(tt.now), tt.listed); !got.Equal(want) {
			t.Errorf("%s: majority since %v; want %d s", name, got.Sub(start), tt.want)
		}
	}
}

// After etcd was restored all versions are older. The advert of a machine that runs changes nevertheless.
func TestAdvertAfterRestore(t *testing.T) {
	l, start := &leases{}, time.Now()
	l.majority, l.counted = start.Add(-time.Hour), start
	n := deadNode()
	say := func(sequence uint64, version string) {
		n.ResourceVersion = version
		n.Annotations = map[string]string{selffence.AnnotationWatchdog: advertOf(func(a *selffence.Advert) { a.Sequence = sequence }).String()}
	}
	say(7, "5000")
	l.observeAdvert(n, false, start.Add(-time.Hour))
	lease := fence.Lease{Known: true, Found: true, UnchangedSince: start.Add(-time.Hour)}
	for sequence := range uint64(3) {
		say(8+sequence, fmt.Sprint(100+sequence))
		l.observeAdvert(n, false, start)
		if got := watchdogFacts(n, lease, l, start); got.Unchanged != 0 {
			t.Errorf("advert %d of version %s is unchanged for %s; want 0", 8+sequence, n.ResourceVersion, got.Unchanged)
		}
	}
	say(10, "102")
	if got := l.observeAdvert(n, false, start.Add(time.Minute)); !got.Equal(start) {
		t.Errorf("the advert is unchanged since %s after the last one was read; want 0", got.Sub(start))
	}
}

// While the controller's clock stands still, as when its virtual machine is paused, all nodes may be cut off and feed
// each other. Their renewTimes then jump.
func TestPeersAfterPause(t *testing.T) {
	start := time.Now()
	for name, tt := range map[string]struct {
		pause time.Duration
		jumps int // nodes
		live  bool
		want  bool // the majority goes on
	}{
		"none":                {0, 3, false, true},
		"short":               {5 * time.Second, 3, false, true},
		"paused":              {time.Minute, 3, false, false},
		"paused, read before": {time.Minute, 3, true, false},
		"one clock is set":    {time.Hour, 1, false, true},
	} {
		l := &leases{}
		var nodes []corev1.Node
		for i := range 3 {
			n := *healthyNode(fmt.Sprintf("n%d", i))
			n.CreationTimestamp = metav1.NewTime(start.Add(-2 * selffence.MinNodeAge))
			nodes = append(nodes, n)
		}
		var now time.Time
		for i := range 20 {
			now = start.Add(time.Duration(i) * 10 * time.Second)
			list := map[string]renewal{}
			for k := range nodes {
				r := renewal{now, uint64(100*i + k + 1)}
				if i >= 10 && k < tt.jumps {
					r.renewed = now.Add(tt.pause)
				}
				if i == 10 && tt.live {
					l.observe(nodes[k].Name, r, now.Add(-time.Second))
					r.renewed = r.renewed.Add(time.Second)
				}
				list[nodes[k].Name] = r
			}
			l.list(list, now, now)
			l.countMajority(nodes, now)
		}
		since, _ := l.peersSince(now, 3)
		if got := since.Equal(start.Add(10 * time.Second)); got != tt.want || since.IsZero() {
			t.Errorf("%s: majority since %s; want one that goes on: %t", name, since.Sub(start), tt.want)
		}
		if l.majoritySince(now).IsZero() {
			t.Errorf("%s: no majority by Leases", name)
		}
	}
}

// A node whose adverts are further apart counts for longer after it is cut off: the bound is longer by that.
func TestBoundOfSlowPeers(t *testing.T) {
	start := time.Now()
	for _, tt := range []struct{ renew, longer time.Duration }{{0, 0}, {10 * time.Second, 0}, {200 * time.Second, 190 * time.Second}} {
		l := &leases{}
		for ago := time.Hour; ago >= 0; ago -= 10 * time.Second {
			l.tallies = append(l.tallies, peerTally{at: start.Add(-ago), reaching: 2, size: 3, renew: tt.renew})
		}
		n := deadNode()
		advert := advertOf(func(a *selffence.Advert) { a.Peers, a.FeedGapSeconds, a.TimeoutSeconds = true, 30, 105 })
		n.Annotations = map[string]string{selffence.AnnotationWatchdog: advert.String()}
		if got := watchdogFacts(n, fence.Lease{}, l, start); !got.Armed || got.Bound != advert.Bound()+tt.longer {
			t.Errorf("with adverts each %s: bound %s; want %s", tt.renew, got.Bound, advert.Bound()+tt.longer)
		}
	}
}

// A node whose BMC does not answer is released after its watchdog's bound, and not before.
func TestWatchdogRelease(t *testing.T) {
	for name, tt := range map[string]struct {
		since  time.Duration
		phase  fence.Phase
		proven fence.ProofKind
	}{
		"over":     {time.Hour, fence.Releasing, fence.ByWatchdog},
		"not over": {time.Minute, fence.Proving, ""},
	} {
		now := time.Now()
		renewed := now.Add(-time.Hour).Truncate(time.Second)
		nf := runningFence(func(s *fence.State) {
			s.Phase, s.Since = fence.Proving, metav1.NewMicroTime(now)
			s.Plan.PowerManagement = []fence.Level{{Methods: []fence.Method{{Name: "wd", Agent: "watchdog", Action: fence.Watchdog}}}}
			s.Target.LeaseRenewed = metav1.NewMicroTime(renewed)
		})
		n := deadNode()
		text := advertOf(nil).String()
		n.Annotations = map[string]string{selffence.AnnotationWatchdog: text}
		r, api := testReconciler(t, nil, interceptor.Funcs{}, n, nf, leaseOf("n1", renewed), healthyNode("n2"), healthyNode("n3"),
			leaseOf("n2", now), leaseOf("n3", now), pod("db-0", "StatefulSet", nil))
		l := r.observer.leases
		l.observe("n1", renewal{renewed: renewed}, now.Add(-time.Hour))
		l.observeAdvert(n, true, now.Add(-tt.since))
		l.majority, l.counted = now.Add(-time.Hour), now
		if _, err := r.Reconcile(t.Context(), request); err != nil {
			t.Fatal(err)
		}
		after := &nodefence.NodeFence{}
		if err := api.Get(t.Context(), types.NamespacedName{Name: nf.Name}, after); err != nil {
			t.Fatal(err)
		}
		p := after.State.Proof
		if after.State.Phase != tt.phase || (p == nil) != (tt.proven == "") || p != nil && (p.How != tt.proven || p.Watchdog != text) {
			t.Errorf("%s: phase %q, proof %+v, conditions %v; want %q", name, after.State.Phase, p, after.State.Conditions, tt.phase)
		}
		if got := taintIndex(getNode(t, api), &outOfService) >= 0; got != (tt.proven != "") {
			t.Errorf("%s: out-of-service taint: %t", name, got)
		}
	}
}
