package kube

import (
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// savedFormat is the version of the saved facts. It changes if an older or newer evictd would
// misread them. A new key does not change it, because unknown keys are ignored.
const savedFormat = 1

type savedHead struct {
	Format int       `json:"format"`
	AsOf   time.Time `json:"asOf,omitzero"`
	// CannotReport is why evictd-kube may not report evictions; nil if it has never said.
	CannotReport *string `json:"cannotReport,omitempty"`
	// Kubelet is the kubelet's configuration; nil if it is not known.
	Kubelet *savedKubelet `json:"kubelet,omitempty"`
}

// savedKubelet is the kubelet's configuration, and when and of which kubelet it was read.
type savedKubelet struct {
	At            time.Time            `json:"at"`
	Of            string               `json:"of,omitempty"`
	Configuration KubeletConfiguration `json:"configuration"`
}

// savedPod has the facts about a pod, and when it came to the node; zero if unknown.
type savedPod struct {
	*Pod
	Arrived time.Time `json:"arrived,omitzero"`
}

// Encode writes the facts for [Facts.Restore], one pod at a time, and returns their version,
// which differs after each change of a fact. It writes at most maxFactsSize bytes and the
// head: what the facts may contain needs no escapes in JSON.
func (f *Facts) Encode(w io.Writer) (version uint64, err error) {
	f.mu.Lock()
	head, version := savedHead{Format: savedFormat, AsOf: f.asOf.Round(0), CannotReport: f.cannotReport}, f.version
	if !f.kubelet.at.IsZero() {
		head.Kubelet = &savedKubelet{f.kubelet.at.Round(0), f.kubelet.of, f.kubelet.configuration}
	}
	pods := make([]savedPod, 0, len(f.pods))
	for _, known := range f.pods {
		pods = append(pods, savedPod{known.pod, known.arrived.Round(0)}) // pod is immutable once it is in the map
	}
	f.mu.Unlock()
	line, err := json.Marshal(head)
	if err != nil {
		return 0, err
	}
	if _, err := fmt.Fprintf(w, "%s,\"pods\":[\n", line[:len(line)-1]); err != nil {
		return 0, err
	}
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	for i, p := range pods {
		if i > 0 {
			if _, err := io.WriteString(w, ","); err != nil {
				return 0, err
			}
		}
		if err := encoder.Encode(p); err != nil {
			return 0, err
		}
	}
	_, err = io.WriteString(w, "]}\n")
	return version, err
}

// Version returns the version of the facts without encoding them.
func (f *Facts) Version() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.version
}

// Restore loads saved facts, before the first session. Facts that are not valid are refused
// as in a session. Unknown keys are ignored: a newer evictd may have saved them. It returns an
// error, and loads nothing, if the content can't be decoded.
func (f *Facts) Restore(content []byte, now time.Time) error {
	var s struct {
		savedHead
		Pods []savedPod `json:"pods"`
	}
	if err := json.Unmarshal(content, &s); err != nil {
		return fmt.Errorf("decode saved facts: %w", err)
	}
	if s.Format != savedFormat {
		return fmt.Errorf("saved facts have format %d, not %d", s.Format, savedFormat)
	}
	for _, p := range s.Pods {
		if p.Pod == nil {
			continue
		}
		// Facts that were stored in full fit again: their order must not reduce them.
		spec, err := p.parse()
		f.store(p.Pod, spec, err, now)
		f.mu.Lock()
		if known := f.pods[p.UID]; known != nil {
			known.setArrived(p.Arrived)
		}
		f.mu.Unlock()
	}
	if k := s.Kubelet; k != nil && !k.At.IsZero() && !k.At.After(now) && k.Configuration.Error == "" && k.Configuration.check() == nil {
		f.setKubelet(&k.Configuration, k.At)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if s.Kubelet != nil {
		f.kubelet.of = s.Kubelet.Of
	}
	if s.CannotReport != nil {
		f.cannotReport = new(printable(*s.CannotReport))
	}
	for _, known := range f.pods {
		known.restoredAt = now
	}
	if !s.AsOf.After(now) { // else the wall clock was set back, and the age is unknown
		f.asOf = s.AsOf
	}
	return nil
}
