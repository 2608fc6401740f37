// Package controlplane runs a real Kubernetes control plane for tests and demonstrations: etcd, kube-apiserver,
// kube-controller-manager and kube-scheduler, as ordinary processes on free ports of the loopback device.
//
// The programs are those that tests/cluster/fetch.sh puts into the cache directory. They need no root. All files are
// below one temporary directory, which Close removes. The kernel kills the processes with the process that started
// them.
package controlplane
