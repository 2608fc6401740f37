package cri

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestLayersOf(t *testing.T) {
	stats := func(id string, layer *runtimev1.FilesystemUsage) *runtimev1.ContainerStats {
		return &runtimev1.ContainerStats{Attributes: &runtimev1.ContainerAttributes{Id: id}, WritableLayer: layer}
	}
	got, err := layersOf([]*runtimev1.ContainerStats{
		stats("a", &runtimev1.FilesystemUsage{Timestamp: 7, UsedBytes: &runtimev1.UInt64Value{Value: 4096}, InodesUsed: &runtimev1.UInt64Value{Value: 3}}),
		stats("b", &runtimev1.FilesystemUsage{}),
		stats("c", nil),
		stats("../d", &runtimev1.FilesystemUsage{Timestamp: 7}),
		nil,
	})
	if !errors.Is(err, ErrMalformed) {
		t.Errorf("layersOf with invalid ids: %v; want ErrMalformed", err)
	}
	want := map[string]WritableLayer{"a": {UsedBytes: new(uint64(4096)), InodesUsed: new(uint64(3)), Measured: time.Unix(0, 7)}, "b": {}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("layersOf (-want +got):\n%s", diff)
	}
}

func TestLogPathOf(t *testing.T) {
	for path, want := range map[string]string{
		"/var/log/pods/x/0.log": "/var/log/pods/x/0.log", "": "", "0.log": "", "/var/../etc/shadow": "", "/a\x00": "", "/a/": "",
	} {
		if got := logPathOf(path); got != want {
			t.Errorf("logPathOf(%q) = %q; want %q", path, got, want)
		}
	}
}
