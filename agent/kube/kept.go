package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// format is the version of the saved facts.
const format = 1

type saved struct {
	Format int       `json:"format"`
	AsOf   time.Time `json:"asOf,omitzero"`
	Pods   []*Pod    `json:"pods"`
}

// Encode returns the facts for [Facts.Restore], and their version, which differs after each
// change of a fact.
func (f *Facts) Encode() (content []byte, version uint64, err error) {
	f.mu.Lock()
	s := saved{Format: format, AsOf: f.asOf.Round(0), Pods: make([]*Pod, 0, len(f.pods))}
	for _, known := range f.pods {
		s.Pods = append(s.Pods, known.pod) // immutable once it is in the map
	}
	version = f.version
	f.mu.Unlock()
	content, err = json.Marshal(s)
	return content, version, err
}

// Version returns the version of the facts without encoding them.
func (f *Facts) Version() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.version
}

// errFormat is returned for saved facts of another version of evictd.
var errFormat = errors.New("saved facts have another format")

// Restore loads saved facts, before the first session. Facts that are not valid are refused
// as in a session. It returns an error, and loads nothing, if the content can't be decoded.
func (f *Facts) Restore(content []byte, now time.Time) error {
	var s saved
	if err := decodeStrict(content, &s); err != nil {
		return fmt.Errorf("decode saved facts: %w", err)
	}
	if s.Format != format {
		return fmt.Errorf("%w: %d, not %d", errFormat, s.Format, format)
	}
	for _, p := range s.Pods {
		if p == nil {
			continue
		}
		line, err := encode(&Message{Pod: p})
		if err != nil {
			continue // larger than what a session could have sent
		}
		f.put(p, len(line), now)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, known := range f.pods {
		known.usedAt = now // the runtime is listed soon
	}
	if !s.AsOf.After(now) { // else the wall clock was set back, and the age is unknown
		f.asOf = s.AsOf
	}
	return nil
}
