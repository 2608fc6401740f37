package execute

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/evictd/evictd/agent/fence/plan"
)

// Action is what an agent does.
type Action string

// The actions.
const (
	Status Action = "status"
	Off    Action = "off"
	On     Action = "on"
)

// MaxRequest is the length limit of a request in bytes.
const MaxRequest = 256 << 10

// clockTolerance is how far the clock of a node may be behind that of the controller.
const clockTolerance = 30 * time.Second

// Request is what an executor does. It has the passwords of the device.
type Request struct {
	// ID is that of the intent or of the reading. The report has it too.
	ID string `json:"id"`
	// Target is the node that is fenced.
	Target string `json:"target"`
	// Agent is the name of the fence agent.
	Agent  string `json:"agent"`
	Action Action `json:"action"`
	// NotAfter is when the agent is killed. It is not started then.
	NotAfter metav1.MicroTime `json:"notAfter"`
	// Timeout is how long the agent runs at most: NotAfter is that time after the request was made.
	Timeout metav1.Duration `json:"timeout"`
	// Parameters are those of the agent, without action.
	Parameters map[string]string `json:"parameters"`
	// Secrets are the names of the parameters whose values are in no report.
	Secrets []string `json:"secrets,omitempty"`
}

// String keeps the passwords out of logs.
func (r Request) String() string { return fmt.Sprintf("%s of %s (%s)", r.Action, r.Agent, r.ID) }

// GoString is String.
func (r Request) GoString() string { return r.String() }

// Marshal returns the file of a request.
func (r Request) Marshal() ([]byte, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	text, err := json.Marshal(r)
	if err != nil {
		return nil, errors.New("write the request: its parameters are not text") // the error could have a value
	}
	if len(text) > MaxRequest {
		return nil, fmt.Errorf("write the request: it has %d bytes; the limit is %d", len(text), MaxRequest)
	}
	return text, nil
}

// ParseRequest parses the file of a request. Its errors have none of the values.
func ParseRequest(text []byte) (Request, error) {
	var r Request
	if len(text) > MaxRequest {
		return Request{}, fmt.Errorf("parse request: it is longer than %d bytes", MaxRequest)
	}
	if err := strictly(text, &r); err != nil {
		return Request{}, errors.New("parse request: it is not what evictd-controller writes: use one version for both")
	}
	if err := r.check(); err != nil {
		return Request{}, err
	}
	return r, nil
}

// check returns what is wrong with a request.
func (r Request) check() error {
	switch {
	case r.ID == "" || len(r.ID) > 100 || r.Target == "":
		return errors.New("request without id or target, or with an id of more than 100 bytes")
	case !plan.FenceAgent(r.Agent):
		return errors.New("request whose agent is not fence_NAME")
	case !slices.Contains([]Action{Status, Off, On}, r.Action):
		return errors.New("request whose action is not status, off or on")
	case r.NotAfter.IsZero() || r.Timeout.Duration <= 0 || r.Timeout.Duration > time.Hour:
		return errors.New("request without notAfter, or with a timeout that is not above 0 and at most 1h")
	}
	return nil
}

// left returns how much time a request has left, and an error if it has none, or if the clock of the node does not show
// it. A pod may start late, and the kubelet of its node may not know then that its Job was deleted. Neither now nor
// mounted, when the file of the request was written, can be before the request was made: else the clock is behind, and
// NotAfter may have passed. How long ago the file was written does not depend on whether the clock is right.
func (r *Request) left(now, mounted time.Time) (time.Duration, error) {
	made, waited := r.NotAfter.Add(-r.Timeout.Duration), now.Sub(mounted)
	switch behind := made.Sub(now); {
	case !now.Before(r.NotAfter.Time):
		return 0, fmt.Errorf("it is %s, and the request ended at %s: the pod started late, or the clocks differ",
			now.UTC().Format(time.RFC3339), r.NotAfter.UTC().Format(time.RFC3339))
	case behind > clockTolerance || made.Sub(mounted) > clockTolerance:
		return 0, fmt.Errorf("its clock is %s behind that of evictd-controller, so that a pod that starts late is not noticed: correct it",
			max(behind, made.Sub(mounted)).Round(time.Second))
	case waited < -clockTolerance:
		return 0, fmt.Errorf("its clock was set back by %s since the pod was created: it is not known whether it started late", -waited.Round(time.Second))
	case waited >= r.Timeout.Duration:
		return 0, fmt.Errorf("the pod started late, %s after its request was mounted, which ended after %s", waited.Round(time.Second), r.Timeout.Duration)
	}
	return min(r.NotAfter.Sub(now), r.Timeout.Duration-max(waited, 0)), nil
}

// strictly decodes one JSON value without unknown fields.
func strictly(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("text after the value")
	}
	return nil
}
