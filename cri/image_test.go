package cri_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/cri"
)

func TestImages(t *testing.T) {
	s, c := start(t)
	want := []cri.Image{
		{ID: "sha256:aa", Tags: []string{"localhost/a:1", "localhost/a:2"}, Digests: []string{"localhost/a@sha256:11"}, Bytes: 7 << 20},
		{ID: "sha256:bb", Bytes: 3, Pinned: true},
	}
	s.SetImages(want[1], want[0], cri.Image{})
	got, err := c.Images(t.Context())
	if diff := cmp.Diff(want, got); diff != "" || !errors.Is(err, cri.ErrMalformed) {
		t.Errorf("Images with an entry without ID: %v; want ErrMalformed (-want +got):\n%s", err, diff)
	}
	for range 2 {
		if err := c.RemoveImage(t.Context(), "sha256:aa"); err != nil {
			t.Errorf("RemoveImage: %v", err)
		}
	}
	if diff := cmp.Diff([]string{"sha256:bb", ""}, s.Images()); diff != "" {
		t.Errorf("images left (-want +got):\n%s", diff)
	}
	if err := c.RemoveImage(t.Context(), ""); !errors.Is(err, cri.ErrMalformed) {
		t.Errorf("RemoveImage of an empty id: %v; want ErrMalformed", err)
	}
}

func TestSandboxImage(t *testing.T) {
	s, c := start(t)
	if got, err := c.SandboxImage(t.Context()); got != "" || err != nil {
		t.Errorf("SandboxImage that is not reported = %q, %v; want none", got, err)
	}
	s.SetSandboxImage("registry.k8s.io/pause:3.6")
	if got, err := c.SandboxImage(t.Context()); got != "registry.k8s.io/pause:3.6" || err != nil {
		t.Errorf("SandboxImage = %q, %v", got, err)
	}
	s.SetSandboxImage(`x","a":{`)
	if _, err := c.SandboxImage(t.Context()); !errors.Is(err, cri.ErrMalformed) {
		t.Errorf("SandboxImage of malformed JSON: %v; want ErrMalformed", err)
	}
}
