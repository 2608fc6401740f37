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
}

// Encode writes the facts for [Facts.Restore], one pod at a time, and returns their version,
// which differs after each change of a fact. It writes at most maxFactsSize bytes and the
// head: what the facts may contain needs no escapes in JSON.
func (f *Facts) Encode(w io.Writer) (version uint64, err error) {
	f.mu.Lock()
	head, version := savedHead{savedFormat, f.asOf.Round(0), f.cannotReport}, f.version
	pods := make([]*Pod, 0, len(f.pods))
	for _, known := range f.pods {
		pods = append(pods, known.pod) // immutable once it is in the map
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
		Pods []*Pod `json:"pods"`
	}
	if err := json.Unmarshal(content, &s); err != nil {
		return fmt.Errorf("decode saved facts: %w", err)
	}
	if s.Format != savedFormat {
		return fmt.Errorf("saved facts have format %d, not %d", s.Format, savedFormat)
	}
	for _, p := range s.Pods {
		if p == nil {
			continue
		}
		// Facts that were stored in full fit again: their order must not reduce them.
		spec, err := p.parse()
		f.store(p, spec, err, now)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
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
