package agent

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/evictd/evictd/agent/systemd"
)

// ErrConfig is what Run fails with where a file of the configuration is wrong or
// missing.
var ErrConfig = errors.New("wrong configuration")

// configError is an error that is ErrConfig, and reads as it did without that.
type configError struct{ error }

// Unwrap returns the cause.
func (e *configError) Unwrap() error { return e.error }

// Is reports whether target is ErrConfig.
func (e *configError) Is(target error) bool { return target == ErrConfig }

// WriteError writes the error with which Run ended.
func WriteError(w io.Writer, err error) { writeError(w, err, systemd.ToJournal()) }

// writeError gives each line the priority of an error where the journal reads
// it, which takes each line for a message of its own.
func writeError(w io.Writer, err error, journal bool) {
	prefix := ""
	if journal {
		prefix = systemd.PrefixError
	}
	for line := range strings.Lines(fmt.Sprintln("evictd:", err)) {
		fmt.Fprint(w, prefix, line)
	}
}
