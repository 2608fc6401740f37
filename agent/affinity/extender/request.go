package extender

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/evictd/evictd/agent/affinity"
)

// maxNodes is how many nodes a request may have. Kubernetes supports 5,000 in a cluster.
const maxNodes = 50_000

// request is what the scheduler asks, in the JSON of the request.
type request struct {
	// pod is the Pod, and annotated whether it has the annotation.
	pod       []byte
	annotated bool
	// names is the array NodeNames, nodes the NodeList Nodes, and items its array. The scheduler sends names or nodes.
	names, nodes, items []byte
	// count is that of the names, or else of the items.
	count int
}

var (
	errNoPod   = errors.New("no Pod")
	errNoNodes = errors.New("neither NodeNames nor Nodes")
	errMany    = fmt.Errorf("more than %d nodes", maxNodes)
)

// parse returns the request of a body. It does not allocate.
func parse(body []byte) (request, error) {
	var r request
	items := 0
	s := scanner{data: body}
	err := s.object(func(key []byte) error {
		var err error
		switch {
		case is(key, "Pod"):
			if r.pod != nil {
				return fmt.Errorf("two fields Pod: %w", s.fail())
			}
			r.pod, r.annotated, err = s.podOf()
		case is(key, "NodeNames"):
			if r.names != nil {
				return fmt.Errorf("two fields NodeNames: %w", s.fail())
			}
			r.names, r.count, err = s.namesOf()
		case is(key, "Nodes"):
			if r.nodes != nil {
				return fmt.Errorf("two fields Nodes: %w", s.fail())
			}
			r.nodes, r.items, items, err = s.nodesOf()
		default:
			_, err = s.value()
		}
		return err
	})
	if err == nil {
		err = s.end()
	}
	switch {
	case err != nil:
	case r.pod == nil:
		err = errNoPod
	case r.names == nil && r.nodes == nil:
		err = errNoNodes
	case r.names == nil:
		r.count = items
	}
	return r, err
}

// null skips the literal null, and reports whether it is the next value.
func (s *scanner) null() bool { return s.next() == 'n' && s.literal("null") == nil }

// podOf reads a Pod and reports whether it has the annotation. It returns nil for null.
func (s *scanner) podOf() (pod []byte, annotated bool, err error) {
	if s.null() {
		return nil, false, nil
	}
	s.next()
	begin := s.at
	err = s.object(func(key []byte) error {
		if !is(key, "metadata") || s.next() != '{' {
			_, err := s.value()
			return err
		}
		return s.object(func(key []byte) error {
			if !is(key, "annotations") || s.next() != '{' {
				_, err := s.value()
				return err
			}
			return s.object(func(key []byte) error {
				annotated = annotated || is(key, affinity.Annotation)
				_, err := s.value()
				return err
			})
		})
	})
	return s.data[begin:s.at], annotated, err
}

// namesOf reads an array of names and returns how many it has. It returns nil for null.
func (s *scanner) namesOf() (names []byte, count int, err error) {
	if s.null() {
		return nil, 0, nil
	}
	s.next()
	begin := s.at
	err = s.array(func() error {
		if s.next() != '"' {
			return s.fail()
		}
		if count++; count > maxNodes {
			return errMany
		}
		_, err := s.text()
		return err
	})
	return s.data[begin:s.at], count, err
}

// nodesOf reads a NodeList, and returns its array of items, and how many it has. It returns nil for null.
func (s *scanner) nodesOf() (nodes, items []byte, count int, err error) {
	if s.null() {
		return nil, nil, 0, nil
	}
	s.next()
	begin := s.at
	err = s.object(func(key []byte) error {
		if !is(key, "items") || s.next() != '[' {
			_, err := s.value()
			return err
		}
		first := s.at
		count = 0
		err := s.array(func() error {
			if count++; count > maxNodes {
				return errMany
			}
			_, err := s.value()
			return err
		})
		items = s.data[first:s.at]
		return err
	})
	return s.data[begin:s.at], items, count, err
}

// each yields the elements of an array that was read before, as read reads one of them.
func each(array []byte, read func(*scanner) ([]byte, error)) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		s := scanner{data: array}
		_ = s.array(func() error {
			s.next()
			element, err := read(&s)
			if err == nil && !yield(element) {
				return s.fail()
			}
			return err
		})
	}
}

// decodePod returns what is compared of a Pod.
func decodePod(text []byte) (*corev1.Pod, error) {
	var p struct {
		Metadata struct {
			Annotations     map[string]string       `json:"annotations"`
			OwnerReferences []metav1.OwnerReference `json:"ownerReferences"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(text, &p); err != nil {
		return nil, fmt.Errorf("decode Pod: %w", err)
	}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Annotations: p.Metadata.Annotations, OwnerReferences: p.Metadata.OwnerReferences,
	}}, nil
}

// decodeNode returns what is compared of a Node.
func decodeNode(text []byte) (*corev1.Node, error) {
	var n struct {
		Metadata struct {
			Name   string            `json:"name"`
			Labels map[string]string `json:"labels"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(text, &n); err != nil {
		return nil, fmt.Errorf("decode Nodes: %w", err)
	}
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Metadata.Name, Labels: n.Metadata.Labels}}, nil
}
