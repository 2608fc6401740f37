// Package clusterlabs switches and reads power with the fence agents of ClusterLabs: programs named fence_*, such as
// fence_apc. They are child processes, and are given their parameters by stdin only: no argument and no variable of the
// environment has a password.
//
// An agent says with its exit status what it has done: 0 after off and on, 0 for on and 2 for off after status. That
// off succeeded is no proof. Status 2 counts as off only if the agent has also printed "Status: OFF", as all agents of
// ClusterLabs do: a Python interpreter that can't open its program exits with 2, too. Everything else is unknown.
//
// An agent and all processes of its process group are killed when the context of a call ends, and when the agent has
// ended. Killing the agent alone would leave its ipmitool running. A process that left the group is not found.
//
// What an agent prints to stderr is part of errors: its last lines, without the values of secrets.
package clusterlabs

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/fence/device"
	"github.com/evictd/evictd/agent/fence/plan"
)

var _ device.Device = (*Device)(nil)

// Options say which agent is run, and how.
type Options struct {
	// Directory has the agents, for example /usr/sbin.
	Directory string
	// Agent is the name of the agent, for example fence_apc.
	Agent string
	// Parameters are those of the agent, without action.
	Parameters map[string]string
	// Secrets are the names of the parameters whose values are in no error.
	Secrets []string
}

// Device is a plug that an agent switches. It can be used concurrently.
type Device struct {
	agent, path string
	input       string // without the action
	secrets     []string
}

// String returns the name of the agent. It keeps the password out of logs.
func (d *Device) String() string { return d.agent }

// GoString is String.
func (d *Device) GoString() string { return d.agent }

var key = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,63}$`)

// New returns a device. It runs nothing. The error is device.ErrRefused: nothing can be sent to the device.
func New(o Options) (*Device, error) {
	path, err := Find(o.Directory, o.Agent)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", device.ErrRefused, err)
	}
	d := &Device{agent: o.Agent, path: path}
	var lines []string
	for name, value := range o.Parameters {
		if strings.EqualFold(name, "action") || !key.MatchString(name) {
			return nil, fmt.Errorf("%w: %s has no parameter %q", device.ErrRefused, o.Agent, name)
		}
		if err := plan.CheckInput(value); err != nil {
			return nil, fmt.Errorf("%w: parameter %s of %s %w", device.ErrRefused, name, o.Agent, err)
		}
		lines = append(lines, name+"="+value+"\n")
		if slices.Contains(o.Secrets, name) {
			d.secrets = append(d.secrets, value)
		}
	}
	slices.Sort(lines)
	d.input = strings.Join(lines, "")
	return d, nil
}

// run runs an action.
func (d *Device) run(ctx context.Context, action string) (*result, error) {
	// The last value wins: an action that were among the parameters would have no effect.
	input := d.input + "action=" + action + "\n"
	r, err := run(ctx, d.path, []byte(input), &tail{limit: maxOutput}, d.secrets...)
	if start := (*startError)(nil); errors.As(err, &start) {
		err = fmt.Errorf("%w: %w", device.ErrRefused, err)
	}
	return r, err
}

// Status returns the state of the power.
func (d *Device) Status(ctx context.Context) (fence.Power, error) {
	r, err := d.run(ctx, "status")
	if err == nil {
		switch {
		case r.code == 0:
			return fence.PowerOn, nil
		case r.code == 2 && says(r.stdout.(*tail).text, "Status: OFF"):
			return fence.PowerOff, nil
		case r.code == 2:
			err = fmt.Errorf("exit status 2 without \"Status: OFF\", which proves nothing%s", r.stderr(d.secrets))
		default:
			err = d.failure(r)
		}
	}
	return fence.PowerUnknown, fmt.Errorf("action status of %s: %w", d, err)
}

// Off switches the power off.
func (d *Device) Off(ctx context.Context) error { return d.control(ctx, "off") }

// On switches the power on.
func (d *Device) On(ctx context.Context) error { return d.control(ctx, "on") }

// control runs an action. The error is device.ErrRefused only if the agent was not started: one that failed may have
// sent the command.
func (d *Device) control(ctx context.Context, action string) error {
	r, err := d.run(ctx, action)
	if err == nil && r.code != 0 {
		err = fmt.Errorf("it may have taken effect: %w", d.failure(r))
	}
	if err != nil {
		return fmt.Errorf("action %s of %s: %w", action, d, err)
	}
	return nil
}

// failure returns the error of an agent that has ended.
func (d *Device) failure(r *result) error {
	if r.code < 0 {
		return fmt.Errorf("ended by a signal%s", r.stderr(d.secrets))
	}
	return fmt.Errorf("exit status %d%s", r.code, r.stderr(d.secrets))
}

// UUID returns no UUID: agents do not report that of the machine.
func (d *Device) UUID(context.Context) (string, error) { return "", nil }
