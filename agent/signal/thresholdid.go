package signal

// ThresholdID identifies a threshold by its signal and its kind, hard or soft. A configuration
// has at most one of each. The zero Mark identifies no threshold.
type ThresholdID uint8

// ThresholdIDCount is the number of identities, the zero one included, for arrays indexed by them.
const ThresholdIDCount = 1 + 2*int(Count)

// IDOf returns the identity of a threshold.
func IDOf(t *Threshold) ThresholdID {
	m := 1 + 2*ThresholdID(t.Signal)
	if !t.Hard() {
		m++
	}
	return m
}

// Signal returns the threshold's signal. m must not be zero.
func (m ThresholdID) Signal() Signal { return Signal((m - 1) / 2) }

// Hard reports whether the threshold is a hard one. m must not be zero.
func (m ThresholdID) Hard() bool { return m%2 == 1 }

// String describes the threshold for logs and errors.
func (m ThresholdID) String() string {
	switch {
	case m == 0 || int(m) >= ThresholdIDCount:
		return "no threshold"
	case m.Hard():
		return "hard threshold on " + m.Signal().String()
	}
	return "soft threshold on " + m.Signal().String()
}
