package protocol

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Kind says what an Event tells.
type Kind string

// The kinds of events, with the fields that they use.
const (
	Hello  Kind = "hello"  // the runner is there: Text is the kernel's release, Uptime its age
	Begin  Kind = "begin"  // Command starts
	Line   Kind = "line"   // Command printed Text
	Kernel Kind = "kernel" // the kernel printed Text, which is Trouble
	Beat   Kind = "beat"   // each second: Uptime, DiskFree, LoadAverage
	End    Kind = "end"    // Command has ended: ExitCode, Duration, and what else was wrong in TimedOut, Trouble and Text
	Leave  Kind = "leave"  // Command has ended well after Duration, and the machine goes down for it
	Done   Kind = "done"   // every command has ended, and the machine is switched off
)

var kinds = []Kind{Hello, Begin, Line, Kernel, Beat, End, Leave, Done}

// ofCommand are the kinds that are nothing without a command.
var ofCommand = []Kind{Begin, Line, End, Leave}

// PressPowerKey is a Line that has the host press the machine's power key.
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
	// DiskFree are the bytes that are left on the guest's root disk.
	DiskFree uint64 `json:"diskFree,omitempty"`
	// LoadAverage is the kernel's, of one minute.
	LoadAverage float64 `json:"loadAverage,omitempty"`
}

// Encode returns the event as a line, with its end.
func (e Event) Encode() []byte {
	b, err := json.Marshal(e)
	if err != nil {
		panic(err) // there is nothing in an Event that JSON can't say
	}
	return append(b, '\n')
}

// MaxLine bounds one encoded event, in bytes. The guest cuts what a command prints accordingly.
const MaxLine = 1 << 20

var errShape = errors.New("not an event")

// Decode reads one line without its end. It is an error that a field is unknown, or missing in an event of its kind.
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
		return Event{}, fmt.Errorf("parse event %.80q: %w: of no command", line, errShape)
	case e.Trouble != "" && !slices.Contains(troubles, e.Trouble):
		return Event{}, fmt.Errorf("parse event %.80q: %w: trouble %q", line, errShape, e.Trouble)
	case e.Kind == Kernel && e.Trouble == "":
		return Event{}, fmt.Errorf("parse event %.80q: %w: of no trouble", line, errShape)
	}
	return e, nil
}
