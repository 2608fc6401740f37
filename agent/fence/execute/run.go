package execute

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/fence/device"
	"github.com/evictd/evictd/agent/fence/device/clusterlabs"
)

// Options say where an executor finds what it needs.
type Options struct {
	// Request is the file of the request.
	Request string
	// Report is the file that gets the report, which the kubelet makes the termination message.
	Report string
	// AgentsDirectory has the fence agents.
	AgentsDirectory string
	// NodeName is the node that the pod runs on.
	NodeName string
}

// Run does what the request says, writes the report and returns it. The error is that of a request that can't be read
// or a report that can't be written. The agent and its process group are killed when ctx ends.
func Run(ctx context.Context, o Options) (Report, error) {
	text, mounted, err := read(o.Request)
	if err != nil {
		return Report{Result: NotStarted}, err
	}
	r, err := ParseRequest(text)
	if err != nil {
		return Report{Result: NotStarted}, err
	}
	report := execute(ctx, r, o, mounted)
	if err := os.WriteFile(o.Report, report.Marshal(), 0o600); err != nil {
		return report, fmt.Errorf("write the report: %w", err)
	}
	return report, nil
}

// read reads the request. mounted is when its file was written, by the clock of the node: the kubelet does it before it
// pulls the image.
func read(path string) (text []byte, mounted time.Time, err error) {
	f, err := os.Open(path) //nolint:gosec // it is a flag of the command
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("read the request: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("read the request: %w", err)
	}
	text, err = io.ReadAll(io.LimitReader(f, MaxRequest+1))
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("read the request: %w", err)
	}
	return text, info.ModTime(), nil
}

// execute runs the agent, unless the request is late or the node is the one that is fenced.
func execute(ctx context.Context, r Request, o Options, mounted time.Time) Report {
	report := Report{ID: r.ID, Action: r.Action, Result: NotStarted}
	switch {
	case o.NodeName == "":
		report.Error = "the environment has no NODE_NAME: it is not known on which node this runs"
		return report
	case o.NodeName == r.Target:
		report.Error = "the pod runs on node " + r.Target + ", which is to be fenced"
		return report
	}
	left, err := r.left(time.Now(), mounted)
	if err != nil {
		report.Error = fmt.Sprintf("node %s: %v", o.NodeName, err)
		return report
	}
	d, err := clusterlabs.New(clusterlabs.Options{
		Directory: o.AgentsDirectory, Agent: r.Agent, Parameters: r.Parameters, Secrets: r.Secrets,
	})
	if err != nil {
		report.Error = err.Error()
		return report
	}
	ctx, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	report.Result, err = run(ctx, d, r.Action)
	if err != nil {
		report.Error = err.Error()
	}
	return report
}

// run does an action of a device.
func run(ctx context.Context, d device.Device, action Action) (Result, error) {
	call := d.Off
	switch action {
	case Status:
		switch power, err := d.Status(ctx); {
		case err != nil && errors.Is(err, device.ErrRefused):
			return NotStarted, err
		case err != nil:
			return Failed, err
		case power == fence.PowerOff:
			return ReadOff, nil
		case power == fence.PowerOn:
			return ReadOn, nil
		}
		return Failed, errors.New("the agent did not say whether it is on or off")
	case On:
		call = d.On
	case Off:
	}
	err := call(ctx)
	switch {
	case err == nil:
		return Done, nil
	case errors.Is(err, device.ErrRefused):
		return NotStarted, err
	}
	return Failed, err
}
