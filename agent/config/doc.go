// Package config reads an operator's AgentConfiguration and the eviction part
// of a KubeletConfiguration, and builds the policy that agent/evict decides by.
//
// Field names, defaults and meanings are the kubelet's (staging's
// kubelet/config/v1beta1/types.go, pkg/kubelet/apis/config); where they differ
// on purpose, README.md says so. A file is read strictly: all problems are
// reported at once, each with its line, and a file with problems is not used at
// all. A KubeletConfiguration is read leniently, because the kubelet has accepted
// it already: what evictd would refuse becomes a notice.
//
// The package does not access the node. A field whose default is detected on the
// node, such as an empty runtimeEndpoint, stays empty.
package config
