package kube

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/evictd/evictd/agent/evict"
)

// evictd asks for running pods without facts at once, in lines that evictd-kube reads, and again
// after wantInterval or in another session.
func TestWant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := quietServer()
		const n = 2*maxWanted + 1
		uid := func(i int) string { return fmt.Sprintf("%0*d", maxName, i) }
		asked := func(r *bufio.Reader) (uids map[string]bool) {
			uids = map[string]bool{}
			for len(uids) < n {
				line, err := r.ReadBytes('\n')
				if err != nil {
					t.Fatal(err)
				}
				m, err := decode(line)
				if err != nil || m.Want == nil || len(line) > maxLine {
					t.Fatalf("%d bytes, %.100s, %v; want UIDs in at most %d bytes", len(line), line, err, maxLine)
				}
				for _, uid := range m.Want.UIDs {
					if uids[uid] {
						t.Fatalf("asked for %s twice", uid)
					}
					uids[uid] = true
				}
			}
			return uids
		}
		for range 2 {
			conn, r := pipe(t, s)
			began := time.Now()
			list := func() {
				for i := range n {
					s.Facts.Specification(&evict.Pod{UID: uid(i), Kubelet: true})
				}
			}
			list()
			s.Facts.Specification(&evict.Pod{UID: "not a name", Kubelet: true})
			if got := asked(r); !got[uid(0)] || time.Since(began) != 0 {
				t.Errorf("asked for %d pods after %v; want all at once", len(got), time.Since(began))
			}
			go func() {
				var err error
				for err == nil {
					time.Sleep(StateInterval)
					list()
					_, err = fmt.Fprint(conn, `{"state":{"connected":true,"ageMilliseconds":-1}}`+"\n")
				}
			}()
			asked(r)
			if got := time.Since(began); got < wantInterval {
				t.Errorf("asked again after %v; want %v", got, wantInterval)
			}
			conn.Close()
			time.Sleep(StateInterval)
			synctest.Wait()
		}
	})
}

// Only facts that the decision uses, about a pod that the runtime lists, cause a list of the
// runtime's pods, and only other facts are saved.
func TestChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var changes atomic.Int32
		s := quietServer()
		s.Changed = func() { changes.Add(1) }
		conn, r := pipe(t, s)
		go func() {
			for _, err := r.ReadString('\n'); err == nil; {
				_, err = r.ReadString('\n')
			}
		}()
		put := func(what string, changed, version bool, change func(*Pod)) {
			t.Helper()
			p := web()
			change(p)
			line, err := encodePod(p)
			if err != nil {
				t.Fatal(err)
			}
			calls, before := changes.Load(), s.Facts.Version()
			_, _ = conn.Write(line)
			time.Sleep(2 * changeInterval)
			synctest.Wait()
			if got := changes.Load() != calls; got != changed {
				t.Errorf("%s: Changed called: %t; want %t", what, got, changed)
			}
			if got := s.Facts.Version() != before; got != version {
				t.Errorf("%s: version changed: %t; want %t", what, got, version)
			}
		}
		put("first facts of a pod that does not run", false, true, func(*Pod) {})
		s.Facts.Specification(running())
		put("the same", false, false, func(*Pod) {})
		put("phase", false, true, func(p *Pod) { p.Phase = "Failed" })
		put("the same phase", false, false, func(p *Pod) { p.Phase = "Failed" })
		put("labels", true, true, func(p *Pod) { p.Labels = map[string]string{"a": "b"} })
		put("another priority, which is refused", true, true, func(p *Pod) { p.Priority++ })
		put("the same refused priority", false, false, func(p *Pod) { p.Priority++ })
		runs := running()
		runs.UID = "u9"
		s.Facts.Specification(runs)
		put("first facts of a pod that runs", true, true, func(p *Pod) { p.UID = "u9" })
		conn.Close()
		synctest.Wait()
	})
}

// decidesAs agrees with convert.
func TestDecidesAs(t *testing.T) {
	pod := func() *Pod {
		p := web()
		p.QoS = evict.Burstable
		return p
	}
	changes := map[string]any{
		"UID": "u7", "Namespace": "n", "Name": "n", "Labels": map[string]string{"a": "b"}, "Priority": int32(9), "PriorityClassName": "other",
		"Owner": Owner{"DaemonSet", "d"}, "QoS": evict.Guaranteed, "Exclusive": ExclusiveJob, "RestartPolicy": "Never", "TerminationSeconds": new(int64(77)),
		"Tolerations": []Toleration{{Key: "other"}}, "Phase": "Failed", "Deleted": testTime, "Bound": testTime, "Resources": Resources{Requests: Amounts{Memory: "77"}},
		"Overhead": Amounts{Memory: "77"}, "Containers": []Container{{Name: "other"}}, "InitContainers": []Container{{Name: "other"}},
		"EphemeralContainers": []string{"other"}, "Volumes": []Volume{{Name: "other"}},
	}
	fields := reflect.TypeFor[Pod]()
	for i := range fields.NumField() {
		name := fields.Field(i).Name
		if name == "Reduced" || name == "Started" {
			continue
		}
		change, ok := changes[name]
		if !ok {
			t.Errorf("no change of %s in this test", name)
			continue
		}
		p := pod()
		reflect.ValueOf(p).Elem().Field(i).Set(reflect.ValueOf(change))
		before, err := pod().convert()
		if err != nil {
			t.Fatal(err)
		}
		after, err := p.convert()
		if err != nil {
			t.Fatal(err)
		}
		if got, want := pod().decidesAs(p), reflect.DeepEqual(before, after); got != want {
			t.Errorf("%s: decidesAs() = %t; converted equal: %t", name, got, want)
		}
	}
}

// A new session does not wait until evictd has read what it throttles of the old one.
func TestNewSessionEndsThrottle(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := quietServer()
	s.UID = os.Getuid()
	s.decoded.take(decodeBurst, decodeBurst, decodeRate, time.Now())
	done := make(chan error)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { done <- s.Serve(ctx, l) }()
	old, r := raw(t, socket, hello)
	if _, err := r.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	_, _ = old.Write([]byte(strings.Repeat(",", maxPodSize-1) + "\n")) // evictd waits for 16 s
	time.Sleep(200 * time.Millisecond)
	began := time.Now()
	_, r = raw(t, socket, hello)
	if _, err := r.ReadString('\n'); err != nil || time.Since(began) > 3*time.Second {
		t.Errorf("hello after %v, %v; want it within 3s", time.Since(began), err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Pods that run for a minute and of which none has facts are a warning.
func TestAnotherNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log buffer
		s, f := quietServer(), quietFeed()
		s.Log = slog.New(slog.NewTextHandler(&log, nil))
		f.Replace(pods(3)) // of another node
		f.Confirm(time.Now())
		l := connect(t, s, f)
		doubts := func() bool { return s.Facts.Status(time.Now()).Error == doubtful }
		for range 12 {
			if doubts() {
				t.Fatalf("doubts after less than %v", foreignDelay)
			}
			s.Facts.Specification(runs(100))
			time.Sleep(5 * time.Second)
		}
		for range 12 {
			s.Facts.Specification(runs(100))
			time.Sleep(10 * time.Second)
		}
		if n := strings.Count(log.String(), "--node-name"); n != 1 || !doubts() {
			t.Errorf("status %+v, log:\n%s\nwant one warning", s.Facts.Status(time.Now()), log.String())
		}
		s.Facts.Specification(runs(1))
		if doubts() {
			t.Error("doubts although a running pod has facts")
		}
		l.stop()
	})
}
