package signal

// Mark identifies a threshold by its signal and its kind, hard or soft: a
// configuration has at most one of each. The zero Mark identifies none.
type Mark uint8

// Marks is the number of marks, for arrays indexed by Mark.
const Marks = 1 + 2*int(Count)

// MarkOf returns the mark of a threshold.
func MarkOf(t *Threshold) Mark {
	m := 1 + 2*Mark(t.Signal)
	if !t.Hard() {
		m++
	}
	return m
}

// Signal returns the signal of a mark that is not zero.
func (m Mark) Signal() Signal { return Signal((m - 1) / 2) }

// Hard reports whether the threshold of a mark that is not zero is a hard one.
func (m Mark) Hard() bool { return m%2 == 1 }

// String names the threshold for logs and errors.
func (m Mark) String() string {
	switch {
	case m == 0 || int(m) >= Marks:
		return "no mark"
	case m.Hard():
		return "hard threshold on " + m.Signal().String()
	}
	return "soft threshold on " + m.Signal().String()
}
