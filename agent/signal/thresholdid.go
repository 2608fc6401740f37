package signal

// ThresholdID identifies a threshold by its signal and its kind, hard or soft. A
// configuration has at most one of each. The zero ThresholdID identifies no threshold.
type ThresholdID uint8

// ThresholdIDCount is the number of identities, the zero one included, for arrays indexed
// by them.
const ThresholdIDCount = 1 + 2*int(Count)

// IDOf returns the identity of a threshold.
func IDOf(t *Threshold) ThresholdID {
	id := 1 + 2*ThresholdID(t.Signal)
	if !t.Hard() {
		id++
	}
	return id
}

// Signal returns the threshold's signal. id must not be zero.
func (id ThresholdID) Signal() Signal { return Signal((id - 1) / 2) }

// Hard reports whether the threshold is a hard one. id must not be zero.
func (id ThresholdID) Hard() bool { return id%2 == 1 }

// String describes the threshold for logs and errors.
func (id ThresholdID) String() string {
	switch {
	case id == 0 || int(id) >= ThresholdIDCount:
		return "no threshold"
	case id.Hard():
		return "hard threshold on " + id.Signal().String()
	}
	return "soft threshold on " + id.Signal().String()
}
