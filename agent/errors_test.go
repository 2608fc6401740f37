package agent

import (
	"bytes"
	"errors"
	"testing"
)

// Each line of a fatal error has the priority of an error in the journal, and none on a
// terminal.
func TestWriteError(t *testing.T) {
	err := errors.New("a.yaml:3: x: wrong\na.yaml:4: y: wrong")
	for _, tt := range []struct {
		journal bool
		want    string
	}{
		{true, "<3>evictd: a.yaml:3: x: wrong\n<3>a.yaml:4: y: wrong\n"},
		{false, "evictd: a.yaml:3: x: wrong\na.yaml:4: y: wrong\n"},
	} {
		var b bytes.Buffer
		writeError(&b, err, tt.journal)
		if b.String() != tt.want {
			t.Errorf("writeError() to the journal: %t writes %q; want %q", tt.journal, b.String(), tt.want)
		}
	}
}
