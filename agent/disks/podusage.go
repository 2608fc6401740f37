package disks

import (
	"context"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/pollinterval"
)

// queryLayers queries the runtime for the size of writable layers whose directories
// were not found.
func (u *UsageMeter) queryLayers(ctx context.Context) {
	query := singleCall[map[string]Measurement]{what: "the container runtime's container statistics"}
	timer := time.NewTimer(0)
	defer timer.Stop()
	var last time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-u.layersMissing:
			if gap := queryRetry - time.Since(last); gap > 0 {
				timer.Reset(gap)
				continue
			}
		case <-timer.C:
		}
		last = time.Now()
		timer.Reset(queryRetry)
		if !u.missingLayers() {
			timer.Reset(pollinterval.AlignedWait(time.Now(), queryInterval))
			continue
		}
		layers, err := query.call(2*callTimeout, func() (map[string]Measurement, error) { return u.o.RuntimeLayers(ctx) })
		if err != nil {
			u.o.Log.Debug("could not read sizes of writable layers from the container runtime", "error", err)
			continue
		}
		u.mu.Lock()
		u.layers = layers
		u.version++
		if !u.diskLow {
			timer.Reset(queryInterval)
		}
		u.mu.Unlock()
	}
}

// missingLayers reports whether the directory of a writable layer was not found.
func (u *UsageMeter) missingLayers() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.missingLayersLocked()
}

// missingLayersLocked is missingLayers with mu locked.
func (u *UsageMeter) missingLayersLocked() bool {
	for _, h := range u.podFiles {
		for _, dir := range h.layers {
			if dir == "" {
				return true
			}
		}
	}
	return false
}

// PodUsage is the known disk usage of one pod.
type PodUsage struct {
	// Known reports that at least a part was measured, or that there is nothing to
	// measure. Incomplete is the reason why the pod may use more than that;
	// empty if all is known.
	Known      bool
	Incomplete string
	// Oldest is the time of the oldest measurement; zero without one. Methods lists the
	// methods of the measurements.
	Oldest  time.Time
	Methods []string

	Layers  map[string]Measurement // by container ID
	Logs    map[string]Measurement
	Volumes []evict.Volume
}

// Usage returns the known disk usage of a pod.
func (u *UsageMeter) Usage(s *Pod) PodUsage {
	u.mu.Lock()
	defer u.mu.Unlock()
	h := PodUsage{Layers: map[string]Measurement{}, Logs: map[string]Measurement{}}
	pod := u.podFiles[s.UID]
	if pod == nil {
		if u.lookups[s.UID].isHung() {
			return PodUsage{Incomplete: "the search for its directories hangs"}
		}
		return PodUsage{Incomplete: "not measured yet"}
	}
	for _, c := range s.Containers {
		layer := u.layers[c.ID]
		if dir := pod.layers[c.ID]; dir != "" {
			layer = h.addTarget(u.targets[dir], "the writable layer of "+c.Name)
		} else if !layer.At.IsZero() {
			h.addMeasured(&layer)
		}
		if layer.At.IsZero() {
			h.markIncomplete("the writable layer of " + c.Name + " is not known")
		}
		h.Layers[c.ID] = layer
		if l, ok := pod.logs[c.ID]; ok {
			h.Logs[c.ID] = h.addTarget(u.targets[l.key()], "the logs of "+c.Name)
		} else {
			h.markIncomplete("the logs of " + c.Name + " are not known")
		}
	}
	if pod.volumesErr != nil {
		h.markIncomplete("its volumes are not known: " + pod.volumesErr.Error())
	}
	for _, v := range pod.volumes {
		got := h.addTarget(u.targets[v.dir], "volume "+v.name)
		h.Volumes = append(h.Volumes, evict.Volume{
			Name: v.name, Type: v.kind, Medium: v.medium, Used: signed(got.Bytes), Inodes: signed(got.Inodes),
		})
	}
	h.Known = !h.Oldest.IsZero() || h.Incomplete == ""
	return h
}

// addTarget adds the usage of a directory.
func (h *PodUsage) addTarget(p *target, what string) Measurement {
	if p == nil {
		h.markIncomplete(what + ": not measured yet")
		return Measurement{}
	}
	got := p.soFar()
	switch {
	case p.job.isHung():
		h.markIncomplete(what + ": " + p.path + " hangs")
	case p.err != nil:
		h.markIncomplete(what + ": " + p.err.Error())
	case got.At.IsZero():
		h.markIncomplete(what + ": not measured yet")
	}
	if !got.At.IsZero() {
		h.addMeasured(&got)
	}
	return got
}

func (h *PodUsage) addMeasured(m *Measurement) {
	if h.Oldest.IsZero() || m.At.Before(h.Oldest) {
		h.Oldest = m.At
	}
	if !slices.Contains(h.Methods, m.Method) {
		h.Methods = append(h.Methods, m.Method)
	}
	if m.Incomplete != "" {
		h.markIncomplete(m.Incomplete)
	}
}

// markIncomplete sets the reason why the pod may use more than is known. The first
// reason stays.
func (h *PodUsage) markIncomplete(why string) {
	if h.Incomplete == "" {
		h.Incomplete = why
	}
}
