package affinity

import (
	"crypto/sha256"
	"encoding/json"
	"runtime"
	"sync"
	"weak"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/evictd/evictd/agent/affinity"
)

// shape is what pods of one template have in common: their requirement, parsed once, and their tolerations.
type shape struct {
	requirement *affinity.Requirement
	tolerations []corev1.Toleration
	// err is that of the annotation.
	err error
}

// shapes has each shape once. One that no pod has any more is removed by the garbage collector.
type shapes struct {
	mu    sync.Mutex
	byKey map[[sha256.Size]byte]weak.Pointer[shape]
}

// of returns the shape of a pod.
func (s *shapes) of(p *corev1.Pod) *shape {
	t := template(p)
	key := keyOf(t)
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.byKey[key].Value(); known != nil {
		return known
	}
	out := &shape{tolerations: t.Spec.Tolerations}
	out.requirement, out.err = affinity.NewSchedulingRequirement(t)
	if s.byKey == nil {
		s.byKey = make(map[[sha256.Size]byte]weak.Pointer[shape])
	}
	s.byKey[key] = weak.Make(out)
	runtime.AddCleanup(out, s.drop, key)
	return out
}

func (s *shapes) drop(key [sha256.Size]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byKey[key].Value() == nil {
		delete(s.byKey, key)
	}
}

// template returns what the shape of a pod depends on. It shares no memory with the pod.
func template(p *corev1.Pod) *corev1.Pod {
	t := &corev1.Pod{Spec: corev1.PodSpec{NodeSelector: p.Spec.NodeSelector, Tolerations: p.Spec.Tolerations}}
	if text, ok := p.Annotations[affinity.Annotation]; ok {
		t.ObjectMeta = metav1.ObjectMeta{Annotations: map[string]string{affinity.Annotation: text}}
	}
	if hasRequired(p) {
		t.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution,
		}}
	}
	return t.DeepCopy()
}

// keyOf returns a hash of a template. JSON sorts the keys of maps.
func keyOf(t *corev1.Pod) [sha256.Size]byte {
	h := sha256.New()
	// These types have no value that JSON can't encode, and a hash has no error.
	_ = json.NewEncoder(h).Encode([]any{t.Annotations, t.Spec.NodeSelector, t.Spec.Affinity, t.Spec.Tolerations})
	return [sha256.Size]byte(h.Sum(nil))
}
