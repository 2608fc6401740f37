//go:build bench

package fencing

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// measureClusters is the number of clusters that share the losses of a contender: most of the time of a loss is
	// waited.
	measureClusters = 2
	// detachTimeout is how long a VolumeAttachment is observed that kube-controller-manager detaches by force after 6
	// min.
	detachTimeout = 7 * time.Minute
)

// measurement adds up the losses of one contender.
type measurement struct {
	mu sync.Mutex
	Releases
	from Kind
}

// measure starts a measurement whose result is written when t and its subtests have ended.
func measure(t *testing.T, contender string, from Kind) *measurement {
	m := &measurement{Releases: Releases{Contender: contender, From: string(from)}, from: from}
	t.Cleanup(func() {
		if t.Failed() || t.Skipped() {
			return
		}
		writeResult(t, &m.Releases)
	})
	return m
}

// writeResult adds a result to the file that is named in the environment.
func writeResult(t *testing.T, result any) {
	t.Helper()
	line, err := json.Marshal(result)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", line)
	file := os.Getenv(ResultsEnv)
	if file == "" {
		return
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Write(append(line, '\n'))
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// losses returns how many losses are measured.
func losses(t *testing.T) int {
	text := os.Getenv(LossesEnv)
	if text == "" {
		return 20
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s is %q; want a number of at least 1", LossesEnv, text)
	}
	return n
}

// loop measures losses of the two nodes in turn, on clusters of their own. recover returns when the lost node is back.
func (m *measurement) loop(t *testing.T, start func(*testing.T) *Cluster, recover func(c *Cluster, lost, other string) error) {
	t.Parallel()
	n := losses(t)
	for i := range min(measureClusters, n) {
		t.Run(fmt.Sprint("cluster ", i), func(t *testing.T) {
			t.Parallel()
			c := start(t)
			lost, other := "a", "b"
			for range (n + measureClusters - 1 - i) / measureClusters {
				began := time.Now()
				c.Machines[lost].Isolate()
				if err := recover(c, lost, other); err != nil {
					t.Fatal(err)
				}
				m.add(t, c, lost, other, began)
				lost, other = other, lost
			}
		})
	}
}

// since matches the events from a time on.
func since(began time.Time) func(*Event) bool {
	return func(e *Event) bool { return !e.At.Before(began) }
}

// add adds a loss that ended with a release.
func (m *measurement) add(t *testing.T, c *Cluster, lost, other string, began time.Time) {
	t.Helper()
	events, err := c.Timeline.Events()
	if err != nil {
		t.Fatal(err)
	}
	from, ok := Find(events, m.from, On(lost), since(began))
	gone, ok2 := Find(events, AttachmentGone, On(lost), since(began))
	runs, ok3 := Find(events, PodRuns, On(other), since(began))
	if !ok || !ok2 || !ok3 {
		t.Fatalf("events without %q, %q or %q:\n%s", m.from, AttachmentGone, PodRuns, Print(events, began))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.Noticed = append(m.Noticed, from.At.Sub(began).Microseconds())
	m.Released = append(m.Released, gone.Done.Sub(from.At).Microseconds())
	m.Replaced = append(m.Replaced, runs.Done.Sub(began).Microseconds())
	m.harm(c, events, began)
}

// harm counts a loss whose pod or volume was released too early. The lists of the cluster end with this loss.
func (m *measurement) harm(c *Cluster, events []Event, began time.Time) {
	ofThis := slices.DeleteFunc(events, func(e Event) bool { return e.At.Before(began) })
	m.Early += min(1, len(Violations(ofThis)))
	m.Shared += min(1, len(c.Storage.Conflicts()))
}

func TestMeasureController(t *testing.T) {
	m := measure(t, "evictd-controller", FenceCreated)
	m.loop(t, func(t *testing.T) *Cluster {
		c, _ := startFencing(t, Enforce)
		return c
	}, func(c *Cluster, lost, other string) error {
		if err := c.AwaitRecovery(t.Context(), lost, other); err != nil {
			return err
		}
		// The next fence of the node has an object of its own.
		s, err := c.Snapshot(t.Context())
		if err != nil {
			return err
		}
		return c.Admin.Delete(t.Context(), fencePath+"/"+s.Fences[lost].Name, metav1.DeleteOptions{})
	})
}

func TestMeasureTaintByHand(t *testing.T) {
	m := measure(t, "switched off, then out-of-service taint by hand", OutOfService)
	m.loop(t, start, func(c *Cluster, lost, other string) error { return c.RecoverByHand(t.Context(), lost, other) })
}

// TestMeasureForcedDetach: what becomes of the volume when nobody adds the taint.
func TestMeasureForcedDetach(t *testing.T) {
	if os.Getenv(DetachEnv) == "" {
		t.Skipf("takes %v; set %s", detachTimeout, DetachEnv)
	}
	for _, tt := range []struct {
		contender string
		args      []string
		options   metav1.DeleteOptions
		from      Kind
	}{
		{"kube-controller-manager alone, pod deleted", nil, metav1.DeleteOptions{}, PodDeleted},
		{"kube-controller-manager, pod force-deleted by hand", nil, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}, PodRemoved},
		{"kube-controller-manager with " + noForceDetach + ", pod force-deleted by hand", []string{noForceDetach}, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}, PodRemoved},
	} {
		t.Run(tt.contender, func(t *testing.T) {
			t.Parallel()
			m := measure(t, tt.contender, tt.from)
			c := startArgs(t, tt.args...)
			began := time.Now()
			c.Machines["a"].Isolate()
			if err := c.Await(t.Context(), "a to be not ready", func(s *Snapshot) bool { return !s.Ready["a"] }); err != nil {
				t.Fatal(err)
			}
			if err := c.Admin.Delete(t.Context(), podsPath+"/"+PodName, tt.options); err != nil {
				t.Fatal(err)
			}
			m.observe(t, c, began)
		})
	}
}

// observe waits for the release of the volume of a, and adds the loss.
func (m *measurement) observe(t *testing.T, c *Cluster, began time.Time) {
	t.Helper()
	from, err := c.AwaitEvent(t.Context(), m.from, since(began))
	if err != nil {
		t.Fatal(err)
	}
	var events []Event
	for time.Since(from.At) < detachTimeout {
		if events, err = c.Timeline.Events(); err != nil {
			t.Fatal(err)
		}
		if _, gone := Find(events, AttachmentGone, On("a"), since(began)); gone {
			if err := c.Await(t.Context(), "the pod to run on b", func(s *Snapshot) bool { return s.PodNode == "b" && s.PodRunning }); err != nil {
				t.Fatal(err)
			}
			m.add(t, c, "a", "b", began)
			return
		}
		time.Sleep(time.Second)
	}
	m.Noticed = append(m.Noticed, from.At.Sub(began).Microseconds())
	m.Kept = append(m.Kept, time.Since(from.At).Microseconds())
	m.harm(c, events, began)
}
