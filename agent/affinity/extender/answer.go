package extender

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/evictd/evictd/agent/affinity"
)

// The reasons of nodes, in the form of those of the scheduler, which counts equal ones: 3 node(s) didn't match ….
const (
	reasonMismatch = "node(s) didn't match Pod's annotation " + affinity.Annotation
	reasonUnknown  = "node(s) weren't known to evictd-controller"
	reasonInvalid  = "node(s) couldn't be compared with Pod's annotation: "
)

// maxReasons is the length limit in bytes of the reasons of an answer. Each is cut to its share.
const maxReasons = 1 << 20

// answer is a result of the verb filter, in JSON.
type answer struct {
	// passed are the nodes or names that match, separated by commas, and failed the members of FailedAndUnresolvableNodes.
	passed, failed []byte
	// unknown counts the nodes that the cache does not know.
	unknown int
}

// pass adds a node that matches.
func (a *answer) pass(node ...[]byte) {
	if len(a.passed) > 0 {
		a.passed = append(a.passed, ',')
	}
	for _, part := range node {
		a.passed = append(a.passed, part...)
	}
}

// fail adds a node that does not match, by its name in JSON without quotes and the reason in JSON.
func (a *answer) fail(name, reason []byte) {
	if len(a.failed) > 0 {
		a.failed = append(a.failed, ',')
	}
	a.failed = append(append(append(a.failed, '"'), name...), '"', ':')
	a.failed = append(a.failed, reason...)
}

// reasons are those of an answer, in JSON.
type reasons struct{ mismatch, unknown []byte }

// newReasons returns the reasons for a number of nodes. With the error of an annotation, that is the reason of all.
func newReasons(nodes int, invalid error) reasons {
	mismatch, unknown := reasonMismatch, reasonUnknown
	if invalid != nil {
		mismatch = reasonInvalid + invalid.Error()
		unknown = mismatch
	}
	return reasons{encode(mismatch, nodes), encode(unknown, nodes)}
}

// encode returns a reason in JSON, cut to the share of one of the nodes.
func encode(reason string, nodes int) []byte {
	if share := maxReasons / max(nodes, 1); len(reason) > share {
		reason = strings.ToValidUTF8(reason[:share], "")
	}
	text, _ := json.Marshal(reason) // a string has no value that JSON can't encode
	return text
}

// requirement returns what a pod requires. unrestricted says that it matches all nodes. The error is that of its
// annotation.
func requirement(p *corev1.Pod) (r *affinity.Requirement, unrestricted bool, err error) {
	if _, ok := p.Annotations[affinity.Annotation]; !ok {
		return nil, true, nil
	}
	if owner := metav1.GetControllerOfNoCopy(p); owner != nil && owner.Kind == "DaemonSet" {
		return nil, true, nil
	}
	// The scheduler enforces the rest.
	r, err = affinity.NewRequirement(p)
	return r, false, err
}

// compareNames compares a pod with nodes by their names.
func (a *answer) compareNames(r *affinity.Requirement, invalid error, names []byte, count int, nodes Nodes) {
	why := newReasons(count, invalid)
	for name := range each(names, (*scanner).text) {
		if invalid != nil {
			a.fail(name, why.mismatch)
			continue
		}
		switch n := nodes.Node(unescaped(name)); {
		case n == nil:
			a.unknown++
			a.fail(name, why.unknown)
		case r.MatchesExecution(n):
			a.pass(quote, name, quote)
		default:
			a.fail(name, why.mismatch)
		}
	}
}

var quote = []byte{'"'}

// compareNodes compares a pod with whole nodes, as the scheduler sees them. One at a time is decoded.
func (a *answer) compareNodes(r *affinity.Requirement, invalid error, items []byte, count int) error {
	why := newReasons(count, invalid)
	for item := range each(items, (*scanner).value) {
		n, err := decodeNode(item)
		if err != nil {
			return err
		}
		if invalid == nil && r.MatchesExecution(n) {
			a.pass(item)
			continue
		}
		name, _ := json.Marshal(n.Name) // as above
		a.fail(name[1:len(name)-1], why.mismatch)
	}
	return nil
}

// write sends an answer. field is NodeNames or Nodes, and open and end are what its nodes are between.
func (a *answer) write(w http.ResponseWriter, open, end string) error {
	send(w, http.StatusOK)
	for _, part := range [][]byte{[]byte(open), a.passed, []byte(end), []byte(`,"FailedAndUnresolvableNodes":{`), a.failed, []byte("}}\n")} {
		if _, err := w.Write(part); err != nil {
			return fmt.Errorf("write answer: %w", err)
		}
	}
	return nil
}

// writeAll sends the nodes of the request back.
func writeAll(w http.ResponseWriter, r *request) error {
	send(w, http.StatusOK)
	open, nodes := openNames, r.names
	if nodes == nil {
		open, nodes = openNodes, r.nodes
	}
	for _, part := range [...][]byte{open, nodes, closing} {
		if _, err := w.Write(part); err != nil {
			return fmt.Errorf("write answer: %w", err)
		}
	}
	return nil
}

var (
	openNames, openNodes, closing = []byte(`{"NodeNames":`), []byte(`{"Nodes":`), []byte("}\n")
	contentType                   = []string{"application/json"}
)

func send(w http.ResponseWriter, status int) {
	w.Header()["Content-Type"] = contentType
	w.WriteHeader(status)
}
