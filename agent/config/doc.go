// Package config reads an operator's AgentConfiguration, and the part of a
// KubeletConfiguration that is about eviction, and makes the policy of them that
// agent/evict decides by.
//
// Field names, defaults and meanings are the kubelet's (staging's
// kubelet/config/v1beta1/types.go, pkg/kubelet/apis/config); where they differ
// on purpose, README.md says so. A file is read strictly: whatever is wrong with
// it is reported at once, each problem with its line, and nothing of a file with
// problems is used. A KubeletConfiguration is read leniently, because the kubelet
// has accepted it already: what evictd would refuse becomes a notice.
//
// Nothing here touches the node. A field that stands for something to be found
// there, such as an empty runtimeEndpoint, stays empty.
package config
