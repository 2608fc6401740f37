package protocol

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Kind is the kind of an Event.
type Kind string

// The kinds of events, with the fields that they use.
const (
	Hello  Kind = "hello"  // the runner has started: Text is the kernel's release, Uptime its uptime
	Begin  Kind = "begin"  // Command starts
	Line   Kind = "line"   // Command printed Text
	Kernel Kind = "kernel" // the kernel printed Text, classified as Trouble
	Beat   Kind = "beat"   // each second: Uptime, DiskFree, LoadAverage
	End    Kind = "end"    // Command has ended: ExitCode, Duration, and TimedOut, Trouble and Text of a failure
	Leave  Kind = "leave"  // Command has succeeded after Duration, and powers the machine off
	Done   Kind = "done"   // all commands have ended, and the runner powers the machine off
)

var kinds = []Kind{Hello, Begin, Line, Kernel, Beat, End, Leave, Done}

// ofCommand are the kinds that need a Command.
var ofCommand = []Kind{Begin, Line, End, Leave}

// PressPowerKey is a Line on which the host presses the machine's power key.
const PressPowerKey = "(the power key is pressed)"

// Event is one line from the guest.
type Event struct {
	Kind     Kind          `json:"kind"`
	Command  string        `json:"command,omitempty"`
	Text     string        `json:"text,omitempty"`
	Trouble  Trouble       `json:"trouble,omitempty"`
	ExitCode int           `json:"exitCode,omitempty"` // −1 if it did not exit
	TimedOut bool          `json:"timedOut,omitempty"`
	Duration time.Duration `json:"duration,omitempty"`
	Uptime   time.Duration `json:"uptime,omitempty"`
	// DiskFree is the free space of the guest's root disk in bytes.
	DiskFree uint64 `json:"diskFree,omitempty"`
	// LoadAverage is the kernel's load average of one minute.
	LoadAverage float64 `json:"loadAverage,omitempty"`
}

// Encode returns the event as a line with its newline.
func (e Event) Encode() []byte {
	b, err := json.Marshal(e)
	if err != nil {
		panic(err) // an Event has only fields that JSON can encode
	}
	return append(b, '\n')
}

// MaxLine is the maximum size of an encoded event in bytes. The guest splits longer lines of output.
const MaxLine = 1 << 20

var errShape = errors.New("not an event")

// Decode parses one line without its newline. It fails for an unknown field, and for a missing field that the kind needs.
func Decode(line []byte) (Event, error) {
	var e Event
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&e); err != nil {
		return Event{}, fmt.Errorf("parse event %.80q: %w", line, err)
	}
	if dec.More() {
		return Event{}, fmt.Errorf("parse event %.80q: %w: text follows it", line, errShape)
	}
	switch {
	case !slices.Contains(kinds, e.Kind):
		return Event{}, fmt.Errorf("parse event %.80q: %w: kind %q", line, errShape, e.Kind)
	case slices.Contains(ofCommand, e.Kind) && e.Command == "":
		return Event{}, fmt.Errorf("parse event %.80q: %w: no command", line, errShape)
	case e.Trouble != "" && !slices.Contains(troubles, e.Trouble):
		return Event{}, fmt.Errorf("parse event %.80q: %w: trouble %q", line, errShape, e.Trouble)
	case e.Kind == Kernel && e.Trouble == "":
		return Event{}, fmt.Errorf("parse event %.80q: %w: no trouble", line, errShape)
	}
	return e, nil
}
