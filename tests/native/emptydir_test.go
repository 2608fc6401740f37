package native_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/kernel/kerneltest"
	"github.com/evictd/evictd/tests/node"
)

// TestEmptyDirHog: a pod that fills the node's filesystem through an emptyDir is evicted, and the space is freed when
// the volume is removed, as a kubelet does. A bystander with a large container layer stays: the layer is smaller than
// the emptyDir, or on a separate filesystem for images, where it may be larger.
func TestEmptyDirHog(t *testing.T) {
	const uid = "0a1b2c3d-0000-4000-8000-000000000003"
	for _, tt := range []struct {
		name, settings string
		annotations    map[string]string
		separate       bool // images and layers are on another filesystem
		layer, volume  int64
	}{
		{name: "one filesystem", layer: 300 * mebibyte, volume: 450 * mebibyte},
		{name: "separate imagefs", separate: true, layer: 500 * mebibyte, volume: 300 * mebibyte},
		{name: "pods of a kubelet", layer: 300 * mebibyte, volume: 450 * mebibyte,
			settings:    "kubelet: override\nunknownPriority: evict",
			annotations: map[string]string{"kubernetes.io/config.source": "api"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n, dir := startDiskNode(t, "ext4", 2*gibibyte)
			nodefs, layout := dir, "single"
			if tt.separate {
				nodefs, layout = kerneltest.MountLoop(t, "ext4", gibibyte, ""), "imagefs"
			}
			empty := available(t, dir)
			bystander := runPod(t, n, withAnnotations(podWriting("bystander", tt.layer), tt.annotations))
			eventually(t, "layer of the bystander pod", func() bool {
				return available(t, dir).Available+uint64(tt.layer) <= empty.Available
			})
			// Half of what the hog writes.
			threshold := available(t, nodefs).Available - uint64(tt.volume)
			d := startDaemon(t, n, fmt.Sprintf("nodefsPath: %s\nevictionHard: {nodefs.available: \"%d\"}\n%s", nodefs, threshold, tt.settings), bystander)
			d.waitStatus("layout "+layout, func(s *control.Status) bool { return s.Layout == layout })
			eventually(t, "usage of the bystander pod", func() bool {
				x, err := d.client.Explain(t.Context(), signal.ImageFsAvailable)
				return err == nil && len(x.Ranking) == 1 && x.Ranking[0].Usage >= tt.layer
			})
			before := available(t, nodefs)
			volume := emptyDirOf(t, nodefs, uid, "cache")
			hog := runPod(t, n, withAnnotations(node.PodSpec{Name: "hog", UID: uid, Containers: []node.ContainerSpec{{
				Args:   []string{"file", "-path", "/cache/data", "-passes", "0", "-rate", diskRate, "-bytes", fmt.Sprint(2 * tt.volume)},
				Mounts: []node.Mount{{Host: volume, Container: "/cache"}},
			}}}, tt.annotations))
			if tt.annotations == nil {
				hog.mustDie()
			} else {
				hog.containersMustDie()
				d.waitReadings(20) // a kubelet needs seconds to remove the volume
			}
			if err := os.RemoveAll(filepath.Join(nodefs, "pods", uid)); err != nil {
				t.Fatal(err)
			}
			if tt.annotations != nil {
				hog.remove()
			}
			s := d.waitStatus("end of the pressure", func(s *control.Status) bool {
				o := s.Signals[signal.NodeFsAvailable]
				return o.Available != nil && *o.Available > int64(threshold) && len(s.Victims) == 0
			})
			eventually(t, "space that the hog used", func() bool {
				return available(t, nodefs).Available+20*mebibyte > before.Available
			})
			s = d.waitReadings(3)
			for _, r := range s.Reclaims {
				t.Logf("reclaim of %s: %v, %d freed in %.2f s %s%s", r.Kind, r.Removed, r.Freed, r.TookSeconds, r.Note, r.Error)
			}
			if cause, _ := signal.Parse(s.Records[0].Cause); len(recordsOf(&s, hog)) != 1 || len(s.Records) != 1 || cause.Resource() != signal.NodeFsAvailable.Resource() {
				t.Errorf("records %+v; want one, of the hog, for the node's filesystem", s.Records)
			}
			mustLive(t, bystander)
		})
	}
}
