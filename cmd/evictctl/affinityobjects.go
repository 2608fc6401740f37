package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/evictd/evictd/agent/affinity"
)

// affinityPod is a pod, or the template of a workload's pods, of a file.
type affinityPod struct {
	place       string // "pod.yaml:1"
	name        string // "Deployment default/web"
	requirement *affinity.Requirement
	preferred   *affinity.Preferred
	differences []affinity.Difference
}

// affinityReader collects pods and nodes of files, and the problems and warnings about them.
type affinityReader struct {
	stdin     io.Reader
	stdinRead bool
	pods      []affinityPod
	nodes     []*corev1.Node
	problems  []string
	warnings  []string
}

// templates are the kinds with pods: the API version, and the path of the pod's template in the object.
var templates = map[string]struct {
	apiVersion string
	path       []string
}{
	"Pod":                   {"v1", nil},
	"ReplicationController": {"v1", []string{"spec", "template"}},
	"Deployment":            {"apps/v1", []string{"spec", "template"}},
	"StatefulSet":           {"apps/v1", []string{"spec", "template"}},
	"DaemonSet":             {"apps/v1", []string{"spec", "template"}},
	"ReplicaSet":            {"apps/v1", []string{"spec", "template"}},
	"Job":                   {"batch/v1", []string{"spec", "template"}},
	"CronJob":               {"batch/v1", []string{"spec", "jobTemplate", "spec", "template"}},
}

// loadAffinity reads the pods of files and the nodes of others. All problems are returned as one inputError.
func loadAffinity(stdin io.Reader, podFiles, nodeFiles []string) (*affinityReader, error) {
	r := &affinityReader{stdin: stdin}
	for _, file := range podFiles {
		r.read(file, r.addPod)
	}
	for _, file := range nodeFiles {
		r.read(file, r.addNode)
	}
	if len(r.problems) == 0 {
		if len(r.pods) == 0 {
			r.problemf("the files of -f have no pods and no workloads with pods; write a Pod, or one of %s",
				strings.Join(slices.Sorted(maps.Keys(templates)), ", "))
		}
		if len(r.nodes) == 0 {
			r.problemf("the files of --node have no nodes; write a Node")
		}
	}
	if len(r.problems) > 0 {
		return r, &inputError{problems: r.problems}
	}
	slices.SortStableFunc(r.nodes, func(a, b *corev1.Node) int { return cmp.Compare(a.Name, b.Name) })
	return r, nil
}

func (r *affinityReader) problemf(format string, args ...any) {
	r.problems = append(r.problems, fmt.Sprintf(format, args...))
}

func (r *affinityReader) warnf(format string, args ...any) {
	r.warnings = append(r.warnings, fmt.Sprintf(format, args...))
}

// read gives the objects of a file, - for the standard input, to add.
func (r *affinityReader) read(file string, add func(file string, n *yaml.Node, kind string)) {
	text, err := r.text(file)
	if err != nil {
		r.problemf("%v", err)
		return
	}
	if file == "-" {
		file = "stdin"
	}
	for documents := yaml.NewDecoder(bytes.NewReader(text)); ; {
		root, err := decodeDocument(documents)
		switch {
		case errors.Is(err, io.EOF):
			return
		case err != nil:
			r.problemf("%s: %v; correct it", file, err)
			return
		}
		for _, n := range root.Content {
			r.object(file, n, add)
		}
	}
}

func (r *affinityReader) text(file string) ([]byte, error) {
	switch {
	case file != "-":
		return readObjects(file)
	case r.stdinRead:
		return nil, errors.New("read stdin: - is given twice; give it once")
	}
	r.stdinRead = true
	return limitObjects("stdin", r.stdin)
}

// decodeDocument returns the next document. The YAML library panics on a few inputs that it considers impossible.
func decodeDocument(documents *yaml.Decoder) (root *yaml.Node, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("yaml: %v", p)
		}
	}()
	root = &yaml.Node{}
	return root, documents.Decode(root)
}

// object gives an object, or those of a list, to add.
func (r *affinityReader) object(file string, n *yaml.Node, add func(file string, n *yaml.Node, kind string)) {
	n = dealias(n)
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		return
	}
	kind := child(n, "kind")
	switch {
	case n.Kind != yaml.MappingNode:
		r.problemf("%s:%d: is not a Kubernetes object; write a map with apiVersion and kind", file, n.Line)
	case kind == nil || kind.Kind != yaml.ScalarNode || kind.Value == "":
		r.problemf("%s:%d: has no kind; write a Kubernetes object", file, n.Line)
	case strings.HasSuffix(kind.Value, "List"):
		items := child(n, "items")
		if items == nil || items.Kind != yaml.SequenceNode {
			r.problemf("%s:%d: a %s has no list of items; write one", file, n.Line, kind.Value)
			return
		}
		for _, item := range items.Content {
			r.object(file, item, add)
		}
	default:
		add(file, n, kind.Value)
	}
}

// addPod adds a pod, or the pods of a workload. Other kinds are skipped with a warning.
func (r *affinityReader) addPod(file string, n *yaml.Node, kind string) {
	t, known := templates[kind]
	if !known {
		r.warnf("%s:%d: %s is skipped: it is no pod and no workload with pods", file, n.Line, kind)
		return
	}
	template := descend(n, t.path...)
	inline, ok := r.inlinePreferences(file, descend(template, "spec", "affinity", "nodeAffinity", preferredField))
	if !ok {
		return
	}
	object := r.decode(file, n, kind, t.apiVersion)
	if object == nil {
		return
	}
	pod, owner := podOf(object)
	if pod == nil {
		r.problemf("%s:%d: %s has no spec.template; write one", file, n.Line, kind)
		return
	}
	p := affinityPod{
		place: fmt.Sprintf("%s:%d", file, n.Line),
		name: kind + " " + cmp.Or(owner.GetNamespace(), metav1.NamespaceDefault) + "/" +
			cmp.Or(owner.GetName(), owner.GetGenerateName(), "-"),
	}
	if _, ok := owner.GetAnnotations()[affinity.Annotation]; ok && len(t.path) > 0 {
		r.warnf("%s:%d: annotation %s of the %s itself has no effect; write it in %s.metadata.annotations",
			file, n.Line, affinity.Annotation, kind, strings.Join(t.path, "."))
	}
	var err error
	if p.requirement, err = affinity.NewSchedulingRequirement(pod); err != nil {
		r.annotationProblems(file, descend(template, "metadata", "annotations", affinity.Annotation), err)
		return
	}
	if p.preferred, err = affinity.NewPreferred(pod); err != nil {
		path, _, _ := strings.Cut(err.Error(), ":")
		r.problemf("%s:%d: %v", file, lineOf(template, path), err)
		return
	}
	p.differences = append(affinity.Differences(pod), inline...)
	r.pods = append(r.pods, p)
}

// podOf returns the pod of an object, nil if there is no template, and the object's metadata.
func podOf(object runtime.Object) (*corev1.Pod, metav1.Object) {
	template := func(t *corev1.PodTemplateSpec) *corev1.Pod {
		if t == nil {
			return nil
		}
		return &corev1.Pod{ObjectMeta: t.ObjectMeta, Spec: t.Spec}
	}
	switch o := object.(type) {
	case *corev1.Pod:
		return o, o
	case *corev1.ReplicationController:
		return template(o.Spec.Template), o
	case *appsv1.Deployment:
		return template(&o.Spec.Template), o
	case *appsv1.StatefulSet:
		return template(&o.Spec.Template), o
	case *appsv1.DaemonSet:
		return template(&o.Spec.Template), o
	case *appsv1.ReplicaSet:
		return template(&o.Spec.Template), o
	case *batchv1.Job:
		return template(&o.Spec.Template), o
	case *batchv1.CronJob:
		return template(&o.Spec.JobTemplate.Spec.Template), o
	}
	return nil, &metav1.ObjectMeta{}
}

// addNode adds a node. Other kinds are skipped with a warning.
func (r *affinityReader) addNode(file string, n *yaml.Node, kind string) {
	if kind != "Node" {
		r.warnf("%s:%d: %s is skipped: it is no Node", file, n.Line, kind)
		return
	}
	node, _ := r.decode(file, n, kind, "v1").(*corev1.Node)
	switch {
	case node == nil:
	case node.Name == "":
		r.problemf("%s:%d: Node has no metadata.name; write one", file, n.Line)
	default:
		r.nodes = append(r.nodes, node)
	}
}

// annotationProblems reports the problems of an annotation with the lines of the file. The text of a literal block
// begins in the line after its key; within other scalars only the line of the key is known.
func (r *affinityReader) annotationProblems(file string, n *yaml.Node, err error) {
	var problems *affinity.AnnotationError
	if n == nil || !errors.As(err, &problems) {
		r.problemf("%s: %v", file, err)
		return
	}
	for _, p := range problems.Problems {
		line := n.Line
		if n.Style&yaml.LiteralStyle != 0 && p.Line > 0 {
			line += p.Line
			p.Line, p.Column = 0, 0
		}
		r.problemf("%s:%d: annotation %s: %s", file, line, affinity.Annotation, p)
	}
}
