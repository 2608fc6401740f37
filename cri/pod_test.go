package cri

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestContainerOf(t *testing.T) {
	got, err := containerOf(&runtimev1.Container{
		Id: "c", PodSandboxId: "s", Metadata: &runtimev1.ContainerMetadata{Name: "main", Attempt: 3},
		Image: &runtimev1.ImageSpec{Image: "localhost/pause:1"}, ImageRef: "sha256:1", State: runtimev1.ContainerState_CONTAINER_EXITED,
		CreatedAt: 1_000_000_001, Labels: map[string]string{"l": "1"}, Annotations: map[string]string{"a": "2"},
	})
	want := Container{ID: "c", SandboxID: "s", Name: "main", Attempt: 3, State: StateExited, Created: time.Unix(1, 1),
		Image: "localhost/pause:1", ImageRef: "sha256:1", Labels: map[string]string{"l": "1"}, Annotations: map[string]string{"a": "2"}}
	if err != nil || !cmp.Equal(want, got) {
		t.Errorf("containerOf = %v (-want +got):\n%s", err, cmp.Diff(want, got))
	}

	meta := &runtimev1.ContainerMetadata{Name: "main"}
	for name, c := range map[string]*runtimev1.Container{
		"nil":         nil,
		"no id":       {PodSandboxId: "s", Metadata: meta},
		"no sandbox":  {Id: "c", Metadata: meta},
		"no metadata": {Id: "c", PodSandboxId: "s"},
		"path as id":  {Id: "../c", PodSandboxId: "s", Metadata: meta},
	} {
		if got, err := containerOf(c); err == nil {
			t.Errorf("containerOf(%s) = %+v; want an error", name, got)
		}
	}
}

func TestStateOf(t *testing.T) {
	for in, want := range map[runtimev1.ContainerState]string{
		runtimev1.ContainerState_CONTAINER_CREATED: "created",
		runtimev1.ContainerState_CONTAINER_RUNNING: "running",
		runtimev1.ContainerState_CONTAINER_EXITED:  "exited",
		runtimev1.ContainerState_CONTAINER_UNKNOWN: "unknown",
		17: "unknown",
		-1: "unknown",
	} {
		if got := stateOf(in).String(); got != want {
			t.Errorf("stateOf(%d) = %s; want %s", in, got, want)
		}
	}
}

func TestNanoseconds(t *testing.T) {
	// CRI-O sends UnixNano of the zero time, which overflows.
	for _, ns := range []int64{0, -1, time.Time{}.UnixNano()} {
		if got := nanoseconds(ns); !got.IsZero() {
			t.Errorf("nanoseconds(%d) = %v; want the zero time", ns, got)
		}
	}
}

func TestDistinct(t *testing.T) {
	box := func(id, name string) *runtimev1.PodSandbox {
		return &runtimev1.PodSandbox{Id: id, Metadata: &runtimev1.PodSandboxMetadata{Name: name}}
	}
	for _, tt := range []struct {
		name string
		in   []*runtimev1.PodSandbox
		want string
		err  string
	}{
		{name: "none"},
		{name: "ordered", in: []*runtimev1.PodSandbox{box("b", ""), box("a", ""), box("c", "")}, want: "a b c"},
		{name: "two with one ID", in: []*runtimev1.PodSandbox{box("b", "1"), box("a", ""), box("b", "2")}, want: "a", err: "2 of its 3 entries: id b occurs 2 times"},
		{name: "three with one ID", in: []*runtimev1.PodSandbox{box("b", "1"), box("b", "2"), box("b", "3"), box("c", "")}, want: "c", err: "3 of its 4"},
		{name: "nil and empty", in: []*runtimev1.PodSandbox{nil, box("", ""), {Id: "x"}, box("a", "")}, want: "a", err: "3 of its 4"},
	} {
		got, err := distinct("list", tt.in, sandboxOf, func(s Sandbox) string { return s.ID })
		var ids []string
		for _, s := range got {
			ids = append(ids, s.ID)
		}
		if s := strings.Join(ids, " "); s != tt.want {
			t.Errorf("%s: distinct = %q; want %q", tt.name, s, tt.want)
		}
		if tt.err == "" && err != nil || tt.err != "" && (!errors.Is(err, ErrMalformed) || !strings.Contains(err.Error(), tt.err)) {
			t.Errorf("%s: distinct: %v; want %q", tt.name, err, tt.err)
		}
	}
}

func TestImageFsOf(t *testing.T) {
	usage := func(mountpoint string) []*runtimev1.FilesystemUsage {
		return []*runtimev1.FilesystemUsage{{FsId: &runtimev1.FilesystemIdentifier{Mountpoint: mountpoint}, UsedBytes: &runtimev1.UInt64Value{}}}
	}
	got, err := imageFsOf(&runtimev1.ImageFsInfoResponse{ImageFilesystems: usage("/var/lib/x")})
	want := ImageFs{Image: []Filesystem{{Mountpoint: "/var/lib/x", UsedBytes: new(uint64(0))}}}
	if err != nil || !cmp.Equal(want, got) {
		t.Errorf("imageFsOf = %v (-want +got):\n%s", err, cmp.Diff(want, got))
	}
	for name, resp := range map[string]*runtimev1.ImageFsInfoResponse{
		"nothing":       {},
		"no mountpoint": {ImageFilesystems: []*runtimev1.FilesystemUsage{{}}},
		"relative":      {ImageFilesystems: usage("var/lib")},
		"NUL":           {ImageFilesystems: usage("/var\x00")},
		"container":     {ImageFilesystems: usage("/ok"), ContainerFilesystems: usage("")},
	} {
		if got, err := imageFsOf(resp); !errors.Is(err, ErrMalformed) {
			t.Errorf("imageFsOf(%s) = %+v, %v; want ErrMalformed", name, got, err)
		}
	}
}

func TestEventOf(t *testing.T) {
	for in, want := range map[runtimev1.ContainerEventType]string{
		runtimev1.ContainerEventType_CONTAINER_CREATED_EVENT: "created",
		runtimev1.ContainerEventType_CONTAINER_STARTED_EVENT: "started",
		runtimev1.ContainerEventType_CONTAINER_STOPPED_EVENT: "stopped",
		runtimev1.ContainerEventType_CONTAINER_DELETED_EVENT: "deleted",
		9: "unknown",
	} {
		got := eventOf(&runtimev1.ContainerEventResponse{ContainerId: "c", ContainerEventType: in, CreatedAt: 5, PodSandboxStatus: &runtimev1.PodSandboxStatus{Id: "s"}})
		if got.Type.String() != want || got.ContainerID != "c" || got.SandboxID != "s" || !got.Time.Equal(time.Unix(0, 5)) {
			t.Errorf("eventOf(%d) = %+v; want %s", in, got, want)
		}
	}
}
