package pods

import (
	"context"
	"errors"
)

// CountFailures returns a Runtime that calls failed for each list of r that fails.
func CountFailures(r Runtime, failed func()) Runtime { return countedRuntime{r, failed} }

type countedRuntime struct {
	Runtime
	failed func()
}

// List implements Runtime.
func (c countedRuntime) List(ctx context.Context) (List, error) {
	list, err := c.Runtime.List(ctx)
	if err != nil && !errors.Is(err, context.Canceled) {
		c.failed()
	}
	return list, err
}
