// Package nodefence has the API types of NodeFence, ha.k8s.io/v1: one object for each node that is or was fenced.
//
// Its generated files, and the CustomResourceDefinition in deploy/kubernetes/controller/crd, are written by
// make generate-api.
//
// +kubebuilder:object:generate=true
// +groupName=ha.k8s.io
// +versionName=v1
package nodefence

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/evictd/evictd/agent/fence"
)

// GroupVersion is the API group and version of NodeFence.
var GroupVersion = schema.GroupVersion{Group: "ha.k8s.io", Version: "v1"}

// SchemeBuilder adds the types of this package to a scheme.
var SchemeBuilder = runtime.NewSchemeBuilder(func(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &NodeFence{}, &NodeFenceList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
})

// AddToScheme adds the types of this package to a scheme.
var AddToScheme = SchemeBuilder.AddToScheme

// ObjectName returns the name of the NodeFence of a node. The API server accepts no name of more than 253 characters,
// so a node whose name has more than 242 can't be fenced.
func ObjectName(node string) string { return "node-fence-" + node }

// NodeFence is a fence: the UID of the object identifies it. There is no status subresource: step and state must be
// written at once.
//
// The API server accepts any step and status, because other programs write them in other spellings: see
// [NodeFence.Normalize].
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=nf
// +kubebuilder:metadata:annotations="api-approved.kubernetes.io=unapproved, experimental-only"
// +kubebuilder:validation:XValidation:rule="self.metadata.name == 'node-fence-' + self.node",message="the name must be node-fence-NODE, with the name of the node"
// +kubebuilder:printcolumn:name="Step",type=string,JSONPath=`.step`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.state.phase`
// +kubebuilder:printcolumn:name="Proof",type=string,JSONPath=`.state.proof.how`
// +kubebuilder:printcolumn:name="Retries",type=integer,JSONPath=`.retries`
// +kubebuilder:printcolumn:name="Result",type=string,JSONPath=`.state.result`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NodeFence struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// Node is the name of the Node object.
	// +kubebuilder:validation:MaxLength=242
	Node           string `json:"node"`
	fence.Progress `json:",inline"`
	// State has what is needed to continue the fence after a restart. It is absent in objects of other programs.
	// +optional
	State fence.Detail `json:"state,omitzero"`
}

// NodeFenceList is a list of NodeFence objects.
//
// +kubebuilder:object:root=true
type NodeFenceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NodeFence `json:"items"`
}
