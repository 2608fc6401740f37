package protocol

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"time"
)

// Paths in the guest. They are short, because tests create unix sockets below them.
const (
	// PayloadDir is where the payload disk is mounted, read-only.
	PayloadDir = "/payload"
	// PlanFile is the Plan, on the payload disk.
	PlanFile = PayloadDir + "/plan.json"
	// ScratchDir is a directory on the root disk: HOME and TMPDIR of the commands.
	ScratchDir = "/t"
	// PortName is the name of the virtio port for events.
	PortName = "evictd.events"
)

// Plan is what a guest executes after its boot.
type Plan struct {
	// Writes are made first, in order.
	Writes []Write `json:"writes,omitempty"`
	// Hide lists directories over which an empty tmpfs is mounted.
	Hide []string `json:"hide,omitempty"`
	// Commands are run in order, also after a failure.
	Commands []Command `json:"commands"`
}

// Write is one write to a file of the kernel, such as /sys/kernel/mm/lru_gen/enabled.
type Write struct {
	File string `json:"file"`
	Text string `json:"text"`
}

// Command is one program to run.
type Command struct {
	// Name identifies the command in events and results.
	Name string `json:"name"`
	// Argv is the program, absolute or in PATH, and its arguments.
	Argv []string `json:"argv"`
	// Env is added to a PATH, HOME and TMPDIR.
	Env []string `json:"env,omitempty"`
	// Dir is the working directory, ScratchDir if empty.
	Dir string `json:"dir,omitempty"`
	// Timeout is the maximum duration. After it, the command gets SIGQUIT, on which a Go program prints its goroutines.
	Timeout time.Duration `json:"timeout"`
	// Expect lists troubles that do not fail the command.
	Expect []Trouble `json:"expect,omitempty"`
	// PowersOff means that the machine must power itself off after the command has succeeded.
	PowersOff bool `json:"powersOff,omitempty"`
}

// Budget returns the maximum duration of all commands together.
func (p Plan) Budget() time.Duration {
	var sum time.Duration
	for _, c := range p.Commands {
		sum += c.Timeout
	}
	return sum
}

// Encode returns the content of PlanFile, or the error of Validate.
func (p Plan) Encode() ([]byte, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	return json.MarshalIndent(p, "", "\t")
}

// DecodePlan parses the content of PlanFile. It fails for invalid JSON or with the error of Validate.
func DecodePlan(text []byte) (Plan, error) {
	var p Plan
	if err := json.Unmarshal(text, &p); err != nil {
		return Plan{}, fmt.Errorf("parse plan: %w", err)
	}
	return p, p.Validate()
}

// Validate returns the errors of the plan.
func (p Plan) Validate() error {
	var errs []error
	seen := make(map[string]bool)
	for _, c := range p.Commands {
		switch {
		case c.Name == "":
			errs = append(errs, fmt.Errorf("plan: the command %q has no name", c.Argv))
		case seen[c.Name]:
			errs = append(errs, fmt.Errorf("plan: two commands are named %q", c.Name))
		case len(c.Argv) == 0 || c.Argv[0] == "":
			errs = append(errs, fmt.Errorf("plan: %s: no program", c.Name))
		case c.Timeout <= 0:
			errs = append(errs, fmt.Errorf("plan: %s: timeout %v", c.Name, c.Timeout))
		case c.Dir != "" && !path.IsAbs(c.Dir):
			errs = append(errs, fmt.Errorf("plan: %s: directory %q is not absolute", c.Name, c.Dir))
		}
		if i := slices.IndexFunc(c.Expect, func(t Trouble) bool { return !slices.Contains(troubles, t) }); i >= 0 {
			errs = append(errs, fmt.Errorf("plan: %s: unknown trouble %q", c.Name, c.Expect[i]))
		}
		seen[c.Name] = true
	}
	return errors.Join(errs...)
}
