package controller

import (
	"fmt"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/evictd/evictd/agent/controller/affinity"
	"github.com/evictd/evictd/agent/controller/serving"
	"github.com/evictd/evictd/agent/fence/nodefence"
	"github.com/evictd/evictd/agent/fence/plan"
)

// cacheOptions restrict the watches: ConfigMaps and Secrets of the controller's namespace only, and of each object only
// what the controller uses. Nodes keep more of it unless affinity is off and schedulers are not served.
func cacheOptions(o *Options) ctrlcache.Options {
	node := stripNode
	if o.Affinity != affinity.Off || o.servesWebhook() {
		node = stripNodeForAffinity
	}
	own := map[string]ctrlcache.Config{o.Namespace: {}}
	options := ctrlcache.Options{
		ReaderFailOnMissingInformer: true,
		ByObject: map[client.Object]ctrlcache.ByObject{
			&corev1.Node{}:         {Transform: strip(node)},
			&nodefence.NodeFence{}: {Transform: strip(func(*nodefence.NodeFence) {})},
			&corev1.ConfigMap{}:    {Transform: strip(func(*corev1.ConfigMap) {}), Namespaces: own},
			&corev1.Secret{}:       {Transform: strip(stripSecret), Namespaces: own},
		},
	}
	if o.keepsCertificate() {
		// The account may watch this one only.
		options.ByObject[&admissionregistrationv1.MutatingWebhookConfiguration{}] = ctrlcache.ByObject{
			Field:     fields.OneTermEqualSelector("metadata.name", serving.ConfigurationName),
			Transform: strip(func(*admissionregistrationv1.MutatingWebhookConfiguration) {}),
		}
	}
	return options
}

// strip returns a transform that calls f and removes what no object is read for.
func strip[T client.Object](f func(T)) cache.TransformFunc {
	return func(object any) (any, error) {
		if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
			object = unknown.Obj
		}
		o, ok := object.(T)
		if !ok {
			return nil, fmt.Errorf("cache: object is %T; want %T", object, o)
		}
		o.SetManagedFields(nil)
		f(o)
		return o, nil
	}
}

// stripNode leaves of a Node what detection, the storm policy, the sweep of taints and the kdump listener need.
func stripNode(n *corev1.Node) {
	stripped := corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion,
		CreationTimestamp: n.CreationTimestamp, DeletionTimestamp: n.DeletionTimestamp,
		Labels: keep(n.Labels, usedLabel), Annotations: keep(n.Annotations, usedAnnotation),
	}}
	stripped.Status.NodeInfo.SystemUUID = n.Status.NodeInfo.SystemUUID
	for _, c := range n.Status.Conditions {
		switch {
		case c.Type == corev1.NodeReady:
			stripped.Status.Conditions = append(stripped.Status.Conditions,
				corev1.NodeCondition{Type: c.Type, Status: c.Status, LastTransitionTime: c.LastTransitionTime})
		case ours(c):
			stripped.Status.Conditions = append(stripped.Status.Conditions,
				corev1.NodeCondition{Type: c.Type, Status: c.Status, Reason: c.Reason, Message: c.Message})
		}
	}
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			stripped.Status.Addresses = append(stripped.Status.Addresses, a)
		}
	}
	*n = stripped
}

// stripNodeForAffinity leaves of a Node also what affinity needs.
func stripNodeForAffinity(n *corev1.Node) {
	whole := *n
	stripNode(n)
	affinity.KeepOfNode(n, &whole)
}

// stripSecret removes the values: those of a Secret are read when a device is opened, and never stored. Their digests
// stay, in a field that the API server leaves empty in all answers: the function may be called again with its result.
func stripSecret(s *corev1.Secret) {
	digests := s.StringData
	if digests == nil {
		digests = make(map[string]string, len(s.Data))
		for key, value := range s.Data {
			digests[key] = plan.ValueDigest(string(s.UID), key, string(value))
		}
	}
	s.StringData = digests
	for key := range s.Data {
		s.Data[key] = nil
	}
	s.Annotations = nil // kubectl apply leaves the values in one
}

func keep(m map[string]string, used func(key string) bool) map[string]string {
	kept := make(map[string]string)
	for k, v := range m {
		if used(k) {
			kept[k] = v
		}
	}
	return kept
}

func usedLabel(key string) bool {
	switch key {
	case corev1.LabelTopologyRegion, corev1.LabelTopologyZone, labelControlPlane, labelMaster, labelExclude:
		return true
	}
	return false
}

func usedAnnotation(key string) bool { return strings.HasPrefix(key, "evictd.io/") }
