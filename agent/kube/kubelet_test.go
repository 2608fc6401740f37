package kube

import (
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

func kubeletConfiguration() *KubeletConfiguration {
	return &KubeletConfiguration{
		EvictionHard:            map[string]string{"nodefs.available": "10%", "pid.available": "100", "memory.available": "100Mi"},
		EvictionMinimumReclaim:  map[string]string{"nodefs.available": "1Gi"},
		SystemReserved:          map[string]string{"memory": "1Gi"},
		EnforceNodeAllocatable:  []string{"pods"},
		ShutdownGracePeriod:     "30s",
		CgroupRoot:              "/",
		CgroupsPerQOS:           new(true),
		PodPidsLimit:            -1,
		EvictionSoft:            map[string]string{"nodefs.available": "15%"},
		EvictionSoftGracePeriod: map[string]string{"nodefs.available": "1m"},
	}
}

// certificate returns a certificate (PEM) with that many bytes, of which none is parsed.
func certificate(size int) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: make([]byte, size)}))
}

// reader is a KubeletReader that answers with its configuration.
type reader struct {
	feed   *Feed
	asked  chan string
	answer atomic.Pointer[KubeletConfiguration]
}

func (r *reader) ReadKubelet(request *ReadKubelet) {
	r.asked <- request.Certificates
	r.feed.ReportKubelet(r.answer.Load())
}

// evictd asks at the beginning of each session and when another kubelet runs, with the present
// certificates. What it learned stays when the kubelet can't be read, and over a restart.
func TestKubeletConfigurationArrives(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kube.sock")
	facts := NewFacts()
	e := &evictdSide{socket: socket}
	var certificates atomic.Value
	first, second := certificate(100), certificate(200)
	certificates.Store(first)
	e.Server = &Server{UID: os.Getuid(), Facts: facts, Log: slog.New(slog.NewTextHandler(&e.log, nil)), Changed: func() { e.changes.Add(1) },
		KubeletCertificates: func() string { return certificates.Load().(string) }}
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() { e.ListenAndServe(ctx, func() (net.Listener, error) { return net.Listen("unix", socket) }) })
	defer serving.Wait()
	defer cancel()
	feed := NewFeed("n1", "test", slog.New(slog.DiscardHandler))
	r := &reader{feed: feed, asked: make(chan string, 10)}
	r.answer.Store(kubeletConfiguration())
	feed.KubeletReader = r
	run(t, feed, socket)
	if got := <-r.asked; got != first {
		t.Errorf("asked with the certificates %q; want %q", got, first)
	}
	until(t, "configuration", func() bool { _, _, ok := facts.Kubelet(); return ok })
	got, at, _ := facts.Kubelet()
	if !reflect.DeepEqual(got, *kubeletConfiguration()) || time.Since(at) > time.Minute || !got.ShutsDown() {
		t.Errorf("Kubelet() = %+v, %v; want what was sent, now", got, at)
	}
	until(t, "new decision", func() bool { return e.changes.Load() > 0 })
	thresholds := facts.KubeletThresholds()
	if texts := thresholdTexts(thresholds); strings.Join(texts, " ") != "memory.available<100Mi nodefs.available<10% pid.available<100" {
		t.Errorf("KubeletThresholds() = %q", texts)
	}
	if thresholds[1].MinReclaim.Amount(0) != 1<<30 {
		t.Errorf("minimum reclaim of %+v; want 1Gi", thresholds[1])
	}

	certificates.Store(second)
	r.answer.Store(&KubeletConfiguration{Error: "it does not answer"})
	facts.SeeKubelet("")
	facts.SeeKubelet("kubelet (pid 7)")
	facts.SeeKubelet("kubelet (pid 7)")
	if got := <-r.asked; got != second {
		t.Errorf("asked with the certificates %q; want %q", got, second)
	}
	until(t, "error", func() bool { return facts.KubeletError() == "it does not answer" })
	if _, _, ok := facts.Kubelet(); !ok || len(r.asked) > 0 {
		t.Errorf("configuration known %t, further requests %d; want it known, and none", ok, len(r.asked))
	}

	var saved bytes.Buffer
	if _, err := facts.Encode(&saved); err != nil {
		t.Fatal(err)
	}
	restored := NewFacts()
	if err := restored.Restore(saved.Bytes(), time.Now()); err != nil {
		t.Fatal(err)
	}
	again, atAgain, ok := restored.Kubelet()
	if !ok || !reflect.DeepEqual(again, got) || !atAgain.Equal(at) || len(restored.KubeletThresholds()) != 3 {
		t.Errorf("restored Kubelet() = %+v, %v, %t; want %+v, %v", again, atAgain, ok, got, at)
	}
}

// Saved configurations that no evictd-kube can have sent, or of the future, are not used.
func TestRestoreKubelet(t *testing.T) {
	for content, want := range map[string]bool{
		`{"format":1}`: false,
		`{"format":1,"kubelet":{"at":"2020-01-01T00:00:00Z","configuration":{"evictionHard":{"nodefs.available":"1%"},"later":1}}}`: true,
		`{"format":1,"kubelet":{"configuration":{}}}`:                                                     false,
		`{"format":1,"kubelet":{"at":"2999-01-01T00:00:00Z","configuration":{}}}`:                         false,
		`{"format":1,"kubelet":{"at":"2020-01-01T00:00:00Z","configuration":{"error":"e"}}}`:              false,
		`{"format":1,"kubelet":{"at":"2020-01-01T00:00:00Z","configuration":{"cgroupRoot":"\u001b[2J"}}}`: false,
	} {
		f := NewFacts()
		if err := f.Restore([]byte(content), time.Now()); err != nil {
			t.Errorf("%s: %v", content, err)
		}
		if _, _, ok := f.Kubelet(); ok != want || (f.KubeletThresholds() != nil) != want {
			t.Errorf("%s: known %t; want %t", content, ok, want)
		}
	}
}

func TestKubeletConfigurationBounds(t *testing.T) {
	many := map[string]string{}
	for i := range maxEntries + 1 {
		many[fmt.Sprint(i)] = "1"
	}
	for name, c := range map[string]*KubeletConfiguration{
		"entries":           {EvictionHard: many},
		"reserved":          {KubeReserved: many},
		"list":              {EnforceNodeAllocatable: make([]string, maxEntries+1)},
		"priorities":        {ShutdownGracePeriodByPodPriority: make([]PriorityShutdownPeriod, maxEntries+1)},
		"long value":        {EvictionSoft: map[string]string{"a": strings.Repeat("1", maxEntry+1)}},
		"long key":          {EvictionSoft: map[string]string{strings.Repeat("1", maxEntry+1): ""}},
		"control character": {CgroupRoot: "\x1b[2J"},
		"in a list":         {EnforceNodeAllocatable: []string{"\n"}},
		"error and values":  {Error: "why", CgroupRoot: "/"},
		"error":             {Error: "\x1b[2J"},
		"long error":        {Error: strings.Repeat("e", maxWhy+1)},
	} {
		if err := c.check(); err == nil {
			t.Errorf("%s: check() accepts it", name)
		}
		f := NewFeed("n1", "test", slog.New(slog.DiscardHandler))
		f.ReportKubelet(c)
		if f.kubelet.Error == "" || f.kubelet.check() != nil {
			t.Errorf("%s: evictd-kube would send %+v; want an error that evictd accepts", name, f.kubelet)
		}
	}
	if err := kubeletConfiguration().check(); err != nil {
		t.Errorf("check() = %v", err)
	}
	long := &KubeletConfiguration{EvictionHard: map[string]string{}, KubeReserved: map[string]string{}}
	for i := range maxEntries {
		long.EvictionHard[fmt.Sprint(i, strings.Repeat("x", 200))] = strings.Repeat("x", 200)
	}
	f := NewFeed("n1", "test", slog.New(slog.DiscardHandler))
	f.ReportKubelet(long)
	if !strings.Contains(f.kubelet.Error, "longer") {
		t.Errorf("evictd-kube would send a line that evictd does not read")
	}
	if err := (&ReadKubelet{Certificates: strings.Repeat("c", maxCertificates+1)}).check(); err == nil {
		t.Error("check() accepts certificates that are too long")
	}
}

// What evictd does not understand as a threshold is none, so that it evicts for the signal.
func TestKubeletThresholds(t *testing.T) {
	for text, want := range map[string]int{
		"10%": 1, "1Gi": 1, "0.0%": 1, "0%": 0, "100%": 0, "": 0, "NaN%": 0, "5%%": 0, "1e999999999": 0, "-1": 0, "0": 0, "5% or 1Gi": 0, "101%": 0, "Gi": 0,
	} {
		c := &KubeletConfiguration{EvictionHard: map[string]string{"nodefs.available": text, "unknown": "1"}}
		if got := c.hardThresholds(); got == nil || len(got) != want || want == 1 && got[0].Signal != signal.NodeFsAvailable {
			t.Errorf("thresholds of %q = %+v; want %d", text, got, want)
		}
	}
}

// A kubelet that can't be read for five minutes may have a new certificate.
func TestKubeletIsAskedAgainAfterFailures(t *testing.T) {
	f := NewFacts()
	asked := func() bool {
		select {
		case <-f.kubelet.wake:
			return true
		default:
			return false
		}
	}
	for _, tt := range []struct {
		after time.Duration
		fails bool
		want  bool
	}{
		{0, true, false}, {failureInterval - 1, true, false}, {failureInterval, true, true}, {failureInterval + time.Minute, true, false},
		{2 * failureInterval, true, true}, {2*failureInterval + 1, false, false}, {3 * failureInterval, true, false}, {4 * failureInterval, true, true},
	} {
		c := kubeletConfiguration()
		if tt.fails {
			c = &KubeletConfiguration{Error: "why"}
		}
		f.setKubelet(c, testTime.Add(tt.after))
		if got := asked(); got != tt.want {
			t.Errorf("after %v: asked %t; want %t", tt.after, got, tt.want)
		}
	}
}

// asked returns the certificates of the requests that wait for evictd-kube, and removes them.
func (a *kubeletAsker) asked() (list []string) {
	a.out.mu.Lock()
	defer a.out.mu.Unlock()
	for _, m := range a.out.queue {
		list = append(list, m.message.ReadKubelet.Certificates)
	}
	a.out.queue = nil
	return list
}

// Certificates that can't be read, as on a disk that hangs, do not keep evictd from asking. There is one
// read at a time.
func TestKubeletIsAskedWithoutCertificates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a kubeletAsker
		var reads atomic.Int32
		var log buffer
		wake, release := make(chan struct{}, 1), make(chan string)
		go a.run(t.Context(), wake, func() string { reads.Add(1); return <-release }, slog.New(slog.NewTextHandler(&log, nil)))
		expect := func(when string, n int32, want ...string) {
			t.Helper()
			synctest.Wait()
			if got := a.asked(); !slices.Equal(got, want) || reads.Load() != n {
				t.Errorf("%s: asked with %.100q, %d reads; want %.100q, %d", when, got, reads.Load(), want, n)
			}
		}
		a.attach(newOutbox(), wake)
		time.Sleep(certificatesTimeout - 1)
		expect("while the read hangs", 1)
		time.Sleep(time.Nanosecond)
		expect("at the timeout", 1, "")
		a.attach(newOutbox(), wake) // a new session
		time.Sleep(certificatesTimeout)
		expect("in another session", 1, "")
		release <- certificate(1)
		expect("a read that began before the request", 2)
		release <- certificate(2)
		expect("the next read", 2, certificate(2))
		time.Sleep(time.Hour)
		expect("later", 2)
		if !strings.Contains(log.String(), "can't be read yet") {
			t.Errorf("log %q; want why evictd asks without certificates", log.String())
		}
	})
}

// Certificates that are too long for evictd-kube are dropped: it would end the session.
func TestFittingCertificates(t *testing.T) {
	small, large := certificate(1000), certificate(maxCertificates)
	for _, tt := range []struct {
		all, kept string
		dropped   int
	}{
		{"", "", 0}, {small, small, 0}, {small + small, small + small, 0}, {large, "", 1}, {large + small, small, 1}, {small + large, small, 1},
		{certificate(12000) + small, certificate(12000), 1}, {"no certificate", "", 0},
	} {
		kept, dropped := fitting(tt.all)
		if kept != tt.kept || dropped != tt.dropped || (&ReadKubelet{Certificates: kept}).check() != nil {
			t.Errorf("fitting(%d bytes) = %d bytes, %d dropped; want %d, %d", len(tt.all), len(kept), dropped, len(tt.kept), tt.dropped)
		}
	}
}

// Whether the kubelet shuts down is known of the kubelet that ran last, also after a restart of evictd.
func TestKubeletShutsDown(t *testing.T) {
	f := NewFacts()
	want := func(when string, yes, known bool) {
		t.Helper()
		if y, k := f.KubeletShutsDown(); k != known || known && y != yes {
			t.Errorf("%s: KubeletShutsDown() = %t, %t; want %t, %t", when, y, k, yes, known)
		}
	}
	want("never read", false, false)
	f.SeeKubelet("a")
	f.setKubelet(&KubeletConfiguration{}, testTime)
	want("read", false, true)
	f.SeeKubelet("")
	want("the kubelet has stopped", false, true)
	f.setKubelet(&KubeletConfiguration{Error: "why"}, testTime)
	want("the kubelet does not answer", false, true)

	version := f.Version()
	f.setKubelet(&KubeletConfiguration{}, testTime.Add(time.Hour))
	if f.Version() == version {
		t.Error("the time of the last read is not saved")
	}
	var saved bytes.Buffer
	if _, err := f.Encode(&saved); err != nil {
		t.Fatal(err)
	}
	f = NewFacts()
	if err := f.Restore(saved.Bytes(), testTime.Add(2*time.Hour)); err != nil {
		t.Fatal(err)
	}
	if _, at, _ := f.Kubelet(); !at.Equal(testTime.Add(time.Hour)) {
		t.Errorf("restored: read at %v; want %v", at, testTime.Add(time.Hour))
	}
	want("restored", false, true)
	f.SeeKubelet("a")
	want("the same kubelet", false, true)
	f.SeeKubelet("b")
	want("another kubelet", false, false)
	f.setKubelet(&KubeletConfiguration{Error: "why"}, testTime)
	want("that does not answer", false, false)
	f.SeeKubelet("")
	want("that has stopped", false, false)
	f.SeeKubelet("b")
	f.setKubelet(&KubeletConfiguration{ShutdownGracePeriod: "30s"}, testTime)
	want("that was read", true, true)
}
