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
	// names is the array NodeNames, and nodes the NodeList Nodes. One of them is nil.
	names, nodes []byte
	// count is that of the names.
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
			r.nodes, err = s.nodesOf()
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

// nodesOf reads a NodeList. It returns nil for null.
func (s *scanner) nodesOf() ([]byte, error) {
	if s.null() {
		return nil, nil
	}
	if s.next() != '{' {
		return nil, s.fail()
	}
	return s.value()
}

// eachName yields the names of an array that namesOf returned, as they are written.
func eachName(names []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		s := scanner{data: names}
		_ = s.array(func() error {
			s.next()
			name, err := s.text()
			if err == nil && !yield(name) {
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

// decodeNodes returns the items of a NodeList, and what is compared of each.
func decodeNodes(text []byte) ([]json.RawMessage, []*corev1.Node, error) {
	var list struct {
		Items []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, nil, fmt.Errorf("decode Nodes: %w", err)
	}
	if len(list.Items) > maxNodes {
		return nil, nil, errMany
	}
	nodes := make([]*corev1.Node, 0, len(list.Items))
	for _, item := range list.Items {
		var n struct {
			Metadata struct {
				Name   string            `json:"name"`
				Labels map[string]string `json:"labels"`
			} `json:"metadata"`
		}
		if err := json.Unmarshal(item, &n); err != nil {
			return nil, nil, fmt.Errorf("decode Nodes: %w", err)
		}
		nodes = append(nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Metadata.Name, Labels: n.Metadata.Labels}})
	}
	return list.Items, nodes, nil
}
