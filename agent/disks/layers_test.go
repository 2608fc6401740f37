package disks

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/evictd/evictd/cri"
	"github.com/evictd/evictd/kernel/disk"
)

// A layer without its size, or without when that was measured, has no measurement. An error
// counts only if no layer is reported.
func TestRuntimeLayers(t *testing.T) {
	at, five, two, broken := time.Unix(1e9, 0), uint64(5), uint64(2), errors.New("boom")
	layers := map[string]cri.WritableLayer{
		"all": {UsedBytes: &five, InodesUsed: &two, Measured: at}, "no inodes": {UsedBytes: &five, Measured: at},
		"no size": {InodesUsed: &two, Measured: at}, "no time": {UsedBytes: &five, InodesUsed: &two},
	}
	measure := RuntimeLayers(func(context.Context) (map[string]cri.WritableLayer, error) { return layers, broken })
	got, err := measure(t.Context())
	want := map[string]Measurement{
		"all":       {Usage: disk.Usage{Bytes: 5, Inodes: 2}, At: at, Method: "runtime"},
		"no inodes": {Usage: disk.Usage{Bytes: 5}, At: at, Method: "runtime", Incomplete: "the runtime does not report inodes"},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(Measurement{})); diff != "" || err != nil {
		t.Errorf("layers differ (-want +got), error %v:\n%s", err, diff)
	}
	layers = nil
	if _, err := measure(t.Context()); !errors.Is(err, broken) {
		t.Errorf("without layers: error %v; want %v", err, broken)
	}
}
