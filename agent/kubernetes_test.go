package agent

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Saved facts are used at the next start, and saved again at its end. Those that can't be
// decoded are moved aside, with a warning.
func TestFactsAreKept(t *testing.T) {
	d := buildHere(t)
	d.close()
	d.closers = nil
	path := filepath.Join(d.options.StateDir, "facts.json")
	saved := `{"format":1,"pods":[{"uid":"u1","namespace":"default","name":"web","priority":7,"containers":[{"name":"c"}]}]}`
	for content, want := range map[string]int{saved: 1, `{"format":0}`: 0} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		again, err := build(d.options, d.log)
		if err != nil {
			t.Fatal(err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		again.facts.SaveChanges(ended, again.store, again.log.Logger)
		again.close()
		if got := again.facts.Status(time.Now()).Pods; got != want {
			t.Errorf("%d pods with facts from %s; want %d", got, content, want)
		}
		kept, err := os.ReadFile(path)
		if err != nil || strings.Contains(string(kept), `"uid":"u1"`) != (want == 1) {
			t.Errorf("saved again: %s, %v; want %d pods", kept, err, want)
		}
		_, err = os.Stat(path + ".corrupt")
		if warned := strings.Contains(strings.Join(again.startWarnings, ""), path); warned != (want == 0) || (err == nil) != (want == 0) {
			t.Errorf("warnings %q, moved aside: %v; want %d pods", again.startWarnings, err, want)
		}
		os.Remove(path + ".corrupt")
	}
}

// Without the right to create the socket for evictd-kube evictd runs, and the status shows
// the reason.
func TestNoSocketForEvictdKube(t *testing.T) {
	d := buildHere(t)
	d.options.KubeSocket = t.TempDir()
	ctx, cancel := context.WithCancelCause(t.Context())
	g := group{cancel: cancel}
	d.startKube(ctx, &g)
	defer g.wait.Wait()
	defer cancel(nil)
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		if k := d.statusBackend.Status().Kubernetes; strings.Contains(k.Error, "is not a socket") {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("status %+v; want the reason why there is no socket", k)
		}
	}
	if err := context.Cause(ctx); err != nil {
		t.Errorf("evictd ended: %v", err)
	}
}
