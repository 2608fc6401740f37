package status

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/metrics"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/kerneltest"
)

// A resource without a pressure file has no stalls, instead of stalls of 0.
func TestNotificationStalls(t *testing.T) {
	const us = time.Microsecond
	n := newNode(t)
	for _, tt := range []struct {
		files map[string]string
		want  []metrics.Stall
	}{
		{map[string]string{"meminfo": ""}, nil},
		{map[string]string{"pressure/memory": "some avg10=0.00 total=7\nfull avg10=0.00 total=5\n", "pressure/cpu": "some avg10=0.00 total=3\n"},
			[]metrics.Stall{{Resource: "memory", Kind: "some", Total: 7 * us}, {Resource: "memory", Kind: "full", Total: 5 * us}, {Resource: "cpu", Kind: "some", Total: 3 * us}}},
		{map[string]string{"pressure/io": "some avg10=0.00 total=9\nfull avg10=0.00 total=8\n"},
			[]metrics.Stall{{Resource: "io", Kind: "some", Total: 9 * us}, {Resource: "io", Kind: "full", Total: 8 * us}}},
	} {
		got := Notification(n.o.Lanes, kernel.FS(kerneltest.Tree(t, tt.files)))
		if diff := cmp.Diff(tt.want, got.Stalls); diff != "" {
			t.Errorf("stalls of %q (-want +got):\n%s", tt.files, diff)
		}
		if len(got.Lanes) == 0 {
			t.Error("no lanes; want at least the poll lane")
		}
	}
}
