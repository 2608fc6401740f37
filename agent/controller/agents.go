package controller

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/fence/device"
	"github.com/evictd/evictd/agent/fence/device/clusterlabs"
	"github.com/evictd/evictd/agent/fence/plan"
)

const (
	// agentInterval is how often the files of the fence agents that the configuration names are looked at. An agent
	// whose metadata could not be read is run again then.
	agentInterval = time.Minute
	// maxAgents bounds the agents whose metadata is kept.
	maxAgents = 256
)

// fenceAgents are the installed fence agents. Their metadata is read again when their file changes. Nil has no agents.
type fenceAgents struct {
	directory string

	mu     sync.Mutex
	agents map[string]*fenceAgent
}

// fenceAgent is an agent with its metadata.
type fenceAgent struct {
	mu     sync.Mutex // one run at a time
	file   agentFile
	schema plan.Schema
	err    error
	failed time.Time // when err occurred
}

// agentFile identifies a version of a file.
type agentFile struct {
	device, inode     uint64
	size              int64
	modified, changed syscall.Timespec
}

// newFenceAgents returns the agents of a directory.
func newFenceAgents(directory string) *fenceAgents {
	return &fenceAgents{directory: directory, agents: map[string]*fenceAgent{}}
}

// schema returns the schema of an agent. The error is fs.ErrNotExist if it is not installed.
func (f *fenceAgents) schema(ctx context.Context, name string) (plan.Schema, error) {
	if f == nil {
		return plan.Schema{}, fmt.Errorf("find fence agent %s: %w", name, fs.ErrNotExist)
	}
	path, err := clusterlabs.Find(f.directory, name)
	if err != nil {
		return plan.Schema{}, err
	}
	file, err := identify(path)
	if err != nil {
		return plan.Schema{}, fmt.Errorf("find fence agent: %w", err)
	}
	f.mu.Lock()
	a := f.agents[name]
	if a == nil {
		if len(f.agents) >= maxAgents {
			clear(f.agents)
		}
		a = &fenceAgent{}
		f.agents[name] = a
	}
	f.mu.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.file == file && (a.err == nil || time.Since(a.failed) < agentInterval/2) {
		return a.schema, a.err
	}
	text, err := clusterlabs.Metadata(ctx, f.directory, name)
	if ctx.Err() != nil {
		return plan.Schema{}, err // it says nothing about the agent
	}
	if err == nil {
		a.schema, err = plan.ParseMetadata(text)
	}
	if err != nil {
		a.schema, a.failed = plan.Schema{}, time.Now()
		err = fmt.Errorf("agent %s: %w", path, err)
	}
	a.file, a.err = file, err
	return a.schema, a.err
}

// identify returns the version of a file.
func identify(path string) (agentFile, error) {
	info, err := os.Stat(filepath.Clean(path))
	if err != nil {
		return agentFile{}, err
	}
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return agentFile{}, fmt.Errorf("stat %s: no inode", path)
	}
	return agentFile{uint64(s.Dev), s.Ino, s.Size, s.Mtim, s.Ctim}, nil
}

// describe adds what is known of the fence agents that the objects name. It returns whether they name some.
func (f *fenceAgents) describe(ctx context.Context, o *plan.Objects) bool {
	names := plan.FenceAgents(*o)
	o.Agents, o.Unusable = map[string]plan.Schema{}, map[string]string{}
	for _, name := range names {
		schema, err := f.schema(ctx, name)
		switch {
		case err == nil:
			o.Agents[name] = schema
		case !errors.Is(err, fs.ErrNotExist):
			o.Unusable[name] = err.Error()
		}
	}
	return len(names) > 0
}

// resolve returns the parameters of a method with a fence agent, and the names of those that are secret.
func (f *fenceAgents) resolve(
	ctx context.Context, m *fence.Method, read func(plan.Source) (plan.Data, error),
) (parameters map[string]string, secrets []string, err error) {
	schema, err := f.schema(ctx, m.Agent)
	if err != nil {
		return nil, nil, fmt.Errorf("open device of method %s: %w", m.Name, err)
	}
	return schema.Resolve(*m, read)
}

// open returns the device of a method with a fence agent.
func (f *fenceAgents) open(ctx context.Context, m *fence.Method, read func(plan.Source) (plan.Data, error)) (device.Device, error) {
	parameters, secrets, err := f.resolve(ctx, m, read)
	if err != nil {
		return nil, err
	}
	d, err := clusterlabs.New(clusterlabs.Options{Directory: f.directory, Agent: m.Agent, Parameters: parameters, Secrets: secrets})
	if err != nil {
		return nil, fmt.Errorf("open device of method %s: %w", m.Name, err)
	}
	return d, nil
}
