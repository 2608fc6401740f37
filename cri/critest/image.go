package critest

import (
	"context"
	"slices"

	"github.com/evictd/evictd/cri"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// SetImages replaces the images of the runtime.
func (s *Server) SetImages(images ...cri.Image) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.images = slices.Clone(images)
}

// Images returns the IDs of the remaining images, in the order of SetImages.
func (s *Server) Images() (ids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range s.images {
		ids = append(ids, i.ID)
	}
	return ids
}

// SetSandboxImage sets the sandbox image that the runtime reports, as containerd
// does.
func (s *Server) SetSandboxImage(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sandboxImage = name
}

func (s *imageService) ListImages(context.Context, *runtimev1.ListImagesRequest) (*runtimev1.ListImagesResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	resp := &runtimev1.ListImagesResponse{}
	for _, i := range s.images {
		resp.Images = append(resp.Images, &runtimev1.Image{Id: i.ID, RepoTags: i.Tags, RepoDigests: i.Digests, Size: uint64(i.Bytes), Pinned: i.Pinned})
	}
	return resp, nil
}

// RemoveImage succeeds for an unknown image, as CRI requires.
func (s *imageService) RemoveImage(_ context.Context, req *runtimev1.RemoveImageRequest) (*runtimev1.RemoveImageResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.images = slices.DeleteFunc(s.images, func(i cri.Image) bool { return i.ID == req.GetImage().GetImage() })
	return &runtimev1.RemoveImageResponse{}, nil
}

func (s *runtimeService) Status(_ context.Context, req *runtimev1.StatusRequest) (*runtimev1.StatusResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	resp := &runtimev1.StatusResponse{Status: &runtimev1.RuntimeStatus{}}
	if req.GetVerbose() && s.sandboxImage != "" {
		resp.Info = map[string]string{"config": `{"containerd":{"snapshotter":"overlayfs"},"sandboxImage":"` + s.sandboxImage + `"}`}
	}
	return resp, nil
}
