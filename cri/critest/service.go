package critest

import (
	"context"
	"time"

	"github.com/evictd/evictd/cri"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// runtimeService and imageService implement the runtime without faults, which the
// interceptors inject.
type runtimeService struct {
	runtimev1.UnimplementedRuntimeServiceServer
	*Server
}

type imageService struct {
	runtimev1.UnimplementedImageServiceServer
	*Server
}

func (s *runtimeService) Version(context.Context, *runtimev1.VersionRequest) (*runtimev1.VersionResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	resp := &runtimev1.VersionResponse{Version: "0.1.0", RuntimeName: "containerd", RuntimeVersion: "1.6.20~ds1", RuntimeApiVersion: "v1"}
	switch s.flavor {
	case Containerd17:
		resp.RuntimeVersion = "v1.7.28"
	case CRIO:
		resp.RuntimeName, resp.RuntimeVersion = "cri-o", "1.34.0"
	case CRIDockerd:
		resp.RuntimeName, resp.RuntimeVersion, resp.RuntimeApiVersion = "docker", "28.3.0", "1.51.0"
	}
	return resp, nil
}

func (s *runtimeService) ListPodSandbox(context.Context, *runtimev1.ListPodSandboxRequest) (*runtimev1.ListPodSandboxResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &runtimev1.ListPodSandboxResponse{Items: s.listedSandboxes()}, nil
}

func (s *runtimeService) ListContainers(context.Context, *runtimev1.ListContainersRequest) (*runtimev1.ListContainersResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &runtimev1.ListContainersResponse{Containers: s.listedContainers()}, nil
}

func (s *runtimeService) StreamPodSandboxes(_ *runtimev1.StreamPodSandboxesRequest, stream grpc.ServerStreamingServer[runtimev1.StreamPodSandboxesResponse]) error {
	s.mu.Lock()
	items := s.listedSandboxes()
	s.mu.Unlock()
	for _, item := range items {
		if err := stream.Send(&runtimev1.StreamPodSandboxesResponse{PodSandboxes: []*runtimev1.PodSandbox{item}}); err != nil {
			return err
		}
	}
	return nil
}

func (s *runtimeService) StreamContainers(_ *runtimev1.StreamContainersRequest, stream grpc.ServerStreamingServer[runtimev1.StreamContainersResponse]) error {
	s.mu.Lock()
	items := s.listedContainers()
	s.mu.Unlock()
	for _, item := range items {
		if err := stream.Send(&runtimev1.StreamContainersResponse{Containers: []*runtimev1.Container{item}}); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) listedSandboxes() []*runtimev1.PodSandbox {
	items := make([]*runtimev1.PodSandbox, 0, len(s.pods))
	for _, box := range s.pods {
		items = append(items, box.listed())
	}
	return items
}

func (s *Server) listedContainers() []*runtimev1.Container {
	items := make([]*runtimev1.Container, 0, len(s.byID))
	for _, box := range s.pods {
		for _, c := range box.containers {
			items = append(items, c.listed())
		}
	}
	return items
}

func (s *runtimeService) ContainerStatus(_ context.Context, req *runtimev1.ContainerStatusRequest) (*runtimev1.ContainerStatusResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.byID[req.GetContainerId()]
	if c == nil {
		return nil, s.statusNotFound("container", req.GetContainerId())
	}
	resp := &runtimev1.ContainerStatusResponse{Status: c.status(s.flavor)}
	if req.GetVerbose() {
		resp.Info = c.info(s.flavor)
	}
	return resp, nil
}

func (s *runtimeService) PodSandboxStatus(_ context.Context, req *runtimev1.PodSandboxStatusRequest) (*runtimev1.PodSandboxStatusResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	box := s.sandbox(req.GetPodSandboxId())
	if box == nil {
		return nil, s.statusNotFound("sandbox", req.GetPodSandboxId())
	}
	resp := &runtimev1.PodSandboxStatusResponse{Status: box.status()}
	if req.GetVerbose() {
		resp.Info = box.info(s.flavor)
	}
	return resp, nil
}

func (s *runtimeService) StopContainer(_ context.Context, req *runtimev1.StopContainerRequest) (*runtimev1.StopContainerResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.byID[req.GetContainerId()]
	if c == nil {
		return nil, notFound("container", req.GetContainerId())
	}
	s.exit(c, time.Duration(req.GetTimeout())*time.Second)
	return &runtimev1.StopContainerResponse{}, nil
}

// RemoveContainer succeeds for an unknown ID, as in containerd.
func (s *runtimeService) RemoveContainer(_ context.Context, req *runtimev1.RemoveContainerRequest) (*runtimev1.RemoveContainerResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.byID[req.GetContainerId()]; c != nil {
		s.exit(c, 0)
		s.removeContainer(c)
	}
	return &runtimev1.RemoveContainerResponse{}, nil
}

func (s *runtimeService) StopPodSandbox(_ context.Context, req *runtimev1.StopPodSandboxRequest) (*runtimev1.StopPodSandboxResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	box := s.sandbox(req.GetPodSandboxId())
	if box == nil {
		return nil, notFound("sandbox", req.GetPodSandboxId())
	}
	for _, c := range box.containers {
		s.exit(c, 0)
	}
	box.NotReady = true
	return &runtimev1.StopPodSandboxResponse{}, nil
}

// RemovePodSandbox succeeds for an unknown ID, as in containerd.
func (s *runtimeService) RemovePodSandbox(_ context.Context, req *runtimev1.RemovePodSandboxRequest) (*runtimev1.RemovePodSandboxResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if box := s.sandbox(req.GetPodSandboxId()); box != nil {
		for _, c := range box.containers {
			s.exit(c, 0)
		}
		s.removeSandbox(box)
	}
	return &runtimev1.RemovePodSandboxResponse{}, nil
}

func (s *runtimeService) GetContainerEvents(_ *runtimev1.GetEventsRequest, stream grpc.ServerStreamingServer[runtimev1.ContainerEventResponse]) error {
	events := make(chan *runtimev1.ContainerEventResponse, 1000)
	s.mu.Lock()
	s.subs[events] = true
	s.wake()
	stopped := s.stopped
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.subs, events)
	}()
	for {
		select {
		case e := <-events:
			if err := stream.Send(e); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-stopped:
			return nil
		}
	}
}

func (s *imageService) ImageFsInfo(context.Context, *runtimev1.ImageFsInfoRequest) (*runtimev1.ImageFsInfoResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &runtimev1.ImageFsInfoResponse{
		ImageFilesystems:     usages(s.imageFs.Image),
		ContainerFilesystems: usages(s.imageFs.Container),
	}, nil
}

func usages(list []cri.Filesystem) []*runtimev1.FilesystemUsage {
	var out []*runtimev1.FilesystemUsage
	for _, fs := range list {
		u := &runtimev1.FilesystemUsage{
			Timestamp: unixNano(fs.Measured),
			FsId:      &runtimev1.FilesystemIdentifier{Mountpoint: fs.Mountpoint},
		}
		if fs.UsedBytes != nil {
			u.UsedBytes = &runtimev1.UInt64Value{Value: *fs.UsedBytes}
		}
		if fs.InodesUsed != nil {
			u.InodesUsed = &runtimev1.UInt64Value{Value: *fs.InodesUsed}
		}
		out = append(out, u)
	}
	return out
}

// statusNotFound returns the error of a status call for an unknown ID. cri-dockerd
// returns docker's error unchanged, without a code.
func (s *Server) statusNotFound(kind, id string) error {
	if s.flavor == CRIDockerd {
		return status.Errorf(codes.Unknown, "Error response from daemon: No such container: %s", id)
	}
	return notFound(kind, id)
}

func notFound(kind, id string) error {
	return status.Errorf(codes.NotFound, "an error occurred when try to find %s %q: not found", kind, id)
}
