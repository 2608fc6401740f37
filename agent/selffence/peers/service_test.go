package peers

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/selffence"
)

// pair returns the services of the nodes a and b of a cluster with c, which all cannot reach the API server.
func pair(t *testing.T) (a, b *Service, now *time.Duration) {
	now = new(1000 * second)
	list := &List{At: *now, Nodes: []Node{{Name: "a"}, {Name: "b"}, {Name: "c"}}}
	var services []*Service
	for _, name := range []string{"a", "b"} {
		s := New(Options{
			Node: name, StateFile: filepath.Join(t.TempDir(), "nodes"), Log: slog.New(slog.DiscardHandler),
			Uptime: func() (time.Duration, error) { return *now, nil },
			Reach:  func() selffence.Reach { return selffence.Reach{Votes: true, Unanswered: time.Hour, Waiting: time.Hour} },
		})
		s.keys = [][]byte{testKey}
		s.use(list)
		services = append(services, s)
	}
	return services[0], services[1], now
}

func TestAnswersCountOnce(t *testing.T) {
	a, b, now := pair(t)
	expect := func(when string, want int) {
		t.Helper()
		if c := a.Count(); c.CannotReach != want || c.Nodes != 3 {
			t.Errorf("%s: %d of %d cannot reach; want %d of 3", when, c.CannotReach, c.Nodes, want)
		}
	}
	expect("alone", 1)
	first := a.question("b")
	answer, _ := b.handle(first)
	if len(answer) != len(first) {
		t.Errorf("an answer of %d bytes to a question of %d", len(answer), len(first))
	}
	second := a.question("b")
	a.handle(answer)
	expect("answer to an older question", 1)
	answer, _ = b.handle(second)
	if _, agreed := a.handle(answer); !agreed {
		t.Errorf("a majority is not reported")
	}
	expect("answer", 2)
	*now += selffence.AnswerValid
	expect("too old", 1)
	a.handle(answer)
	expect("replayed", 1)
}

func TestDatagramsThatDoNotCount(t *testing.T) {
	nonceOf := func(q []byte) (n [nonceSize]byte) { copy(n[:], q[len(magic)+1:]); return n }
	for _, test := range []struct {
		name   string
		answer func(q []byte) []byte
	}{
		{"other nonce", func([]byte) []byte { return message{cannot, newNonce(), "b", "a"}.encode(testKey) }},
		{"other node", func(q []byte) []byte { return message{cannot, nonceOf(q), "c", "a"}.encode(testKey) }},
		{"node that is not listed", func(q []byte) []byte { return message{cannot, nonceOf(q), "d", "a"}.encode(testKey) }},
		{"itself", func(q []byte) []byte { return message{cannot, nonceOf(q), "a", "a"}.encode(testKey) }},
		{"to another node", func(q []byte) []byte { return message{cannot, nonceOf(q), "b", "c"}.encode(testKey) }},
		{"other key", func(q []byte) []byte { return message{cannot, nonceOf(q), "b", "a"}.encode(otherKey) }},
		{"reaches it", func(q []byte) []byte { return message{reaches, nonceOf(q), "b", "a"}.encode(testKey) }},
		{"the question", bytes.Clone},
	} {
		a, _, _ := pair(t)
		a.handle(test.answer(a.question("b")))
		if c := a.Count(); c.CannotReach != 1 {
			t.Errorf("%s: %d cannot reach; want 1", test.name, c.CannotReach)
		}
	}
}

func TestQuestionsWithoutAnswer(t *testing.T) {
	_, b, _ := pair(t)
	ask := func(from, to string, key []byte) []byte {
		answer, _ := b.handle(message{question, newNonce(), from, to}.encode(key))
		return answer
	}
	for _, q := range []struct {
		from, to string
		key      []byte
	}{{"d", "b", testKey}, {"b", "b", testKey}, {"a", "c", testKey}, {"a", "b", otherKey}} {
		if answer := ask(q.from, q.to, q.key); answer != nil {
			t.Errorf("an answer to a question of %s to %s", q.from, q.to)
		}
	}
	// While the keys are changed both are answered, each with its own.
	b.keys = [][]byte{testKey, otherKey}
	for _, key := range b.keys {
		if _, used, err := decode(ask("a", "b", key), [][]byte{key}); err != nil || used == nil {
			t.Errorf("no answer with key %q", key)
		}
	}
	for range maxPerSecond {
		b.handle(nil)
	}
	if ask("a", "b", testKey) != nil {
		t.Errorf("an answer after %d datagrams in a second", maxPerSecond)
	}
}

func TestNodesThatDoNotAskAreNotCounted(t *testing.T) {
	a, b, _ := pair(t)
	answer, _ := b.handle(a.question("b"))
	a.handle(answer)
	for _, reach := range []selffence.Reach{
		{Votes: false, Unanswered: time.Hour, Waiting: time.Hour},
		{Votes: true, Unanswered: time.Hour},
	} {
		a.o.Reach = func() selffence.Reach { return reach }
		if c := a.Count(); c.At != 0 || c.Until(time.Hour) != 0 {
			t.Errorf("%+v: count %+v; want none", reach, c)
		}
	}
}

func TestSavedList(t *testing.T) {
	const at = 1000 * second
	path := filepath.Join(t.TempDir(), "nodes")
	if l, err := load(path, at); l != nil || err != nil {
		t.Errorf("load without a file = %v, %v", l, err)
	}
	saved := &List{At: at, Read: time.Now(), Nodes: []Node{{"a", netip.MustParseAddr("10.0.0.1")}, {Name: "b"}}}
	if err := saved.save(path); err != nil {
		t.Fatal(err)
	}
	l, err := load(path, at+time.Minute)
	if err != nil || len(l.Nodes) != 2 || l.Nodes[0] != saved.Nodes[0] || l.Nodes[1] != saved.Nodes[1] || l.age(at+time.Minute) != time.Minute {
		t.Errorf("load = %+v, %v; want %+v, a minute old", l, err, saved)
	}
	if l, _ := load(path, at-second); l != nil {
		t.Errorf("a list of an earlier boot is used")
	}
	saved.Read = time.Now().Add(-time.Hour) // saved in an earlier boot that was shorter
	if err := saved.save(path); err != nil {
		t.Fatal(err)
	}
	if l, _ := load(path, at+time.Minute); l.age(at+time.Minute) < time.Hour {
		t.Errorf("age %s; want the hour of the wall clock", l.age(at+time.Minute))
	}
	for _, content := range []string{"", "{", `{"nodes":[]}`, `{"nodes":[{"name":"a"},{"name":"a"}]}`, `{"nodes":[{"name":""}]}`, `{"nodes":[{"name":"a","address":"x"}]}`} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if l, err := load(path, at); err == nil {
			t.Errorf("load of %q = %+v; want an error", content, l)
		}
	}
}

// Over real sockets three nodes find that all of them cannot reach the API server.
func TestLoopback(t *testing.T) {
	l, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.LocalAddr().(*net.UDPAddr).Port
	l.Close()
	dir := t.TempDir()
	key := filepath.Join(dir, "key")
	if err := os.WriteFile(key, testKey, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	began := time.Now()
	var nodes []Node
	for i := range 3 {
		nodes = append(nodes, Node{fmt.Sprintf("n%d", i), netip.AddrFrom4([4]byte{127, 0, 0, byte(i + 1)})})
	}
	agreed := make(chan int, 100)
	for i, n := range nodes {
		var s *Service
		s = New(Options{
			Node: n.Name, Listen: netip.AddrPortFrom(n.Address, uint16(port)).String(), KeyFile: key, StateFile: filepath.Join(dir, n.Name),
			Uptime: func() (time.Duration, error) { return 1000*second + time.Since(began), nil },
			Reach:  func() selffence.Reach { return selffence.Reach{Votes: true, Unanswered: time.Hour, Waiting: time.Hour} },
			Changed: func() {
				if c := s.Count(); c.Majority() && c.CannotReach == len(nodes) {
					select {
					case agreed <- i:
					default:
					}
				}
			},
			Log: slog.New(slog.DiscardHandler),
		})
		if err := s.SetNodes(nodes, 1000*second); err != nil {
			t.Fatal(err)
		}
		running.Go(func() { s.Run(ctx) })
	}
	seen := map[int]bool{}
	for deadline := time.After(2 * time.Minute); len(seen) < len(nodes); {
		select {
		case i := <-agreed:
			seen[i] = true
		case <-deadline:
			t.Fatalf("nodes %v have counted all; want 3", seen)
		}
	}
}
