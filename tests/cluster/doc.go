// Package cluster tests evictd and evictd-kube with real programs of Kubernetes, which
// fetch.sh puts into the cache directory.
//
// Most tests have an etcd and a kube-apiserver alone: they create pods that are bound to a
// node without a kubelet. The others (inNamespaces) have a whole cluster of one node: the
// controllers, a scheduler, and a kubelet that runs pods on the containerd of tests/node,
// with evictd and evictd-kube beside it. They run in mount and network namespaces of their
// own and need root.
//
// In most of these evictd and evictd-kube run beside the kubelet. TestInstalled has the kubelet run them as the DaemonSet of
// deploy/kubernetes.
//
// TestRandomEvictions evicts 20 pods while others use the CPU and the disk, come and go, and
// 200 with `make test-evictions` (EVICTIONS=N for another number). Of 200, at least 198 must
// have the reason Evicted in the last status that the API server has shown. The log has the
// seed, and what was seen of each eviction without the reason.
//
// TestEvictionFaults and TestSoftEvictionFaults stop and kill parts of the system at the steps of an
// eviction. They take some of the combinations; this command has all, in a quarter of an hour:
//
//	EVICTD_TEST_FAULTS=. go test -v -run 'EvictionFaults$' ./tests/cluster
package cluster
