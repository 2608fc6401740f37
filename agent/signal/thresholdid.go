package signal

// Mark identifies a threshold by its signal and its kind, hard or soft. A configuration
// has at most one of each. The zero Mark identifies no threshold.
type Mark uint8

// Marks is the number of identities, the zero one included, for arrays indexed by them.
const Marks = 1 + 2*int(Count)

// MarkOf returns the identity of a threshold.
func MarkOf(t *Threshold) Mark {
	m := 1 + 2*Mark(t.Signal)
	if !t.Hard() {
		m++
	}
	return m
}

// Signal returns the threshold's signal. m must not be zero.
func (m Mark) Signal() Signal { return Signal((m - 1) / 2) }

// Hard reports whether the threshold is a hard one. m must not be zero.
func (m Mark) Hard() bool { return m%2 == 1 }

// String describes the threshold for logs and errors.
func (m Mark) String() string {
	switch {
	case m == 0 || int(m) >= Marks:
		return "no threshold"
	case m.Hard():
		return "hard threshold on " + m.Signal().String()
	}
	return "soft threshold on " + m.Signal().String()
}
