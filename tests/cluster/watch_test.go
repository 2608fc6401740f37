package cluster

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// watch has every state in which the API server has shown each pod.
type watch struct {
	mu     sync.Mutex
	states map[string][]podState // by the pods' UIDs
}

// podState is a pod as the API server has shown it.
type podState struct {
	corev1.Pod
	at      time.Time
	deleted bool // gone from the API
}

// watch watches the pods until the test ends. After a gap, as when the API server was killed, it lists them.
func (c *kubeNode) watch() *watch {
	w := &watch{states: map[string][]podState{}}
	client := &http.Client{Transport: c.client.Transport}
	ctx, url := c.t.Context(), "https://"+c.address+"/api/v1/pods"
	go func() {
		for version := ""; ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
			if version == "" {
				version = w.list(ctx, client, url)
			}
			if version != "" {
				version = w.follow(ctx, client, url+"?watch=true&resourceVersion="+version, version)
			}
		}
	}()
	return w
}

// get makes a request as the administrator. The caller closes the body.
func get(ctx context.Context, client *http.Client, url string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+adminToken)
	return client.Do(req)
}

// list reads all pods, and returns the version from which to go on; "" if it fails. Pods that are not among them were
// deleted since.
func (w *watch) list(ctx context.Context, client *http.Client, url string) (version string) {
	resp, err := get(ctx, client, url)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	var list corev1.PodList
	if resp.StatusCode != http.StatusOK || json.NewDecoder(resp.Body).Decode(&list) != nil {
		return ""
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	now, listed := time.Now(), map[string]bool{}
	for _, p := range list.Items {
		w.add(podState{Pod: p, at: now})
		listed[string(p.UID)] = true
	}
	for uid, states := range w.states {
		if last := states[len(states)-1]; !listed[uid] && !last.deleted {
			w.add(podState{Pod: last.Pod, at: now, deleted: true})
		}
	}
	return list.ResourceVersion
}

// follow reads one watch until it ends, and returns the version from which to go on; "" if it is too old.
func (w *watch) follow(ctx context.Context, client *http.Client, url, version string) string {
	resp, err := get(ctx, client, url)
	if err != nil {
		return version
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusGone:
		return ""
	default: // the API server is starting
		return version
	}
	for d := json.NewDecoder(resp.Body); ; {
		var e struct {
			Type   string
			Object json.RawMessage // in an error not a pod, and can't be decoded as one
		}
		if d.Decode(&e) != nil {
			return version
		}
		var p corev1.Pod
		if e.Type == "ERROR" || json.Unmarshal(e.Object, &p) != nil {
			return ""
		}
		version = p.ResourceVersion
		w.mu.Lock()
		w.add(podState{Pod: p, at: time.Now(), deleted: e.Type == "DELETED"})
		w.mu.Unlock()
	}
}

// add adds the next state of a pod. The caller has the mutex.
func (w *watch) add(s podState) { w.states[string(s.UID)] = append(w.states[string(s.UID)], s) }

// of returns the states of a pod, the oldest first.
func (w *watch) of(uid string) []podState {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.states[uid])
}

// last returns the last state of each pod whose label app has a value, in the order of their
// creation.
func (w *watch) last(app string) []podState {
	w.mu.Lock()
	defer w.mu.Unlock()
	var last []podState
	for _, states := range w.states {
		if s := states[len(states)-1]; s.Labels["app"] == app {
			last = append(last, s)
		}
	}
	slices.SortFunc(last, func(a, b podState) int {
		if d := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); d != 0 {
			return d
		}
		return strings.Compare(string(a.UID), string(b.UID))
	})
	return last
}

// running returns the only pod of a workload that runs and is not terminating, if there is
// one.
func (w *watch) running(app string) (podState, bool) {
	for _, s := range w.last(app) {
		if s.Status.Phase == corev1.PodRunning && s.DeletionTimestamp == nil && !s.deleted {
			return s, true
		}
	}
	return podState{}, false
}

// first returns the first state of a pod that meets a condition.
func first(states []podState, ok func(*podState) bool) (podState, bool) {
	for _, s := range states {
		if ok(&s) {
			return s, true
		}
	}
	return podState{}, false
}
