package cri

import (
	"context"
	"fmt"
	"path"
	"strings"
	"time"

	"google.golang.org/grpc"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Filesystem is a filesystem with images or writable layers of a runtime. UsedBytes
// and InodesUsed are the usage of the runtime, not of the filesystem.
type Filesystem struct {
	Mountpoint string    // an absolute path on the filesystem, not always its mount point
	UsedBytes  *uint64   // nil if not reported
	InodesUsed *uint64   // nil if not reported
	Measured   time.Time // zero if not reported
}

// ImageFs are the runtime's filesystems of images and of writable layers. Container
// is empty if the runtime does not distinguish them (containerd before 1.7).
type ImageFs struct {
	Image     []Filesystem
	Container []Filesystem
}

// ImageFsInfo returns the filesystems of images and writable layers. It fails with
// ErrMalformed if the runtime reports no image filesystem, or one without an absolute
// path.
func (c *Client) ImageFsInfo(ctx context.Context) (ImageFs, error) {
	const op = "image filesystem info"
	var resp *runtimev1.ImageFsInfoResponse
	err := c.call(ctx, c.callTimeout, op, func(ctx context.Context, opts ...grpc.CallOption) (err error) {
		resp, err = c.images.ImageFsInfo(ctx, &runtimev1.ImageFsInfoRequest{}, opts...)
		return err
	})
	if err != nil {
		return ImageFs{}, err
	}
	fs, err := imageFsOf(resp)
	if err != nil {
		return ImageFs{}, fmt.Errorf("%s: %w", op, err)
	}
	return fs, nil
}

func imageFsOf(resp *runtimev1.ImageFsInfoResponse) (ImageFs, error) {
	if len(resp.GetImageFilesystems()) == 0 {
		return ImageFs{}, fmt.Errorf("%w: no image filesystem", ErrMalformed)
	}
	image, err := filesystemsOf(resp.GetImageFilesystems())
	if err != nil {
		return ImageFs{}, err
	}
	container, err := filesystemsOf(resp.GetContainerFilesystems())
	if err != nil {
		return ImageFs{}, err
	}
	return ImageFs{Image: image, Container: container}, nil
}

func filesystemsOf(usages []*runtimev1.FilesystemUsage) ([]Filesystem, error) {
	var list []Filesystem
	for _, u := range usages {
		mountpoint := u.GetFsId().GetMountpoint()
		if !path.IsAbs(mountpoint) || strings.ContainsRune(mountpoint, 0) {
			return nil, fmt.Errorf("%w: filesystem at %.80q", ErrMalformed, mountpoint)
		}
		list = append(list, Filesystem{
			Mountpoint: mountpoint,
			UsedBytes:  number(u.GetUsedBytes()),
			InodesUsed: number(u.GetInodesUsed()),
			Measured:   nanoseconds(u.GetTimestamp()),
		})
	}
	return list, nil
}

func number(v *runtimev1.UInt64Value) *uint64 {
	if v == nil {
		return nil
	}
	return new(v.GetValue())
}
