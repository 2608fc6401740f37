package disks

import (
	"context"

	"github.com/evictd/evictd/cri"
)

// RuntimeLayers returns a function for [UsageMeterOptions], which measures writable layers by
// what the runtime reports, as [cri.Client.WritableLayers] does.
func RuntimeLayers(report func(context.Context) (map[string]cri.WritableLayer, error)) func(context.Context) (map[string]Measurement, error) {
	return func(ctx context.Context) (map[string]Measurement, error) {
		layers, err := report(ctx)
		if len(layers) == 0 && err != nil {
			return nil, err
		}
		all := make(map[string]Measurement, len(layers))
		for id, l := range layers {
			if l.UsedBytes == nil || l.Measured.IsZero() {
				continue
			}
			m := Measurement{At: l.Measured, Method: "runtime"}
			m.Bytes = *l.UsedBytes
			if l.InodesUsed != nil {
				m.Inodes = *l.InodesUsed
			} else {
				m.Incomplete = "the runtime does not report inodes"
			}
			all[id] = m
		}
		return all, nil
	}
}
