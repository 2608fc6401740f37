// Package cluster tests evictd and evictd-kube with a real etcd and kube-apiserver,
// which fetch.sh puts into the cache directory. There is no kubelet: the tests create
// pods that are bound to the node, and evictd shows their facts.
package cluster
