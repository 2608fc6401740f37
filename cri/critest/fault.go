package critest

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Fault is what goes wrong with a method. Its parts may be combined, and happen in
// the order of the fields.
type Fault struct {
	// Late lets the call take effect first: what fails is the answer.
	Late bool
	// Delay is waited before anything else, or until the call ends.
	Delay time.Duration
	// Hang waits until the call ends or the server stops.
	Hang bool
	// Code is the error to answer with, if not OK.
	Code codes.Code
	// Garble changes the answer; see [Info], [EmptyIDs], [Duplicates].
	Garble func(answer any)
	// Times is how many calls it concerns; 0 is all until [Server.Heal].
	Times int
}

// happen runs the part of the fault that precedes the answer.
func (f *Fault) happen(ctx context.Context, stopped <-chan struct{}) error {
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

// Info makes the verbose information of a status this text, JSON or not.
func Info(text string) func(any) {
	return func(answer any) {
		switch a := answer.(type) {
		case *runtimev1.ContainerStatusResponse:
			a.Info = map[string]string{"info": text}
		case *runtimev1.PodSandboxStatusResponse:
			a.Info = map[string]string{"info": text}
		default:
			panic(fmt.Sprintf("critest: Info cannot garble a %T", answer))
		}
	}
}

// EmptyIDs takes the IDs out of a list or status.
func EmptyIDs(answer any) {
	switch a := answer.(type) {
	case *runtimev1.ListContainersResponse:
		for _, c := range a.Containers {
			c.Id = ""
		}
	case *runtimev1.ListPodSandboxResponse:
		for _, s := range a.Items {
			s.Id = ""
		}
	case *runtimev1.ContainerStatusResponse:
		a.Status.Id = ""
	case *runtimev1.PodSandboxStatusResponse:
		a.Status.Id = ""
	default:
		panic(fmt.Sprintf("critest: EmptyIDs cannot garble a %T", answer))
	}
}

// Duplicates repeats the first entry of a list, under another name.
func Duplicates(answer any) {
	switch a := answer.(type) {
	case *runtimev1.ListContainersResponse:
		c := a.Containers[0]
		a.Containers = append(a.Containers, &runtimev1.Container{
			Id:           c.Id,
			PodSandboxId: c.PodSandboxId,
			Metadata:     &runtimev1.ContainerMetadata{Name: c.Metadata.Name + "-again"},
			State:        c.State,
		})
	case *runtimev1.ListPodSandboxResponse:
		s := a.Items[0]
		a.Items = append(a.Items, &runtimev1.PodSandbox{
			Id:       s.Id,
			Metadata: &runtimev1.PodSandboxMetadata{Name: s.Metadata.Name + "-again", Namespace: s.Metadata.Namespace, Uid: s.Metadata.Uid},
			State:    s.State,
		})
	default:
		panic(fmt.Sprintf("critest: Duplicates cannot garble a %T", answer))
	}
}
