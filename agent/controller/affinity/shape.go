package affinity

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
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

// maxNamespaceText bounds the text of the different requirements and tolerations of the pods of a namespace, in bytes.
// Parsed they need a multiple of it. It is enough for thousands of usual ones.
const maxNamespaceText = 1 << 20

var errTooMuchText = fmt.Errorf("the different requirements and tolerations of the pods of this namespace have more than %d bytes; "+
	"use fewer, or shorter ones", maxNamespaceText)

// shapes has each shape once in a namespace. One that no pod has any more is removed by the garbage collector.
type shapes struct {
	mu    sync.Mutex
	byKey map[shapeKey]weak.Pointer[shape]
	// text counts the bytes of the shapes of a namespace.
	text map[string]int
}

// shapeKey identifies a shape.
type shapeKey struct {
	namespace string
	hash      [sha256.Size]byte
}

// of returns the shape of a pod.
func (s *shapes) of(p *corev1.Pod) *shape {
	t := template(p)
	key, size := keyOf(t)
	key.namespace = intern(p.Namespace)
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.byKey[key].Value(); known != nil {
		return known
	}
	// The text of one that was freed counts until its cleanup has run, which then leaves that to the new one.
	_, counted := s.byKey[key]
	if !counted && s.text[key.namespace]+size > maxNamespaceText {
		return &shape{err: errTooMuchText}
	}
	out := &shape{tolerations: t.Spec.Tolerations}
	out.requirement, out.err = parse(t)
	if s.byKey == nil {
		s.byKey, s.text = make(map[shapeKey]weak.Pointer[shape]), make(map[string]int)
	}
	s.byKey[key] = weak.Make(out)
	if !counted {
		s.text[key.namespace] += size
	}
	runtime.AddCleanup(out, func(key shapeKey) { s.drop(key, size) }, key)
	return out
}

// parse parses the requirement of a template. A panic of a parser is an error: a text must not end the process, which
// also fences nodes.
func parse(t *corev1.Pod) (r *affinity.Requirement, err error) {
	defer func() {
		if p := recover(); p != nil {
			r, err = nil, fmt.Errorf("parser: %v", p)
		}
	}()
	return affinity.NewSchedulingRequirement(t)
}

// violates compares the requirement with a node. One whose comparison panics is not violated.
func (s *shape) violates(n *corev1.Node, enforceIgnored bool) (v affinity.Verdict) {
	defer func() {
		if p := recover(); p != nil {
			v = affinity.Verdict{Match: true}
		}
	}()
	return s.requirement.Violates(n, enforceIgnored)
}

// drop removes a shape of a size that has been freed.
func (s *shapes) drop(key shapeKey, size int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p, counted := s.byKey[key]; !counted || p.Value() != nil {
		return
	}
	delete(s.byKey, key)
	if s.text[key.namespace] -= size; s.text[key.namespace] == 0 {
		delete(s.text, key.namespace)
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

// keyOf returns a hash of a template, and the size of its text. JSON sorts the keys of maps.
func keyOf(t *corev1.Pod) (shapeKey, int) {
	// These types have no value that JSON can't encode.
	text, _ := json.Marshal([]any{t.Annotations, t.Spec.NodeSelector, t.Spec.Affinity, t.Spec.Tolerations})
	return shapeKey{hash: sha256.Sum256(text)}, len(text)
}
