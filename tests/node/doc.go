// Package node runs a private containerd, and pods on it, for whoever needs a node to press on: tests, the
// demonstration, benchmarks.
//
// A node is real: containerd, runc, CRI, the cgroups that a kubelet would make. It is also apart from whatever
// else the machine runs: root, state and sockets are below one directory, and every process, containerd's own
// included, is below one cgroup that belongs to it alone, in each hierarchy (v1, v2 and hybrid):
//
//	/evictd-test-1f2e3d4c/system                            containerd, its shims, runc
//	/evictd-test-1f2e3d4c/kubepods                          limited, so that the machine keeps room
//	/evictd-test-1f2e3d4c/kubepods/burstable/pod<uid>/<id>  a container
//
// With the systemd driver, the pods are in a slice that belongs to it alone: see [Driver].
//
// That cgroup is also how the processes are found again. Close kills all of them and removes mounts, cgroups
// and files; Leftovers proves it. When the process that started a node dies, the node stays; the next Start
// removes it.
//
// Root is needed, the images are built on the spot, and no network is: pods use the host's.
package node
