package agent

import (
	"context"
	"errors"
	"time"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/pods"
)

// countedRuntime counts the runtime's calls that fail.
type countedRuntime struct {
	act.Runtime
	failed func()
}

func (c countedRuntime) count(err error) error {
	if err != nil && !errors.Is(err, context.Canceled) {
		c.failed()
	}
	return err
}

// StopContainer implements act.Runtime.
func (c countedRuntime) StopContainer(ctx context.Context, id string, grace time.Duration) error {
	return c.count(c.Runtime.StopContainer(ctx, id, grace))
}

// StopSandbox implements act.Runtime.
func (c countedRuntime) StopSandbox(ctx context.Context, id string) error {
	return c.count(c.Runtime.StopSandbox(ctx, id))
}

// countedLists counts the runtime's lists that fail.
type countedLists struct {
	pods.Runtime
	failed func()
}

// List implements pods.Runtime.
func (c countedLists) List(ctx context.Context) (pods.List, error) {
	list, err := c.Runtime.List(ctx)
	if err != nil && !errors.Is(err, context.Canceled) {
		c.failed()
	}
	return list, err
}
