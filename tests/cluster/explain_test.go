package cluster

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// statusWrite is a write of a pod's status in the API server's audit log.
type statusWrite struct {
	pod, user          string
	code               int
	received, answered time.Time
}

// statusWrites returns the writes of the status of all pods, the oldest first; none without an audit log.
func (c *kubeNode) statusWrites() (writes []statusWrite) {
	c.t.Helper()
	content, err := os.ReadFile(c.AuditLog())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		c.t.Fatal(err)
	}
	for line := range bytes.Lines(content) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break // being written
		}
		var e struct {
			User                                     struct{ Username string }
			Verb                                     string
			ObjectRef                                struct{ Name string }
			ResponseStatus                           struct{ Code int }
			RequestReceivedTimestamp, StageTimestamp time.Time
		}
		if err := json.Unmarshal(line, &e); err != nil {
			c.t.Fatalf("audit log: %v: %s", err, line)
		}
		if e.Verb == "patch" {
			writes = append(writes, statusWrite{e.ObjectRef.Name, e.User.Username, e.ResponseStatus.Code, e.RequestReceivedTimestamp, e.StageTimestamp})
		}
	}
	return writes
}

// kubeLog returns the log of evictd-kube.
func (c *kubeNode) kubeLog() string {
	c.t.Helper()
	content, err := os.ReadFile(filepath.Join(c.dir, "evictd-kube.log"))
	if err != nil {
		c.t.Fatal(err)
	}
	return string(content)
}

// sentLine is the line of evictd-kube's log about an answered report, with the name of the pod and when it was sent.
var sentLine = regexp.MustCompile(`msg="answered an order to report an eviction" pod=default/(\S+) answer=reported .*sent=(\S+)`)

// reportsSent returns when evictd-kube has sent the first report about each victim, by the names of the pods, the oldest
// first.
func (c *kubeNode) reportsSent() map[string][]time.Time {
	c.t.Helper()
	sent := map[string][]time.Time{}
	for _, match := range sentLine.FindAllStringSubmatch(c.kubeLog(), -1) {
		at, err := time.Parse(time.RFC3339Nano, match[2])
		if err != nil {
			c.t.Fatal(err)
		}
		sent[match[1]] = append(sent[match[1]], at)
	}
	return sent
}

// explainTime is how long after the kill what others did to a victim is explained: pods of a StatefulSet have the same
// name.
const explainTime = 10 * time.Second

// explanation returns what was seen of an eviction since the kill: when the last process had ended and the report was
// sent, who has written the status when, and what the API server has shown.
func (v *victim) explanation(e *outcome) string {
	var b strings.Builder
	within := func(t time.Time) bool { return !t.Before(e.killed) && t.Before(e.killed.Add(explainTime)) }
	after := func(t time.Time) time.Duration { return t.Sub(e.killed).Round(100 * time.Microsecond) }
	fmt.Fprintf(&b, "\nkilled at %s; %v", e.killed.Format(time.StampMicro), e)
	for _, at := range v.c.reportsSent()[v.pod.Name] {
		if within(at) {
			fmt.Fprintf(&b, "\n%v after SIGKILL: evictd-kube has sent its first report", after(at))
		}
	}
	for _, w := range v.c.statusWrites() {
		if w.pod == v.pod.Name && within(w.received) {
			fmt.Fprintf(&b, "\n%v after SIGKILL: write by %s received, answered with %d after %v", after(w.received), w.user, w.code, w.answered.Sub(w.received))
		}
	}
	return b.String() + v.history(e)
}
