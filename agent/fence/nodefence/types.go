// Package nodefence has the API types of NodeFence, ha.k8s.io/v1: one object for each node that is or was fenced.
//
// +kubebuilder:object:generate=true
// +groupName=ha.k8s.io
package nodefence

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/evictd/evictd/agent/fence"
)

// NodeFence is a fence: the UID of the object identifies it. There is no status subresource: step and state must be
// written at once.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=nf
type NodeFence struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Node is the name of the Node object.
	Node           string `json:"node"`
	fence.Progress `json:",inline"`
	// State has what is needed to continue the fence after a restart.
	State fence.Detail `json:"state"`
}

// NodeFenceList is a list of NodeFence objects.
//
// +kubebuilder:object:root=true
type NodeFenceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NodeFence `json:"items"`
}
