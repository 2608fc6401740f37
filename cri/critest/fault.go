package critest

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Fault is an injected fault of a method. Its parts may be combined and take effect
// in the order of the fields.
type Fault struct {
	// AfterCall executes the call before the other parts of the fault.
	AfterCall bool
	// Delay delays the call, at most until it ends.
	Delay time.Duration
	// Hang blocks the call until it ends or the server stops.
	Hang bool
	// Code, if not OK, is the error code of the response.
	Code codes.Code
	// Mutate changes the response; see [Info], [EmptyIDs], [Duplicates].
	Mutate func(response any)
	// Times is the number of calls with the fault; 0 is all until [Server.ClearFault].
	Times int
}

// inject applies the delay, the hang and the error code.
func (f *Fault) inject(ctx context.Context, stopped <-chan struct{}) error {
	if f.Delay > 0 {
		timer := time.NewTimer(f.Delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-stopped:
			return status.Error(codes.Unavailable, "server stopped")
		}
	}
	if f.Hang {
		select {
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-stopped:
			return status.Error(codes.Unavailable, "server stopped")
		}
	}
	if f.Code != codes.OK {
		return status.Error(f.Code, "critest: injected fault")
	}
	return nil
}

// Info returns a [Fault.Mutate] that replaces the verbose information of a status with
// text, which need not be JSON.
func Info(text string) func(any) {
	return func(response any) {
		switch r := response.(type) {
		case *runtimev1.ContainerStatusResponse:
			r.Info = map[string]string{"info": text}
		case *runtimev1.PodSandboxStatusResponse:
			r.Info = map[string]string{"info": text}
		default:
			panic(fmt.Sprintf("critest: Info cannot change a %T", response))
		}
	}
}

// EmptyIDs is a [Fault.Mutate] that empties the IDs of a list or status.
func EmptyIDs(response any) {
	switch r := response.(type) {
	case *runtimev1.ListContainersResponse:
		for _, c := range r.Containers {
			c.Id = ""
		}
	case *runtimev1.ListPodSandboxResponse:
		for _, s := range r.Items {
			s.Id = ""
		}
	case *runtimev1.ContainerStatusResponse:
		r.Status.Id = ""
	case *runtimev1.PodSandboxStatusResponse:
		r.Status.Id = ""
	default:
		panic(fmt.Sprintf("critest: EmptyIDs cannot change a %T", response))
	}
}

// Duplicates is a [Fault.Mutate] that repeats the first entry of a list under another name.
func Duplicates(response any) {
	switch r := response.(type) {
	case *runtimev1.ListContainersResponse:
		c := r.Containers[0]
		r.Containers = append(r.Containers, &runtimev1.Container{
			Id:           c.Id,
			PodSandboxId: c.PodSandboxId,
			Metadata:     &runtimev1.ContainerMetadata{Name: c.Metadata.Name + "-again"},
			State:        c.State,
		})
	case *runtimev1.ListPodSandboxResponse:
		s := r.Items[0]
		r.Items = append(r.Items, &runtimev1.PodSandbox{
			Id:       s.Id,
			Metadata: &runtimev1.PodSandboxMetadata{Name: s.Metadata.Name + "-again", Namespace: s.Metadata.Namespace, Uid: s.Metadata.Uid},
			State:    s.State,
		})
	default:
		panic(fmt.Sprintf("critest: Duplicates cannot change a %T", response))
	}
}
