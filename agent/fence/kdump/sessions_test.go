package kdump

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var start = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

func TestSessions(t *testing.T) {
	type datagram struct {
		at     time.Duration
		from   string
		data   []byte
		result Result
		first  bool
	}
	at := func(d time.Duration) time.Time { return start.Add(d) }
	for _, tt := range []struct {
		name      string
		datagrams []datagram
		want      Session // of node a
	}{
		{"none", nil, Session{}},
		{"two sessions", []datagram{
			{0, "192.0.2.1", fromX86, Accepted, true},
			{29 * time.Second, "192.0.2.1", fromX86, Accepted, false},
			{59 * time.Second, "192.0.2.1", fromX86, Accepted, true},
			{69 * time.Second, "192.0.2.1", fromX86, Accepted, false},
		}, Session{First: at(59 * time.Second), Last: at(69 * time.Second), Datagrams: 2}},
		{"both families", []datagram{
			{0, "::ffff:192.0.2.1", fromX86, Accepted, true},
			{time.Second, "2001:db8::1", fromX86, Accepted, false},
			{2 * time.Second, "2001:db8::1%eth0", fromX86, Accepted, false},
		}, Session{First: at(0), Last: at(2 * time.Second), Datagrams: 3}},
		{"others", []datagram{
			{0, "192.0.2.2", fromX86, Accepted, true},
			{0, "192.0.2.3", fromX86, UnknownSender, false},
			{0, "192.0.2.1", fromX86[:4], Malformed, false},
			{0, "192.0.2.3", fromX86[:4], Malformed, false},
		}, Session{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var s sessions
			nodes := func() map[netip.Addr]string {
				return map[netip.Addr]string{
					netip.MustParseAddr("192.0.2.1"): "a", netip.MustParseAddr("2001:db8::1"): "a", netip.MustParseAddr("192.0.2.2"): "b",
				}
			}
			for _, d := range tt.datagrams {
				_, result, first := s.take(d.data, netip.MustParseAddr(d.from), at(d.at), nodes)
				if result != d.result || first != d.first {
					t.Errorf("at %v from %s: %s, first = %v; want %s, %v", d.at, d.from, result, first, d.result, d.first)
				}
			}
			if diff := cmp.Diff(tt.want, s.of("a")); diff != "" {
				t.Errorf("session (-want +got):\n%s", diff)
			}
		})
	}
}

// One node can't use up the work of the others, whatever it sends, and its session goes on.
func TestSessionsFlooded(t *testing.T) {
	var s sessions
	flood, quiet := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	nodes := func() map[netip.Addr]string { return map[netip.Addr]string{flood: "a", quiet: "b"} }
	count := map[Result]int{}
	for i := range 50_000 {
		_, result, _ := s.take(fromX86, flood, start.Add(time.Duration(i)*100*time.Microsecond), nodes) // 5 s
		count[result]++
	}
	if want := map[Result]int{Accepted: 50, Dropped: 49_950}; !cmp.Equal(count, want) {
		t.Errorf("results %v; want %v", count, want)
	}
	if got := s.of("a"); got.Datagrams != 50 || !got.First.Equal(start) || got.Last.Sub(start) < 4*time.Second {
		t.Errorf("session %v; want one of 50 datagrams until the last second", got)
	}
	if _, result, _ := s.take(fromX86, flood, start.Add(-time.Hour), nodes); result != Accepted {
		t.Errorf("after the clock was set back: %s; want accepted", result)
	}
	s.nodes["a"].Datagrams = maxDatagrams
	if s.take(fromX86, flood, start.Add(time.Second-time.Hour), nodes); s.of("a").Datagrams != maxDatagrams {
		t.Errorf("%d datagrams; want %d", s.of("a").Datagrams, maxDatagrams)
	}
	if _, result, first := s.take(fromX86, quiet, start.Add(5*time.Second), nodes); result != Accepted || !first {
		t.Errorf("another node: %s, first = %v; want accepted, true", result, first)
	}
}

// Senders that are no node take no memory, addresses are asked seldom, and nodes that are gone are forgotten.
func TestSessionsTable(t *testing.T) {
	var s sessions
	asked, nodes := 0, map[netip.Addr]string{netip.MustParseAddr("192.0.2.1"): "a", netip.MustParseAddr("192.0.2.2"): "b"}
	ask := func() map[netip.Addr]string { asked++; return nodes }
	for i := range 1000 {
		from := netip.MustParseAddr(fmt.Sprintf("198.51.100.%d", i%250))
		if _, result, _ := s.take(fromX86, from, start.Add(time.Duration(i)*time.Millisecond), ask); result != UnknownSender {
			t.Fatalf("from %s: %s; want unknown_sender", from, result)
		}
	}
	if asked != 1 || len(s.nodes) != 0 {
		t.Errorf("addresses asked %d times, %d entries; want 1, 0", asked, len(s.nodes))
	}
	for from := range nodes {
		s.take(fromX86, from, start.Add(time.Second), ask)
	}
	nodes = map[netip.Addr]string{netip.MustParseAddr("192.0.2.9"): "b"}
	if _, result, _ := s.take(fromX86, netip.MustParseAddr("192.0.2.1"), start.Add(refresh), ask); result != UnknownSender {
		t.Errorf("an address that is gone: %s; want unknown_sender", result)
	}
	if s.of("a") != (Session{}) || s.of("b").Datagrams != 1 {
		t.Errorf("sessions of a and b: %v and %v; want none and one", s.of("a"), s.of("b"))
	}
	if s.take(fromX86, netip.MustParseAddr("192.0.2.9"), start, ask); asked != 3 {
		t.Errorf("addresses asked %d times; want 3: the clock was set back", asked)
	}
}
