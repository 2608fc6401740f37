package act

import (
	"context"
	"errors"
	"time"
)

// CountFailures returns a Runtime that calls failed for each call of r that fails.
func CountFailures(r Runtime, failed func()) Runtime { return countedRuntime{r, failed} }

type countedRuntime struct {
	Runtime
	failed func()
}

func (c countedRuntime) count(err error) error {
	if err != nil && !errors.Is(err, context.Canceled) {
		c.failed()
	}
	return err
}

// StopContainer implements Runtime.
func (c countedRuntime) StopContainer(ctx context.Context, id string, grace time.Duration) error {
	return c.count(c.Runtime.StopContainer(ctx, id, grace))
}

// StopSandbox implements Runtime.
func (c countedRuntime) StopSandbox(ctx context.Context, id string) error {
	return c.count(c.Runtime.StopSandbox(ctx, id))
}
