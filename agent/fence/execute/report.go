package execute

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// MaxReport is the length limit of a report in bytes, which is the kubelet's limit of a termination message.
	MaxReport = 4096
	// maxError is that of its error.
	maxError = 1500
)

// Result is what became of an action.
type Result string

// The results.
const (
	Done       Result = "done"        // off or on: the agent is satisfied, which proves nothing
	ReadOn     Result = "on"          // status
	ReadOff    Result = "off"         // status: exit status 2 and "Status: OFF"
	Failed     Result = "failed"      // the agent ran, or was killed: an off or on may have taken effect
	NotStarted Result = "not started" // nothing was sent
)

// exitCodes are those of the container with a result. They differ from those of a program that can't be started.
var exitCodes = map[Result]int{Done: 0, ReadOn: 0, ReadOff: 2, Failed: 1, NotStarted: 3}

// Report is what an executor did.
type Report struct {
	ID     string `json:"id"`
	Action Action `json:"action"`
	Result Result `json:"result"`
	// Error says why an action failed or was not started, without secrets.
	Error string `json:"error,omitempty"`
}

// ExitCode returns the exit code of the container.
func (r Report) ExitCode() int { return exitCodes[r.Result] }

// Marshal returns the termination message of a report.
func (r Report) Marshal() []byte {
	r.Error = printable(r.Error)
	for {
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		if err := e.Encode(r); err == nil && b.Len() <= MaxReport {
			return bytes.TrimSpace(b.Bytes())
		}
		r.Error = strings.ToValidUTF8(r.Error[:len(r.Error)/2], "")
	}
}

// ParseReport parses a termination message, which anything in the pod can have written. It must be the answer to the
// request with this id and action, and agree with the exit code of the container.
func ParseReport(text, id string, action Action, exitCode int) (Report, error) {
	var r Report
	if len(text) > MaxReport {
		return Report{}, fmt.Errorf("parse report: it is longer than %d bytes", MaxReport)
	}
	if err := strictly([]byte(text), &r); err != nil {
		return Report{}, fmt.Errorf("the container ended with exit status %d and without a report: use the image of this release", exitCode)
	}
	results := []Result{Failed, NotStarted, Done}
	if action == Status {
		results = []Result{Failed, NotStarted, ReadOn, ReadOff}
	}
	switch {
	case r.ID != id || r.Action != action:
		return Report{}, errors.New("parse report: it is that of another request")
	case !slices.Contains(results, r.Result):
		return Report{}, errors.New("parse report: its result is none of this action")
	case r.ExitCode() != exitCode:
		return Report{}, fmt.Errorf("parse report: its result is %s, but the exit status is %d", r.Result, exitCode)
	}
	r.Error = printable(r.Error)
	return r, nil
}

// printable returns the end of a text, without what is not printable.
func printable(s string) string {
	s = strings.TrimSpace(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == utf8.RuneError {
			return ' '
		}
		return r
	}, s))
	return strings.ToValidUTF8(s[max(0, len(s)-maxError):], "")
}
