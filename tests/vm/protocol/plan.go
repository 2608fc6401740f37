package protocol

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"time"
)

// Where the guest finds its things. Short, as paths of sockets are made below them.
const (
	// PayloadDir is where the payload disk is mounted, read-only.
	PayloadDir = "/payload"
	// PlanFile is the Plan, on the payload disk.
	PlanFile = PayloadDir + "/plan.json"
	// ScratchDir is a directory on the root disk: HOME and TMPDIR of the commands.
	ScratchDir = "/t"
	// PortName is the virtio port that takes the events.
	PortName = "evictd.events"
)

// Plan is what a guest does from its boot to its end.
type Plan struct {
	// Writes are made first, in order.
	Writes []Write `json:"writes,omitempty"`
	// Hide names directories that an empty one is mounted over, so that nothing in them is found.
	Hide []string `json:"hide,omitempty"`
	// Commands are run one after the other, each whatever became of those before it.
	Commands []Command `json:"commands"`
}

// Write is one write to a file of the kernel, such as /sys/kernel/mm/lru_gen/enabled.
type Write struct {
	File string `json:"file"`
	Text string `json:"text"`
}

// Command is one program to run.
type Command struct {
	// Name is the command's in all that is said of it.
	Name string `json:"name"`
	// Argv is the program, absolute or in PATH, and its arguments.
	Argv []string `json:"argv"`
	// Env is added to a PATH, HOME and TMPDIR.
	Env []string `json:"env,omitempty"`
	// Dir is the working directory, ScratchDir if empty.
	Dir string `json:"dir,omitempty"`
	// Timeout is how long it may take. It then gets SIGQUIT, which makes a Go program tell where it was.
	Timeout time.Duration `json:"timeout"`
	// Expect lists what may befall the kernel without failing the command.
	Expect []Trouble `json:"expect,omitempty"`
	// PowersOff says that the machine goes down by itself once the command has ended well: it has to, and is waited for.
	PowersOff bool `json:"powersOff,omitempty"`
}

// Budget is the time that all commands may take together.
func (p Plan) Budget() time.Duration {
	var sum time.Duration
	for _, c := range p.Commands {
		sum += c.Timeout
	}
	return sum
}

// Encode returns the plan as text for PlanFile. The error is Validate's.
func (p Plan) Encode() ([]byte, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	return json.MarshalIndent(p, "", "\t")
}

// DecodePlan reads a plan. The error is Validate's, or tells what is not JSON.
func DecodePlan(text []byte) (Plan, error) {
	var p Plan
	if err := json.Unmarshal(text, &p); err != nil {
		return Plan{}, fmt.Errorf("parse plan: %w", err)
	}
	return p, p.Validate()
}

// Validate tells what a guest could not do.
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
			errs = append(errs, fmt.Errorf("plan: %s: there is no trouble %q", c.Name, c.Expect[i]))
		}
		seen[c.Name] = true
	}
	return errors.Join(errs...)
}
