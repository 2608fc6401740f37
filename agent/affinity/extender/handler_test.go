package extender

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/evictd/evictd/agent/affinity"
)

// TestFilter: the answers are those that the scheduler's types say.
func TestFilter(t *testing.T) {
	nodes := nodesOf(newNode("a", "valid"), newNode("b", "expired"), newNode("c", "valid"))
	_, parseError := affinity.ParseAnnotation("nodeSelectorTerms: []")
	invalid := reasonInvalid + parseError.Error()
	escaped := strings.ReplaceAll(requires, "example", `\u0065xample`)
	for _, tt := range []struct {
		name   string
		args   *extenderv1.ExtenderArgs
		passed []string
		failed map[string]string
		how    result
	}{
		{"no annotation", args(newPod(""), "a", "b", "z"), []string{"a", "b", "z"}, nil, resultUnrestricted},
		{"no annotation, no names", args(newPod("")), []string{}, nil, resultUnrestricted},
		{"matches", args(newPod(requires), "c", "a"), []string{"c", "a"}, nil, resultMatched},
		{"an escape in the annotation", args(newPod(escaped), "a"), []string{"a"}, nil, resultMatched},
		{"one does not match", args(newPod(requires), "a", "b", "c"), []string{"a", "c"}, map[string]string{"b": reasonMismatch}, resultMatched},
		{"none matches", args(newPod(requires), "b"), []string{}, map[string]string{"b": reasonMismatch}, resultNone},
		{"unknown", args(newPod(requires), "a", "z"), []string{"a"}, map[string]string{"z": reasonUnknown}, resultMatched},
		{"annotation does not parse", args(newPod("nodeSelectorTerms: []"), "a", "z"), []string{}, map[string]string{"a": invalid, "z": invalid}, resultInvalid},
		{"DaemonSet", args(ownedBy(newPod(requires), "DaemonSet"), "a", "b"), []string{"a", "b"}, nil, resultUnrestricted},
		{"ReplicaSet", args(ownedBy(newPod(requires), "ReplicaSet"), "a", "b"), []string{"a"}, map[string]string{"b": reasonMismatch}, resultMatched},
	} {
		h := newHandler(nodes)
		got := filter(t, h, tt.args)
		if got.NodeNames == nil || !slices.Equal(*got.NodeNames, tt.passed) {
			t.Errorf("%s: NodeNames = %v; want %v", tt.name, got.NodeNames, tt.passed)
		}
		if len(got.FailedAndUnresolvableNodes)+len(tt.failed) > 0 && !reflect.DeepEqual(map[string]string(got.FailedAndUnresolvableNodes), tt.failed) {
			t.Errorf("%s: FailedAndUnresolvableNodes = %v; want %v", tt.name, got.FailedAndUnresolvableNodes, tt.failed)
		}
		if len(got.FailedNodes) > 0 || got.Error != "" || got.Nodes != nil {
			t.Errorf("%s: result = %+v; want names only", tt.name, got)
		}
		if results := counted(h); !slices.Equal(results, []result{tt.how}) {
			t.Errorf("%s: counted %v; want %s", tt.name, results, tt.how)
		}
		unknown := 0
		for _, reason := range tt.failed {
			if reason == reasonUnknown {
				unknown++
			}
		}
		if n := testutil.ToFloat64(h.metrics.unknown); n != float64(unknown) {
			t.Errorf("%s: unknown nodes = %v; want %d", tt.name, n, unknown)
		}
	}
}

// TestWholeNodes: the Nodes of the request are compared, not those of the cache, and sent back as they came.
func TestWholeNodes(t *testing.T) {
	list := &corev1.NodeList{Items: []corev1.Node{*newNode("a", "valid"), *newNode("b", "expired"), *newNode("new", "valid")}}
	list.Items[0].Spec.PodCIDR = "10.1.0.0/24"
	h := newHandler(nodesOf(newNode("a", "expired")))
	got := filter(t, h, &extenderv1.ExtenderArgs{Pod: newPod(requires), Nodes: list})
	want := []corev1.Node{list.Items[0], list.Items[2]}
	if got.Nodes == nil || !reflect.DeepEqual(got.Nodes.Items, want) || got.NodeNames != nil {
		t.Errorf("Nodes = %+v, NodeNames = %v; want the first and the last Node, and no names", got.Nodes, got.NodeNames)
	}
	if want := (extenderv1.FailedNodesMap{"b": reasonMismatch}); !reflect.DeepEqual(got.FailedAndUnresolvableNodes, want) {
		t.Errorf("FailedAndUnresolvableNodes = %v; want %v", got.FailedAndUnresolvableNodes, want)
	}
	if got = filter(t, h, &extenderv1.ExtenderArgs{Pod: newPod(""), Nodes: list}); got.Nodes == nil || !reflect.DeepEqual(got.Nodes.Items, list.Items) {
		t.Errorf("without annotation: Nodes = %+v; want all", got.Nodes)
	}
	if n := testutil.ToFloat64(h.metrics.whole); n != 2 {
		t.Errorf("requests with whole Nodes = %v; want 2", n)
	}
}

// TestRefused: what is no request of a scheduler is refused, and counted.
func TestRefused(t *testing.T) {
	good := string(marshal(t, args(newPod(requires), "a")))
	for _, tt := range []struct {
		name, method, kind, body string
		status                   int
		how                      result
	}{
		{"GET", http.MethodGet, "application/json", "", 405, resultRefused},
		{"PUT", http.MethodPut, "application/json", good, 405, resultRefused},
		{"another type", http.MethodPost, "application/x-www-form-urlencoded", good, 415, resultRefused},
		{"no type", http.MethodPost, "", good, 415, resultRefused},
		{"a parameter of the type", http.MethodPost, "application/json; charset=utf-8", good, 200, resultMatched},
		{"empty", http.MethodPost, "application/json", "", 400, resultRefused},
		{"garbage", http.MethodPost, "application/json", "\x00\xff{", 400, resultRefused},
		{"null", http.MethodPost, "application/json", "null", 400, resultRefused},
		{"a list", http.MethodPost, "application/json", "[" + good + "]", 400, resultRefused},
		{"cut", http.MethodPost, "application/json", good[:len(good)-1], 400, resultRefused},
		{"trailing data", http.MethodPost, "application/json", good + "{}", 400, resultRefused},
		{"trailing space", http.MethodPost, "application/json", good + " \n", 200, resultMatched},
		{"no Pod", http.MethodPost, "application/json", `{"NodeNames":["a"]}`, 400, resultRefused},
		{"Pod is null", http.MethodPost, "application/json", `{"Pod":null,"NodeNames":["a"]}`, 400, resultRefused},
		{"Pod is a text", http.MethodPost, "application/json", `{"Pod":"web","NodeNames":["a"]}`, 400, resultRefused},
		{"no nodes", http.MethodPost, "application/json", `{"Pod":{},"NodeNames":null,"Nodes":null}`, 400, resultRefused},
		{"a name is a number", http.MethodPost, "application/json", `{"Pod":{},"NodeNames":["a",1]}`, 400, resultRefused},
		{"two Pods", http.MethodPost, "application/json", `{"Pod":{},"Pod":{},"NodeNames":["a"]}`, 400, resultRefused},
		{"two NodeNames", http.MethodPost, "application/json", `{"Pod":{},"NodeNames":["a"],"NodeNames":["b"]}`, 400, resultRefused},
		{"an item is a number", http.MethodPost, "application/json", `{"Pod":{"metadata":{"annotations":{"` + affinity.Annotation + `":"{}"}}},"Nodes":{"items":[{},1]}}`, 400, resultRefused},
		{"items is null", http.MethodPost, "application/json", `{"Pod":{"metadata":{"annotations":{"` + affinity.Annotation + `":"{}"}}},"Nodes":{"items":null}}`, 200, resultInvalid},
		{"Nodes is a list", http.MethodPost, "application/json", `{"Pod":{},"Nodes":[]}`, 400, resultRefused},
		{"annotations are a list", http.MethodPost, "application/json", `{"Pod":{"metadata":{"annotations":[]}},"NodeNames":["a"]}`, 200, resultUnrestricted},
		{"an annotation is a number", http.MethodPost, "application/json", `{"Pod":{"metadata":{"annotations":{"` + affinity.Annotation + `":1}}},"NodeNames":["a"]}`, 400, resultRefused},
		{"too many names", http.MethodPost, "application/json", `{"Pod":{},"NodeNames":["a"` + strings.Repeat(`,"a"`, maxNodes) + `]}`, 400, resultRefused},
		{"too many Nodes", http.MethodPost, "application/json", `{"Pod":{"metadata":{"annotations":{"` + affinity.Annotation + `":"{}"}}},"Nodes":{"items":[{}` + strings.Repeat(`,{}`, maxNodes) + `]}}`, 400, resultRefused},
		{"too large", http.MethodPost, "application/json", strings.Repeat(" ", MaxBody-len(good)+1) + good, 413, resultTooLarge},
		{"not too large", http.MethodPost, "application/json", strings.Repeat(" ", MaxBody-len(good)) + good, 200, resultMatched},
	} {
		for _, known := range []bool{true, false} {
			h := newHandler(nodesOf(newNode("a", "valid")))
			r := httptest.NewRequest(tt.method, "/filter", strings.NewReader(tt.body))
			r.Header.Set("Content-Type", tt.kind)
			if !known {
				r.ContentLength = -1
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != tt.status {
				t.Errorf("%s, length known %t: status = %d %.100s; want %d", tt.name, known, w.Code, w.Body, tt.status)
			}
			if results := counted(h); !slices.Equal(results, []result{tt.how}) {
				t.Errorf("%s, length known %t: counted %v; want %s", tt.name, known, results, tt.how)
			}
		}
	}
}

// unsynced is a cache that is not complete.
type unsynced struct{ nodeMap }

func (unsynced) Synced() bool { return false }

func TestNotSynced(t *testing.T) {
	h := newHandler(unsynced{nodesOf(newNode("a", "valid"))})
	if status, _ := post(h, marshal(t, args(newPod(""), "a"))); status != http.StatusServiceUnavailable {
		t.Errorf("status = %d; want %d while the cache is not complete", status, http.StatusServiceUnavailable)
	}
	if results := counted(h); !slices.Equal(results, []result{resultNotReady}) {
		t.Errorf("counted %v; want %s", results, resultNotReady)
	}
}

// broken is a cache that panics.
type broken struct{ nodeMap }

func (broken) Node(string) *corev1.Node { panic("broken") }

func TestPanic(t *testing.T) {
	h := newHandler(broken{})
	for range maxOfClient + 1 { // the limit is given back
		if status, answer := post(h, marshal(t, args(newPod(requires), "a"))); status != http.StatusInternalServerError {
			t.Fatalf("status = %d %s; want %d after a panic", status, answer, http.StatusInternalServerError)
		}
	}
	if results := counted(h); len(results) != maxOfClient+1 || results[0] != resultPanic {
		t.Errorf("counted %v; want %s only", results, resultPanic)
	}
}

// TestLongReason: the reasons of an answer have a bounded length.
func TestLongReason(t *testing.T) {
	names, nodes := many(5000, func(int) string { return "valid" })
	annotation := "nodeSelectorTerms:\n- matchExpressions:\n" + strings.Repeat("  - {key: é, operator: "+strings.Repeat("é", 100)+", values: []}\n", 60)
	got := filter(t, newHandler(nodes), args(newPod(annotation), names...))
	if len(got.FailedAndUnresolvableNodes) != len(names) {
		t.Fatalf("%d nodes failed; want %d", len(got.FailedAndUnresolvableNodes), len(names))
	}
	for name, reason := range got.FailedAndUnresolvableNodes {
		if len(reason) > maxReasons/len(names) || !strings.HasPrefix(reason, reasonInvalid+"parse annotation") {
			t.Fatalf("reason of %s = %q, %d bytes; want at most %d", name, reason, len(reason), maxReasons/len(names))
		}
	}
}

// TestInFlight: a peer that sends its bodies slowly does not keep others out.
func TestInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHandler(nodesOf(newNode("a", "valid")))
		body := marshal(t, args(newPod(requires), "a"))
		ask := func(peer string, body io.Reader) int {
			r := httptest.NewRequest(http.MethodPost, "/filter", body)
			r.RemoteAddr = peer
			r.Header.Set("Content-Type", "application/json")
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			return w.Code
		}
		var slow []*io.PipeWriter
		var peers sync.WaitGroup
		for i := range maxOfClient {
			pr, pw := io.Pipe()
			slow = append(slow, pw)
			peers.Go(func() { ask(fmt.Sprint("192.0.2.1:", 1000+i), pr) })
		}
		synctest.Wait()
		if status := ask("192.0.2.1:2000", bytes.NewReader(body)); status != http.StatusServiceUnavailable {
			t.Errorf("status = %d; want %d with %d requests of the address", status, http.StatusServiceUnavailable, maxOfClient)
		}
		if status := ask("192.0.2.2:2000", bytes.NewReader(body)); status != http.StatusOK {
			t.Errorf("status of another address = %d; want %d", status, http.StatusOK)
		}
		for _, w := range slow {
			w.CloseWithError(errors.New("reset"))
		}
		peers.Wait()
		if status := ask("192.0.2.1:2000", bytes.NewReader(body)); status != http.StatusOK {
			t.Errorf("status = %d; want %d after the others have ended", status, http.StatusOK)
		}
		want := append([]result{resultMatched, resultMatched, resultBusy}, slices.Repeat([]result{resultAborted}, maxOfClient)...)
		if results := counted(h); !slices.Equal(results, want) {
			t.Errorf("counted %v; want %v", results, want)
		}
	})
}

// TestTotalInFlight: many addresses have a common bound.
func TestTotalInFlight(t *testing.T) {
	var l limiter
	for i := range maxInFlight {
		if !l.begin(netip.AddrFrom4([4]byte{byte(i)})) {
			t.Fatalf("begin %d = false; want true", i)
		}
	}
	if l.begin(netip.Addr{}) {
		t.Errorf("begin = true with %d in flight; want false", maxInFlight)
	}
	for i := range maxInFlight {
		l.end(netip.AddrFrom4([4]byte{byte(i)}))
	}
	if len(l.of) != 0 || l.total != 0 {
		t.Errorf("after the end: %v, %d; want nothing", l.of, l.total)
	}
}

// TestBodyMemory: a body is read into memory of its length, not of the power of two above.
func TestBodyMemory(t *testing.T) {
	h := newHandler(nodesOf(newNode("a", "valid")))
	text := append(bytes.Repeat([]byte{' '}, 10<<20), marshal(t, args(newPod(requires), "a"))...)
	r := httptest.NewRequest(http.MethodPost, "/filter", bytes.NewReader(text))
	b := new(buffer)
	if how := h.read(httptest.NewRecorder(), r, b); how != resultMatched {
		t.Fatalf("read = %s; want %s", how, resultMatched)
	}
	if got, most := b.body.Cap(), len(text)*105/100; got > most {
		t.Errorf("the buffer of a body of %d bytes has %d; want at most %d", len(text), got, most)
	}
}

// TestSlowBody: a body that does not come ends the request, by a server without any timeout.
func TestSlowBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHandler(nodeMap{})
		client, served := net.Pipe()
		server := &http.Server{Handler: h}
		go server.Serve(&oneConn{conn: served, done: make(chan struct{})})
		defer server.Close()
		fmt.Fprint(client, "POST /filter HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n{")
		began := time.Now()
		answer, err := io.ReadAll(client)
		if took := time.Since(began); took != transferTimeout || !strings.Contains(string(answer), "408 ") {
			t.Errorf("answer %q, %v after %s; want status 408 after %s", answer, err, took, transferTimeout)
		}
	})
}

// oneConn is a listener with one connection.
type oneConn struct {
	conn net.Conn
	done chan struct{}
	once sync.Once
}

func (l *oneConn) Accept() (net.Conn, error) {
	if c := l.conn; c != nil {
		l.conn = nil
		return c, nil
	}
	<-l.done
	return nil, net.ErrClosed
}
func (l *oneConn) Close() error   { l.once.Do(func() { close(l.done) }); return nil }
func (l *oneConn) Addr() net.Addr { return &net.UnixAddr{} }

// TestSchedulersAtOnce: concurrent requests share no memory.
func TestSchedulersAtOnce(t *testing.T) {
	names, nodes := many(300, func(i int) string { return []string{"valid", "expired"}[i%2] })
	server := httptest.NewServer(newHandler(nodes))
	defer server.Close()
	bodies := [][]byte{marshal(t, args(newPod(requires), names...)), marshal(t, args(newPod(requires), names[:7]...)), marshal(t, args(newPod(""), names...))}
	want := []int{150, 4, 300}
	var schedulers sync.WaitGroup
	for range 3 {
		schedulers.Go(func() {
			for i := range 60 {
				resp, err := http.Post(server.URL+"/filter", "application/json", bytes.NewReader(bodies[i%3]))
				if err != nil {
					t.Error(err)
					return
				}
				var got extenderv1.ExtenderFilterResult
				err = errors.Join(json.NewDecoder(resp.Body).Decode(&got), resp.Body.Close())
				if err != nil || got.NodeNames == nil || len(*got.NodeNames) != want[i%3] {
					t.Errorf("request %d: %v, %v names; want %d", i, err, got.NodeNames, want[i%3])
					return
				}
			}
		})
	}
	schedulers.Wait()
}

// TestMetrics: all results are there before the first request.
func TestMetrics(t *testing.T) {
	h := newHandler(nodeMap{})
	registry := prometheus.NewPedanticRegistry()
	for _, c := range h.Collectors() {
		registry.MustRegister(c)
	}
	problems, err := testutil.GatherAndLint(registry)
	if err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
	if n, err := testutil.GatherAndCount(registry, "evictd_affinity_extender_requests_total"); n != len(allResults) || err != nil {
		t.Errorf("results = %d, %v; want %d", n, err, len(allResults))
	}
}
