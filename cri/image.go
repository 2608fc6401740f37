package cri

import (
	"context"
	"encoding/json"
	"fmt"
	"math"

	"google.golang.org/grpc"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Image is a container image of the runtime.
type Image struct {
	ID      string
	Tags    []string // such as docker.io/library/busybox:latest
	Digests []string // such as docker.io/library/busybox@sha256:…
	Bytes   int64    // as the runtime counts them; images may share layers
	Pinned  bool     // must not be removed
}

// Images lists the images, ordered by ID. It handles unusable entries as
// [Client.Sandboxes] does, and fails for a list above 16 MiB.
func (c *Client) Images(ctx context.Context) ([]Image, error) {
	const op = "list images"
	var items []*runtimev1.Image
	err := c.call(ctx, c.callTimeout, op, func(ctx context.Context, opts ...grpc.CallOption) error {
		resp, err := c.images.ListImages(ctx, &runtimev1.ListImagesRequest{}, opts...)
		items = resp.GetImages()
		return err
	})
	if err != nil {
		return nil, err
	}
	return distinct(op, items, imageOf, func(i Image) string { return i.ID })
}

func imageOf(i *runtimev1.Image) (Image, error) {
	if i.GetId() == "" {
		return Image{}, fmt.Errorf("image: empty id")
	}
	return Image{
		ID: i.GetId(), Tags: i.GetRepoTags(), Digests: i.GetRepoDigests(),
		Bytes: int64(min(i.GetSize(), math.MaxInt64)), Pinned: i.GetPinned(),
	}, nil
}

// RemoveImage removes the image with an ID, under all its names. The runtime may free
// its space later. It fails with ErrTimeout after [StopMargin]. An image that does not
// exist counts as removed.
func (c *Client) RemoveImage(ctx context.Context, id string) error {
	if id == "" {
		return fmt.Errorf("remove image: %w: empty id", ErrMalformed)
	}
	return ignoreNotFound(c.call(ctx, StopMargin, "remove image "+id, func(ctx context.Context, opts ...grpc.CallOption) error {
		_, err := c.images.RemoveImage(ctx, &runtimev1.RemoveImageRequest{Image: &runtimev1.ImageSpec{Image: id}}, opts...)
		return err
	}))
}

// SandboxImage returns the name of the sandbox image in containerd's configuration,
// or "" if the runtime does not report it. Such a runtime pins that image.
func (c *Client) SandboxImage(ctx context.Context) (string, error) {
	const op = "runtime status"
	var resp *runtimev1.StatusResponse
	err := c.call(ctx, c.callTimeout, op, func(ctx context.Context, opts ...grpc.CallOption) (err error) {
		resp, err = c.runtime.Status(ctx, &runtimev1.StatusRequest{Verbose: true}, opts...)
		return err
	})
	if err != nil {
		return "", err
	}
	name, err := sandboxImageOf(resp.GetInfo())
	if err != nil {
		return "", fmt.Errorf("%s: %w", op, err)
	}
	return name, nil
}

// sandboxImageOf parses the verbose runtime status of containerd:
//
//	{"containerd":{"snapshotter":"overlayfs",…},…,"sandboxImage":"registry.k8s.io/pause:3.6",…}
func sandboxImageOf(info map[string]string) (string, error) {
	text, ok := info["config"]
	if !ok {
		return "", nil
	}
	var config struct {
		SandboxImage string `json:"sandboxImage"`
	}
	if err := json.Unmarshal([]byte(text), &config); err != nil {
		return "", fmt.Errorf("%w: config: %w", ErrMalformed, err)
	}
	return config.SandboxImage, nil
}
