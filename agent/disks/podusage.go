package disks

import (
	"context"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/pollinterval"
	"github.com/evictd/evictd/agent/signal"
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
			timer.Reset(pollinterval.AlignedWait(time.Now(), signal.KubeletInterval))
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
			timer.Reset(signal.KubeletInterval)
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
	for _, f := range u.podFiles {
		for _, dir := range f.layers {
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
func (u *UsageMeter) Usage(p *Pod) PodUsage {
	u.mu.Lock()
	defer u.mu.Unlock()
	usage := PodUsage{Layers: map[string]Measurement{}, Logs: map[string]Measurement{}}
	files := u.podFiles[p.UID]
	if files == nil {
		if u.lookups[p.UID].isHung() {
			return PodUsage{Incomplete: "the search for its directories hangs"}
		}
		return PodUsage{Incomplete: "not measured yet"}
	}
	for _, c := range p.Containers {
		layer := u.layers[c.ID]
		if dir := files.layers[c.ID]; dir != "" {
			layer = usage.addTarget(u.targets[dir], "the writable layer of "+c.Name)
		} else if !layer.At.IsZero() {
			usage.addMeasured(&layer)
		}
		if layer.At.IsZero() {
			usage.markIncomplete("the writable layer of " + c.Name + " is not known")
		}
		usage.Layers[c.ID] = layer
		if l, ok := files.logs[c.ID]; ok {
			usage.Logs[c.ID] = usage.addTarget(u.targets[l.key()], "the logs of "+c.Name)
		} else {
			usage.markIncomplete("the logs of " + c.Name + " are not known")
		}
	}
	if files.volumesErr != nil {
		usage.markIncomplete("its volumes are not known: " + files.volumesErr.Error())
	}
	for _, v := range files.volumes {
		got := usage.addTarget(u.targets[v.dir], "volume "+v.name)
		usage.Volumes = append(usage.Volumes, evict.Volume{
			Name: v.name, Type: v.kind, Medium: v.medium, Used: signed(got.Bytes), Inodes: signed(got.Inodes),
		})
	}
	usage.Known = !usage.Oldest.IsZero() || usage.Incomplete == ""
	return usage
}

// addTarget adds the usage of a directory.
func (p *PodUsage) addTarget(t *target, what string) Measurement {
	if t == nil {
		p.markIncomplete(what + ": not measured yet")
		return Measurement{}
	}
	got := t.soFar()
	switch {
	case t.job.isHung():
		p.markIncomplete(what + ": " + t.path + " hangs")
	case t.err != nil:
		p.markIncomplete(what + ": " + t.err.Error())
	case got.At.IsZero():
		p.markIncomplete(what + ": not measured yet")
	}
	if !got.At.IsZero() {
		p.addMeasured(&got)
	}
	return got
}

func (p *PodUsage) addMeasured(m *Measurement) {
	if p.Oldest.IsZero() || m.At.Before(p.Oldest) {
		p.Oldest = m.At
	}
	if !slices.Contains(p.Methods, m.Method) {
		p.Methods = append(p.Methods, m.Method)
	}
	if m.Incomplete != "" {
		p.markIncomplete(m.Incomplete)
	}
}

// markIncomplete sets the reason why the pod may use more than is known, unless one is
// set already.
func (p *PodUsage) markIncomplete(why string) {
	if p.Incomplete == "" {
		p.Incomplete = why
	}
}
