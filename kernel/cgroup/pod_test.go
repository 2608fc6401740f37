package cgroup

import (
	"strings"
	"testing"
)

func TestPodPath(t *testing.T) {
	const uid = "8f2a-11"
	for _, tt := range []struct {
		name, uid  string
		containers []string
		want       string // "" for an error
	}{
		{"cgroupfs", uid, []string{"/kubepods/burstable/pod8f2a-11/a", "/kubepods/burstable/pod8f2a-11/b"}, "/kubepods/burstable/pod8f2a-11"},
		{"cgroupfs, Guaranteed", uid, []string{"/kubepods/pod8f2a-11/a"}, "/kubepods/pod8f2a-11"},
		{"cgroupfs, cgroupRoot", uid, []string{"/test/kubepods/besteffort/pod8f2a-11/a"}, "/test/kubepods/besteffort/pod8f2a-11"},
		{"systemd", uid, []string{"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod8f2a_11.slice/cri-containerd-a.scope"},
			"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod8f2a_11.slice"},
		{"systemd, Guaranteed", uid, []string{"/kubepods.slice/kubepods-pod8f2a_11.slice/crio-a.scope"}, "/kubepods.slice/kubepods-pod8f2a_11.slice"},
		{"systemd, cgroupRoot", uid, []string{"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod8f2a_11.slice/x.scope"},
			"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod8f2a_11.slice"},
		{"unclean", uid, []string{"/kubepods//pod8f2a-11/./a"}, "/kubepods/pod8f2a-11"},
		{"no container", uid, nil, ""},
		{"two parents", uid, []string{"/kubepods/pod8f2a-11/a", "/kubepods/burstable/pod8f2a-11/b"}, ""},
		{"another pod", "8f2a-1", []string{"/kubepods/pod8f2a-11/a"}, ""},
		{"another pod, systemd", "a_11", []string{"/kubepods.slice/kubepods-pod8f2a_11.slice/a.scope"}, ""},
		{"the pod as container", uid, []string{"/kubepods/burstable/pod8f2a-11"}, ""},
		{"QoS class as pod", "burstable", []string{"/kubepods/burstable/pod1"}, ""},
		{"kubepods", "", []string{"/kubepods/pod"}, ""},
		{"empty UID", "", []string{"/kubepods/pod/a"}, ""},
		{"root", uid, []string{"/a"}, ""},
		{"not below kubepods", uid, []string{"/system.slice/pod8f2a-11/a"}, ""},
		{"named like a pod below a container", uid, []string{"/kubepods/pod1/ctr/pod8f2a-11/a"}, ""},
		{"QoS class elsewhere", uid, []string{"/user/burstable/pod8f2a-11/a"}, ""},
		{"slice in a foreign slice", uid, []string{"/user.slice/kubepods-pod8f2a_11.slice/a.scope"}, ""},
		{"UID leads outside", "1/../..", []string{"/kubepods/pod1/../../a"}, ""},
		{"UID with a slash", "1/ctr", []string{"/kubepods/pod1/ctr/a"}, ""},
		{"relative", uid, []string{"kubepods/pod8f2a-11/a"}, ""},
	} {
		got, err := PodPath(tt.uid, tt.containers)
		if got != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("%s: PodPath(%q, %s) = %q, %v; want %q", tt.name, tt.uid, strings.Join(tt.containers, " "), got, err, tt.want)
		}
	}
}
