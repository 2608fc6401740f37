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
	"crypto/sha256"
	"encoding/hex"

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

const (
	namePrefix = "node-fence-"
	// maxName is the length of the longest name that the API server accepts, maxWhole that of the longest name of a node
	// that fits into it.
	maxName, maxWhole = 253, maxName - len(namePrefix)
	// maxCut is the length of what is left of a longer one, before a hash of it.
	maxCut = maxWhole - 2*hashBytes
	// hashBytes is the number of bytes of the hash, which has two digits for each.
	hashBytes = 8
)

// ObjectName returns the name of the NodeFence of a node: node-fence-NODE. A NODE of more than 242 characters does not
// fit into the name of an object: its first 226, and 16 hexadecimal digits of its SHA-256, stand for it.
func ObjectName(node string) string {
	if len(node) <= maxWhole {
		return namePrefix + node
	}
	hash := sha256.Sum256([]byte(node))
	return namePrefix + node[:maxCut] + hex.EncodeToString(hash[:hashBytes])
}

// NodeFence is a fence: the UID of the object identifies it. There is no status subresource: step and state must be
// written at once.
//
// The API server accepts any step and status, because other programs write them in other spellings: see
// [NodeFence.Normalize].
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=nf
// +kubebuilder:metadata:annotations="api-approved.kubernetes.io=unapproved, experimental-only"
// +kubebuilder:validation:XValidation:rule="size(self.node) > 242 ? size(self.metadata.name) == 253 && self.metadata.name.startsWith('node-fence-' + self.node.substring(0, 226)) : self.metadata.name == 'node-fence-' + self.node",message="the name must be node-fence-NODE, with the name of the node"
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
	// +kubebuilder:validation:MaxLength=253
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
