// Package node starts a private containerd and runs pods on it, for tests, the demonstration and benchmarks.
//
// A node is real: containerd, runc, CRI, and the cgroups that a kubelet would create. It is isolated from everything
// else on the machine: root, state and sockets are below one directory, and every process, including containerd, is
// below one private cgroup in each hierarchy (v1, v2 and hybrid):
//
//	/evictd-test-1f2e3d4c/system                            containerd, its shims, runc
//	/evictd-test-1f2e3d4c/kubepods                          has a memory limit, so that the machine stays usable
//	/evictd-test-1f2e3d4c/kubepods/burstable/pod<uid>/<id>  a container
//
// With the systemd driver, the pods are in a private slice: see [Driver].
//
// The private cgroup also identifies the node's processes. Close kills all of them and removes mounts, cgroups and
// files; Leftovers lists what remains. If the process that started a node dies without Close, the node stays until
// the next Start removes it.
//
// A node needs root. It needs no network: the images are built locally, and pods use the host's network.
package node
