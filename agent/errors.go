package agent

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/evictd/evictd/agent/systemd"
)

// ErrConfig is the error of Run if a configuration file is wrong or missing.
var ErrConfig = errors.New("wrong configuration")

// configError makes an error match ErrConfig without changing its text.
type configError struct{ error }

// Unwrap returns the cause.
func (e *configError) Unwrap() error { return e.error }

// Is reports whether target is ErrConfig.
func (e *configError) Is(target error) bool { return target == ErrConfig }

// WriteError writes the error with which Run ended.
func WriteError(w io.Writer, err error) { writeError(w, err, systemd.ToJournal()) }

// writeError prefixes each line with the priority of an error if the journal reads it: to
// the journal, each line is a message.
func writeError(w io.Writer, err error, journal bool) {
	prefix := ""
	if journal {
		prefix = systemd.ErrorPrefix
	}
	for line := range strings.Lines(fmt.Sprintln("evictd:", err)) {
		fmt.Fprint(w, prefix, line)
	}
}
