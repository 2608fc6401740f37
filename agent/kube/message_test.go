package kube

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
)

func TestLines(t *testing.T) {
	long := strings.Repeat("x", maxLine-1)
	for _, tt := range []struct {
		name, in string
		want     []string
		err      error
	}{
		{"none", "", nil, io.EOF},
		{"two", "a\nbc\n", []string{"a", "bc"}, io.EOF},
		{"empty line", "\n", []string{""}, io.EOF},
		{"torn", "a\nb", []string{"a"}, io.ErrUnexpectedEOF},
		{"longest", long + "\n", []string{long}, io.EOF},
		{"too long", "a\n" + long + "x\n", []string{"a"}, errLineTooLong},
		{"endless", strings.Repeat("x", 4*maxLine), nil, errLineTooLong},
	} {
		lines := newLineReader(strings.NewReader(tt.in), maxLine)
		var got []string
		line, err := lines.next()
		for ; err == nil; line, err = lines.next() {
			got = append(got, string(line))
		}
		if strings.Join(got, "\n") != strings.Join(tt.want, "\n") || len(got) != len(tt.want) || !errors.Is(err, tt.err) {
			t.Errorf("%s: %d lines, %v; want %d, %v", tt.name, len(got), err, len(tt.want), tt.err)
		}
	}
}

// hostile are lines that are no messages.
var hostile = []string{
	"", " ", "null", "[]", "0", `""`, "{}", "{", "}", "\x00", "\xff\xfe", `{"pod":null}`, `{"pod":{}}x`, `{"pod":{}} {"pod":{}}`,
	`{"order":{"id":1}}`, `{"pod":{"uid":7}}`, `{"pod":{"priority":"high"}}`, `{"pod":{"priority":2147483648}}`, `{"pod":{"priority":1.5}}`,
	`{"pod":{"annotations":{}}}`, `{"pod":{"containers":[{"resources":{"requests":{"gpu":"1"}}}]}}`, `{"pod":{"labels":{"a":1}}}`,
	`{"gone":"u1"}`, `{"list":{"id":-1}}`, `{"list":{"id":1e99}}`, `{"list":{"id":1},"listed":{"id":1}}`, `{"state":{"ageMilliseconds":"0"}}`,
	`{"pod":{"deletionTimestamp":"yesterday"}}`, `{"hello":{"version":4},"pod":{}}`,
	`{"report":[]}`, `{"report":{"id":1}}`, `{"report":{"id":"i","answer":"gone","stage":"ended"}}`, `{"report":{"id":"i"},"withdraw":{"id":"i"}}`,
	`{"nodeState":{"number":-1}}`, `{"nodeState":{"number":1,"conditions":[{"type":"EvictdPIDPressure","since":"yesterday"}]}}`, `{"nodeReport":{"number":"1"}}`,
	`{"kubelet":1}`, `{"kubelet":{"evictionHard":{"a":1}}}`, `{"kubelet":{"featureGates":{}}}`, `{"kubelet":{},"readKubelet":{}}`, `{"kubelet":{"evictionMaxPodGracePeriod":1.5}}`,
	`{"withdraw":"i"}`, `{"order":{"id":"i","decided":"yesterday"}}`, `{"order":{"id":"i","annotations":{"a":1}}}`, `{"order":{"id":"i","graceSeconds":1.5}}`, strings.Repeat(`{"pod":`, 9000), strings.Repeat("[", 20000),
}

func TestDecodeRefuses(t *testing.T) {
	for _, line := range hostile {
		if m, err := decode([]byte(line)); err == nil {
			t.Errorf("decode(%.60q) = %+v; want an error", line, m)
		}
	}
}

func TestDecodeHello(t *testing.T) {
	if h, err := decodeHello([]byte(`{"hello":{"version":4,"node":"n1","later":true},"x":1}`)); err != nil || h.Node != "n1" {
		t.Errorf("decodeHello() = %+v, %v; want node n1, unknown keys ignored", h, err)
	}
	var version *VersionError
	for _, other := range []int{0, 1, 2, Version + 1} { // version 2 had no fenced orders
		hello := fmt.Sprintf(`{"hello":{"version":%d,"software":"v9","shape":["new"]}}`, other)
		if _, err := decodeHello([]byte(hello)); !errors.As(err, &version) || version.Peer.Version != other {
			t.Errorf("decodeHello() of version %d = %v; want a VersionError", other, err)
		}
	}
	for _, line := range []string{"", "{}", "x", `{"pod":{}}`, `{"hello":1}`, `{"hello":{"version":"1"}}`, `{"hello":{"version":4,"node":"` + strings.Repeat("n", 300) + `"}}`} {
		if h, err := decodeHello([]byte(line)); err == nil {
			t.Errorf("decodeHello(%.60q) = %+v; want an error", line, h)
		}
	}
}

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"plain ä": "plain ä", "a\x1b[2J\nb": "a [2J b", "a\u202eb\u200bc": "a b c", "a\u2028b\u0085c": "a b c", "a\xffb": "a b",
		strings.Repeat("x", maxText+1): strings.Repeat("x", maxText) + "…",
	} {
		if got := printable(in); got != want {
			t.Errorf("printable(%q) = %q; want %q", in, got, want)
		}
	}
}

// FuzzLines reads hostile streams as a session does: nothing panics, the facts and the orders
// are bounded, and a message that is decoded can be encoded.
func FuzzLines(f *testing.F) {
	for _, line := range hostile {
		f.Add([]byte(line + "\n"))
	}
	line, err := encodePod(web())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(line)
	f.Add(append(bytes.Clone(line), line[:40]...))
	f.Add([]byte(`{"state":{"connected":true,"ageMilliseconds":9223372036854775807,"error":"\u001b[2J"}}` + "\n" + `{"list":{"id":1}}` + "\n" + `{"listed":{"id":1}}` + "\n"))
	for _, a := range []Answer{AnswerMarked, AnswerReported, AnswerForbidden, "perhaps"} {
		f.Add([]byte(`{"report":{"id":"i","answer":"` + string(a) + `","why":"\u001b[2J"}}` + "\n" + `{"report":{"id":"i","answer":"` + string(a) + `","why":"w"}}` + "\n"))
	}
	for _, number := range []string{"0", "1", "18446744073709551615"} {
		f.Add([]byte(`{"nodeReport":{"number":` + number + `,"why":"w"}}` + "\n" + `{"nodeState":{"number":` + number + `,"conditions":[{"type":"EvictdPIDPressure","status":true,"since":"2026-11-23T05:00:00Z"}]}}` + "\n"))
	}
	f.Add([]byte(`{"readKubelet":{"certificates":"-----BEGIN CERTIFICATE-----"}}` + "\n" + `{"kubelet":{"error":"\u001b[2J"}}` + "\n"))
	f.Add([]byte(`{"kubelet":{"evictionHard":{"nodefs.available":"10%","pid.available":"1e99"},"evictionMinimumReclaim":{"nodefs.available":"-1"},"cgroupsPerQOS":true,"podPidsLimit":-1}}` + "\n"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		orders, node := fuzzedOrders(), fuzzedNode()
		feed := NewFeed("n1", "fuzz", slog.New(slog.DiscardHandler))
		feed.Orders = &recorder{feed: feed, orders: map[string]Order{}}
		feed.Node = &nodeRecorder{feed: feed}
		feed.resetOrders()
		lines, facts := newLineReader(bytes.NewReader(stream), maxPodSize), NewFacts()
		for {
			line, err := lines.next()
			if err != nil {
				break
			}
			if len(line) >= maxPodSize {
				t.Fatalf("line of %d bytes", len(line))
			}
			_, _ = decodeHello(line)
			m, err := decode(line)
			if err != nil {
				continue
			}
			if _, err := encode(m); err != nil && !errors.Is(err, errLineTooLong) {
				t.Fatalf("encode(decode(%q)) = %v", line, err)
			}
			apply(facts, m)
			applyReports(orders, node, m)
			if m.Order != nil || m.Withdraw != nil || m.NodeState != nil || m.ReadKubelet != nil {
				_ = feed.apply(m)
			}
			checkFuzzedKubelet(t, facts, m.Kubelet)
		}
		if len(feed.reports) > MaxOrders {
			t.Fatalf("%d reports wait", len(feed.reports))
		}
		checkFuzzed(t, orders)
		checkFuzzedNode(t, node)
		if s := facts.Status(testTime); s.Pods > MaxPods || len(s.Refused) > maxNamed {
			t.Fatalf("status %+v", s)
		}
		if facts.size > maxFactsSize {
			t.Fatalf("facts of %d bytes", facts.size)
		}
		if err := NewFacts().Restore(encoded(t, facts), testTime); err != nil {
			t.Fatalf("Restore(Encode()) = %v", err)
		}
	})
}

// applyReports does what a session does with a report.
func applyReports(orders *Orders, node *Node, m *Message) {
	if m.Report != nil && m.Report.check() == nil {
		orders.report(m.Report, testTime)
	}
	if m.NodeReport != nil && m.NodeReport.check() == nil {
		node.report(m.NodeReport, testTime)
	}
}

// fuzzedNode returns a Node whose only state, which was sent, has the number 1.
func fuzzedNode() *Node {
	n := NewNode(NodeOptions{Log: slog.New(slog.DiscardHandler)})
	n.Set(nil, false, testTime)
	n.take()
	return n
}

// checkFuzzedNode checks that reports have changed nothing but the status.
func checkFuzzedNode(t *testing.T, n *Node) {
	t.Helper()
	s := n.Status()
	if s.Number != 1 || (&NodeState{Conditions: s.Wanted}).text() != noPressure || !isPrintable(s.Why, maxWhy) || (s.Reported && s.Why == "") != s.Unwritten.IsZero() || len(n.sent) > 1 {
		t.Fatalf("status of the Node %+v", s)
	}
}

// checkFuzzedKubelet stores a kubelet's configuration, unless it is nil, and checks that evictd-kube would send one
// that evictd accepts.
func checkFuzzedKubelet(t *testing.T, facts *Facts, c *KubeletConfiguration) {
	t.Helper()
	if c == nil {
		return
	}
	feed := NewFeed("n1", "fuzz", slog.New(slog.DiscardHandler))
	feed.ReportKubelet(c)
	if err := feed.kubelet.check(); err != nil {
		t.Fatalf("evictd-kube sends %+v: %v", feed.kubelet, err)
	}
	if c.check() != nil {
		return
	}
	facts.setKubelet(c, testTime)
	for _, threshold := range facts.KubeletThresholds() {
		threshold.Value.Amount(1 << 40)
		threshold.Target(1 << 40)
	}
}

// fuzzedOrders returns Orders with one, with the ID "i".
func fuzzedOrders() *Orders {
	o := NewOrders(OrdersOptions{Save: func() {}, Lift: func(string, string) {}, Log: slog.New(slog.DiscardHandler)})
	o.Restore([]SavedOrder{{Order: Order{ID: "i", UID: "u", Namespace: "n", Name: "p", Stage: StageKilled, Reason: "Evicted"}, Began: testTime, Killed: testTime}}, testTime)
	return o
}

// checkFuzzed checks that answers have changed only what they may, and that the orders can be
// restored.
func checkFuzzed(t *testing.T, o *Orders) {
	t.Helper()
	s := o.Status()
	if len(s.Pending) != 1 || s.Pending[0].Order.Stage != StageKilled || !isPrintable(s.Pending[0].Why, maxWhy) {
		t.Fatalf("orders %+v; want one that is killed", s)
	}
	restored := fuzzedOrders()
	restored.byUID, restored.byID = map[string]*pending{}, map[string]*pending{}
	restored.Restore(o.Saved(), testTime)
	if len(restored.Saved()) != 1 || restored.Forbidden("u") != o.Forbidden("u") {
		t.Fatalf("orders after a restart %+v; want %+v", restored.Saved(), o.Saved())
	}
}

// apply does what a session does with a message.
func apply(f *Facts, m *Message) {
	switch {
	case m.State != nil:
		f.setState(m.State, testTime)
	case m.List != nil:
		f.begin()
	case m.Pod != nil:
		f.put(m.Pod, testTime)
	case m.Gone != nil:
		f.gone(m.Gone.UID, testTime)
	case m.Listed != nil:
		f.listed(testTime)
	}
}

// The answer to a list fits into a line, whatever the texts of the refused pods are.
func TestAnswerFits(t *testing.T) {
	for _, text := range []string{"<", `"`, "ä", "\x00", "\xff", "\U0010ffff"} {
		text = strings.Repeat(text, maxPodSize)
		f := NewFacts()
		for i := range maxNamed + 1 {
			f.put(&Pod{UID: string(rune('a'+i)) + text, Namespace: text, Name: text, Phase: text}, testTime)
		}
		pods, refused := f.listed(testTime)
		if len(refused) != maxNamed {
			t.Fatalf("%d refused; want %d", len(refused), maxNamed)
		}
		if _, err := encode(&Message{Accepted: &Accepted{Pods: pods, Refused: refused}}); err != nil {
			t.Errorf("encode() of refusals with %.10q = %v", text, err)
		}
	}
}
