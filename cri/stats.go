package cri

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// WritableLayer is the disk usage of a container's writable layer, as the runtime measures
// it periodically.
type WritableLayer struct {
	UsedBytes  *uint64   // nil if not reported
	InodesUsed *uint64   // nil if not reported
	Measured   time.Time // zero if not reported
}

// WritableLayers returns the usage of the writable layers of all containers by container ID,
// without those that are not reported. If some entries are unusable, it returns the
// others with [ErrMalformed].
func (c *Client) WritableLayers(ctx context.Context) (map[string]WritableLayer, error) {
	const op = "list container statistics"
	var resp *runtimev1.ListContainerStatsResponse
	err := c.call(ctx, c.callTimeout, op, func(ctx context.Context, opts ...grpc.CallOption) (err error) {
		resp, err = c.runtime.ListContainerStats(ctx, &runtimev1.ListContainerStatsRequest{}, opts...)
		return err
	})
	if err != nil {
		return nil, err
	}
	layers, err := layersOf(resp.GetStats())
	if err != nil {
		return layers, fmt.Errorf("%s: %w", op, err)
	}
	return layers, nil
}

func layersOf(stats []*runtimev1.ContainerStats) (map[string]WritableLayer, error) {
	layers := make(map[string]WritableLayer, len(stats))
	var bad error
	for _, s := range stats {
		id := s.GetAttributes().GetId()
		if err := checkID(id); err != nil {
			bad = fmt.Errorf("%w: %w", ErrMalformed, err)
			continue
		}
		u := s.GetWritableLayer()
		if u == nil {
			continue
		}
		layers[id] = WritableLayer{UsedBytes: number(u.GetUsedBytes()), InodesUsed: number(u.GetInodesUsed()), Measured: nanoseconds(u.GetTimestamp())}
	}
	return layers, bad
}
