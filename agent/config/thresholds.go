package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/evictd/evictd/agent/config/strict"
	"github.com/evictd/evictd/agent/signal"
)

// The names of the fields about thresholds.
const (
	fieldHard      = "evictionHard"
	fieldSoft      = "evictionSoft"
	fieldSoftGrace = "evictionSoftGracePeriod"
	fieldReclaim   = "evictionMinimumReclaim"
)

// maxAmount is the longest text of a quantity or percentage, in bytes.
const maxAmount = 64

// checkThresholds checks the four maps about thresholds, each separately and
// against each other, and builds the list of thresholds.
func (c *Config) checkThresholds() {
	hard := c.parseThresholds(fieldHard, c.EvictionHard)
	soft := c.parseThresholds(fieldSoft, c.EvictionSoft)
	reclaim := c.parseMinReclaims()
	c.checkGraces()
	c.moveZeroGraceToHard(hard, soft)

	c.thresholds = nil
	for _, s := range signal.All() {
		if v, ok := hard[s]; ok {
			c.thresholds = append(c.thresholds, signal.Threshold{Signal: s, Value: v, MinReclaim: reclaim[s]})
		}
	}
	for _, s := range signal.All() {
		v, ok := soft[s]
		if !ok {
			continue
		}
		grace := c.EvictionSoftGracePeriod[s.String()]
		c.checkGrace(s.String(), grace)
		c.thresholds = append(c.thresholds, signal.Threshold{Signal: s, Value: v, Grace: grace, MinReclaim: reclaim[s]})
	}
}

// parseThresholds parses the thresholds of one map. The result omits those that
// are switched off.
func (c *Config) parseThresholds(field string, texts Amounts) map[signal.Signal]signal.Value {
	const want = "a quantity above 0 such as 100Mi, or a percentage up to 100% such as 10%"
	values := map[signal.Signal]signal.Value{}
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		path := strict.Key(field, name)
		s, ok := c.signal(path, name)
		if !ok {
			continue
		}
		v, err := c.amount(path, texts, name, signal.ParseThreshold)
		switch {
		case errors.Is(err, signal.ErrOff):
		case err != nil:
			c.errorf(path, "%v; want %s", err, want)
		default:
			values[s] = v
		}
		if isContainerFs(s) {
			c.noticef(path, "is ignored, as by the kubelet: %s uses the thresholds of the filesystem with the writable layers", name)
		}
	}
	return values
}

// parseMinReclaims parses evictionMinimumReclaim.
func (c *Config) parseMinReclaims() map[signal.Signal]signal.Value {
	const want = "a quantity such as 500Mi, or a percentage above 0% such as 5%"
	reclaims := map[signal.Signal]signal.Value{}
	for _, name := range slices.Sorted(maps.Keys(c.EvictionMinimumReclaim)) {
		path := strict.Key(fieldReclaim, name)
		s, ok := c.signal(path, name)
		if !ok {
			continue
		}
		_, onHard := c.EvictionHard[name]
		_, onSoft := c.EvictionSoft[name]
		v, err := c.amount(path, c.EvictionMinimumReclaim, name, signal.ParseMinReclaim)
		switch {
		case errors.Is(err, signal.ErrOff):
		case err != nil:
			c.errorf(path, "%v; want %s", err, want)
		default:
			reclaims[s] = v
		}
		switch {
		case isContainerFs(s):
			c.noticef(path, "is ignored, as by the kubelet: %s uses that of the filesystem with the writable layers", name)
		case !onHard && !onSoft:
			c.noticef(path, "has no effect: there is no threshold on %s", name)
		}
	}
	return reclaims
}

// amount parses one value of a map. In a kubelet's map it replaces a value that
// the kubelet reads differently with what the kubelet makes of it, and reports a
// notice. If the kubelet ignores the value, amount deletes it from the map and
// returns signal.ErrOff.
func (c *Config) amount(path string, texts Amounts, name string, parse func(string) (signal.Value, error)) (signal.Value, error) {
	text := texts[name]
	if len(text) > maxAmount {
		return signal.Value{}, fmt.Errorf("%s is too long", strict.Quote(text))
	}
	if signal.HasBoth(text) && c.sources.fromKubelet(path) {
		return signal.Value{}, fmt.Errorf("%s is not a quantity", strict.Quote(text)) // for the kubelet
	}
	v, err := parse(text)
	if err == nil || errors.Is(err, signal.ErrOff) || !c.sources.fromKubelet(path) {
		return v, err
	}
	converted, notice, ok := kubeletAmount(text, topField(path) == fieldReclaim)
	if !ok {
		return v, err
	}
	if converted == "" {
		c.noticef(path, "%s: %s", strict.Quote(text), notice)
		delete(texts, name)
		return v, signal.ErrOff
	}
	v, err = parse(converted)
	if err == nil || errors.Is(err, signal.ErrOff) {
		c.noticef(path, "%s %s", strict.Quote(text), notice)
		texts[name] = converted
	}
	return v, err
}

// checkGraces checks each entry of evictionSoftGracePeriod.
func (c *Config) checkGraces() {
	for _, name := range slices.Sorted(maps.Keys(c.EvictionSoftGracePeriod)) {
		path := strict.Key(fieldSoftGrace, name)
		if _, ok := c.signal(path, name); !ok {
			continue
		}
		grace := c.EvictionSoftGracePeriod[name]
		if grace < 0 {
			c.errorf(path, "%v is negative; want a duration above 0 such as 1m30s", grace)
		}
		if _, ok := c.EvictionSoft[name]; !ok && !c.failed(strict.Key(fieldSoft, name)) && !c.broken(fieldSoft) {
			c.noticef(path, "has no effect: evictionSoft has no threshold on %s", name)
		}
	}
}

// checkGrace checks that a soft threshold has a grace period.
func (c *Config) checkGrace(name string, grace time.Duration) {
	path := strict.Key(fieldSoftGrace, name)
	_, given := c.EvictionSoftGracePeriod[name]
	switch {
	case !given && (c.failed(path) || c.broken(fieldSoftGrace)):
	case !given:
		c.errorf(strict.Key(fieldSoft, name), "has no grace period; give it one above 0 in %s, or make it a threshold of evictionHard", path)
	case grace == 0:
		c.errorf(path, "is 0, which would make the threshold a hard one; want a duration above 0 such as 1m30s, or use evictionHard")
	}
}

// broken reports whether a field as a whole could not be read.
func (c *Config) broken(field string) bool {
	d := c.sources.of(field)
	return d != nil && d.Broken(field)
}

// signal parses the name of a signal, and reports an unknown name.
func (c *Config) signal(path, name string) (signal.Signal, bool) {
	s, ok := signal.Parse(name)
	if ok {
		return s, true
	}
	names := make([]string, 0, signal.Count)
	for _, s := range signal.All() {
		names = append(names, s.String())
	}
	if near := strict.Nearest(name, names); near != "" {
		c.errorf(path, "is not an eviction signal; did you mean %s?", near)
	} else {
		c.errorf(path, "is not an eviction signal; want one of %s", strings.Join(names, ", "))
	}
	return 0, false
}

func isContainerFs(s signal.Signal) bool {
	return s == signal.ContainerFsAvailable || s == signal.ContainerFsInodesFree
}
