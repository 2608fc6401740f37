package disks

import (
	"context"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/pace"
)

// ask asks the runtime, now and then, what writable layers take up that can't be
// found.
func (u *Usages) ask(ctx context.Context) {
	asking := errand[map[string]Measured]{what: "the container runtime's statistics"}
	timer := time.NewTimer(0)
	defer timer.Stop()
	var last time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-u.lacking:
			if gap := askAgain - time.Since(last); gap > 0 {
				timer.Reset(gap)
				continue
			}
		case <-timer.C:
		}
		last = time.Now()
		timer.Reset(askAgain)
		if !u.lacksLayers() {
			timer.Reset(pace.Together(time.Now(), askEvery))
			continue
		}
		layers, err := asking.ask(2*patience, func() (map[string]Measured, error) { return u.o.Layers(ctx) })
		if err != nil {
			u.o.Log.Debug("writable layers not told by the runtime", "error", err)
			continue
		}
		u.mu.Lock()
		u.layers = layers
		u.version++
		if !u.hasty {
			timer.Reset(askEvery)
		}
		u.mu.Unlock()
	}
}

// lacksLayers reports whether a container's writable layer could not be found.
func (u *Usages) lacksLayers() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.lacks()
}

// lacks is lacksLayers for whoever holds mu.
func (u *Usages) lacks() bool {
	for _, h := range u.pods {
		for _, dir := range h.layers {
			if dir == "" {
				return true
			}
		}
	}
	return false
}

// Holding is what is known of one pod's disk usage.
type Holding struct {
	// Known tells that at least a part was measured, or that there is nothing to
	// measure. Short says why the pod may use more than that; empty where nothing
	// says so.
	Known bool
	Short string
	// Oldest is when the oldest of the measurements was made; zero where none
	// was. By lists the ways in which they were.
	Oldest time.Time
	By     []string

	Layers  map[string]Measured // by container ID
	Logs    map[string]Measured
	Volumes []evict.Volume
}

// Of returns what is known of a subject.
func (u *Usages) Of(s *Subject) Holding {
	u.mu.Lock()
	defer u.mu.Unlock()
	h := Holding{Layers: map[string]Measured{}, Logs: map[string]Measured{}}
	pod := u.pods[s.UID]
	if pod == nil {
		if u.lookups[s.UID].hangs() {
			return Holding{Short: "looking for its directories hangs"}
		}
		return Holding{Short: "not looked at yet"}
	}
	for _, c := range s.Containers {
		layer := u.layers[c.ID]
		if dir := pod.layers[c.ID]; dir != "" {
			layer = h.take(u.places[dir], "the writable layer of "+c.Name)
		} else if !layer.At.IsZero() {
			h.add(&layer)
		}
		if layer.At.IsZero() {
			h.lack("the writable layer of " + c.Name + " is not known")
		}
		h.Layers[c.ID] = layer
		if l, ok := pod.logs[c.ID]; ok {
			h.Logs[c.ID] = h.take(u.places[l.key()], "the logs of "+c.Name)
		} else {
			h.lack("the logs of " + c.Name + " are not known")
		}
	}
	if pod.unlisted != nil {
		h.lack("its volumes are not known: " + pod.unlisted.Error())
	}
	for _, v := range pod.volumes {
		got := h.take(u.places[v.dir], "volume "+v.name)
		h.Volumes = append(h.Volumes, evict.Volume{
			Name: v.name, Type: v.kind, Medium: v.medium, Used: signed(got.Bytes), Inodes: signed(got.Inodes),
		})
	}
	h.Known = !h.Oldest.IsZero() || h.Short == ""
	return h
}

// take adds what is known of a directory.
func (h *Holding) take(p *target, what string) Measured {
	if p == nil {
		h.lack(what + ": not looked at yet")
		return Measured{}
	}
	got := p.soFar()
	switch {
	case p.job.hangs():
		h.lack(what + ": " + p.path + " hangs")
	case p.err != nil:
		h.lack(what + ": " + p.err.Error())
	case got.At.IsZero():
		h.lack(what + ": not looked at yet")
	}
	if !got.At.IsZero() {
		h.add(&got)
	}
	return got
}

func (h *Holding) add(m *Measured) {
	if h.Oldest.IsZero() || m.At.Before(h.Oldest) {
		h.Oldest = m.At
	}
	if !slices.Contains(h.By, m.By) {
		h.By = append(h.By, m.By)
	}
	if m.Short != "" {
		h.lack(m.Short)
	}
}

// lack notes why more may be used than what is known, the first reason alone.
func (h *Holding) lack(why string) {
	if h.Short == "" {
		h.Short = why
	}
}
