package kube

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
)

// maxName bounds names: 253 characters are the longest that Kubernetes allows.
const maxName = 253

// Pod has the facts about one pod. Amounts are Kubernetes quantities.
type Pod struct {
	UID       string `json:"uid"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Reduced is set if parts were left out because the facts were too large or not valid.
	Reduced bool `json:"reduced,omitempty"`
	// Started is set if containers of the pod have started. It is not sent: evictd-kube sends
	// the facts about these pods first.
	Started bool `json:"-"`

	Labels            map[string]string `json:"labels,omitempty"`
	Priority          int32             `json:"priority"`
	PriorityClassName string            `json:"priorityClassName,omitempty"`
	Owner             Owner             `json:"owner,omitzero"` // the controller
	QoS               evict.QoS         `json:"qos,omitempty"`
	// Exclusive is the reason why two instances of the pod must not run at the same time, one
	// of those below; empty if they may.
	Exclusive          string       `json:"exclusive,omitempty"`
	RestartPolicy      string       `json:"restartPolicy,omitempty"`
	TerminationSeconds *int64       `json:"terminationGracePeriodSeconds,omitempty"`
	Tolerations        []Toleration `json:"tolerations,omitempty"`
	Phase              string       `json:"phase,omitempty"`
	// Deleted is the deletionTimestamp: when the grace period ends with which the pod was deleted.
	Deleted time.Time `json:"deletionTimestamp,omitzero"`
	// Bound is when the pod was bound to its node.
	Bound time.Time `json:"bound,omitzero"`

	// Resources and Overhead are those of the pod as a whole.
	Resources           Resources   `json:"resources,omitzero"`
	Overhead            Amounts     `json:"overhead,omitzero"`
	Containers          []Container `json:"containers"`
	InitContainers      []Container `json:"initContainers,omitempty"`
	EphemeralContainers []string    `json:"ephemeralContainers,omitempty"`
	Volumes             []Volume    `json:"volumes,omitempty"`
}

// Owner is the controller of a pod.
type Owner struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
}

// Container is a container of a pod.
type Container struct {
	Name      string    `json:"name"`
	Resources Resources `json:"resources,omitzero"`
	// Sidecar is set for an init container with restartPolicy Always.
	Sidecar bool `json:"sidecar,omitempty"`
}

// Resources are requests and limits. During a resize they are the allocated ones.
type Resources struct {
	Requests Amounts `json:"requests,omitzero"`
	Limits   Amounts `json:"limits,omitzero"`
}

// Amounts are quantities of the resources that eviction uses; empty means absent.
type Amounts struct {
	CPU              string `json:"cpu,omitempty"`
	Memory           string `json:"memory,omitempty"`
	EphemeralStorage string `json:"ephemeralStorage,omitempty"`
}

// Toleration is a toleration of a taint.
type Toleration struct {
	Key      string `json:"key,omitempty"`
	Operator string `json:"operator,omitempty"`
	Value    string `json:"value,omitempty"`
	Effect   string `json:"effect,omitempty"`
}

// Volume is a volume on the node's own filesystem.
type Volume struct {
	Name      string           `json:"name"`
	Type      evict.VolumeType `json:"type"`
	Medium    string           `json:"medium,omitempty"`
	SizeLimit string           `json:"sizeLimit,omitempty"`
}

// The reasons why two instances of a pod must not run at the same time.
const (
	ExclusiveAnnotation    = "annotation evictd.io/exclusive"
	ExclusiveStatefulSet   = "StatefulSet"
	ExclusiveJob           = "Job"
	ExclusiveClaim         = "persistent volume claim"
	ExclusiveResourceClaim = "resource claim"
	ExclusiveHostPort      = "host port"
	ExclusiveExtended      = "extended resource"
	// ExclusiveUnknown is that of an Order for a pod without facts. No fact has it.
	ExclusiveUnknown = "unknown"
)

// key returns namespace/name, to be shown.
func (p *Pod) key() string { return printable(p.Namespace + "/" + p.Name) }

// parse validates the facts and converts them.
func (p *Pod) parse() (*evict.Pod, error) {
	if n := p.cost(); n > maxPodSize {
		return nil, fmt.Errorf("facts take %d bytes of memory; want at most %d", n, maxPodSize)
	}
	return p.convert()
}

// convert returns the facts as the decision uses them, without what the runtime reports.
func (p *Pod) convert() (*evict.Pod, error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	var q quantities
	pod := &evict.Pod{
		UID: p.UID, Namespace: p.Namespace, Name: p.Name, Labels: p.Labels,
		Priority: new(p.Priority), PriorityClassName: p.PriorityClassName,
		DaemonSet: p.Owner.Kind == "DaemonSet", TerminationGraceSeconds: p.TerminationSeconds, QoS: p.QoS,
		Ending: !p.Deleted.IsZero(), EndsBy: p.Deleted,
		Resources: q.resources("resources", p.Resources), Overhead: q.amounts("overhead", p.Overhead),
		Containers: q.containers("containers", p.Containers), InitContainers: q.containers("initContainers", p.InitContainers),
	}
	if len(p.Containers) == 1 && p.Containers[0].Name == allContainers {
		pod.Resources, pod.Containers, pod.SummedRequests = pod.Containers[0].Resources, nil, true
	}
	pod.EphemeralContainers = slices.Grow(pod.EphemeralContainers, len(p.EphemeralContainers))
	for _, name := range p.EphemeralContainers {
		pod.EphemeralContainers = append(pod.EphemeralContainers, evict.Container{Name: name})
	}
	pod.Tolerations = slices.Grow(pod.Tolerations, len(p.Tolerations))
	for _, t := range p.Tolerations {
		pod.Tolerations = append(pod.Tolerations, evict.Toleration(t))
	}
	pod.Volumes = slices.Grow(pod.Volumes, len(p.Volumes))
	for i, v := range p.Volumes {
		pod.Volumes = append(pod.Volumes, evict.Volume{
			Name: v.Name, Type: v.Type, Medium: v.Medium, SizeLimit: q.amount(fmt.Sprintf("volumes[%d].sizeLimit", i), v.SizeLimit),
		})
	}
	return pod, q.err
}

// check validates everything but the quantities.
func (p *Pod) check() error {
	for _, f := range []struct {
		field, value string
		empty        bool
	}{
		{"uid", p.UID, false}, {"namespace", p.Namespace, false}, {"name", p.Name, false}, {"owner.kind", p.Owner.Kind, true},
		{"owner.name", p.Owner.Name, true}, {"priorityClassName", p.PriorityClassName, true},
	} {
		if !IsName(f.value) && !(f.empty && f.value == "") {
			return fmt.Errorf("%s %.60q is not a name", f.field, f.value)
		}
	}
	if s := p.TerminationSeconds; s != nil && *s < 0 {
		return fmt.Errorf("terminationGracePeriodSeconds is %d", *s)
	}
	if err := oneOf("qos", string(p.QoS), string(evict.Guaranteed), string(evict.Burstable), string(evict.BestEffort)); err != nil {
		return err
	}
	if err := oneOf("restartPolicy", p.RestartPolicy, "Always", "OnFailure", "Never"); err != nil {
		return err
	}
	if err := checkPhase(p.Phase); err != nil {
		return err
	}
	if err := oneOf("exclusive", p.Exclusive, ExclusiveAnnotation, ExclusiveStatefulSet, ExclusiveJob, ExclusiveClaim,
		ExclusiveResourceClaim, ExclusiveHostPort, ExclusiveExtended); err != nil {
		return err
	}
	for _, t := range []time.Time{p.Deleted, p.Bound} {
		if _, offset := t.Zone(); offset != 0 {
			return errors.New("deletionTimestamp is not in UTC, or bound is not") // each offset takes memory, and can lead to a year that JSON can't have
		}
	}
	if len(p.Containers) == 0 {
		return errors.New("no containers")
	}
	for _, cs := range [][]Container{p.Containers, p.InitContainers} {
		for _, c := range cs {
			if !IsName(c.Name) {
				return fmt.Errorf("container name %.60q is not a name", c.Name)
			}
		}
	}
	return p.checkTexts()
}

// checkTexts validates the texts that may be more than names.
func (p *Pod) checkTexts() error {
	for key, value := range p.Labels {
		if !isPlain(key) || !isPlain(value) {
			return fmt.Errorf("label %.60q is not plain text", key)
		}
	}
	for i, t := range p.Tolerations {
		if !t.valid() {
			return fmt.Errorf("tolerations[%d] is not plain text", i)
		}
	}
	for i, v := range p.Volumes {
		if !v.valid() {
			return fmt.Errorf("volumes[%d] is not plain text", i)
		}
	}
	for i, name := range p.EphemeralContainers {
		if !isPlain(name) {
			return fmt.Errorf("ephemeralContainers[%d] is not plain text", i)
		}
	}
	return nil
}

// clean returns the facts without values that check refuses and that a tenant may be able to
// choose: the API server does not validate each of them. No tenant can thereby write a pod
// without facts.
func (p *Pod) clean() *Pod {
	c := *p
	c.Labels = maps.Clone(p.Labels)
	maps.DeleteFunc(c.Labels, func(key, value string) bool { return !isPlain(key) || !isPlain(value) })
	c.Tolerations = slices.DeleteFunc(slices.Clone(p.Tolerations), func(t Toleration) bool { return !t.valid() })
	c.Volumes = slices.DeleteFunc(slices.Clone(p.Volumes), func(v Volume) bool { return !v.valid() })
	c.EphemeralContainers = slices.DeleteFunc(slices.Clone(p.EphemeralContainers), func(name string) bool { return !isPlain(name) })
	c.Reduced = c.Reduced || len(c.Labels) < len(p.Labels) || len(c.Tolerations) < len(p.Tolerations) ||
		len(c.Volumes) < len(p.Volumes) || len(c.EphemeralContainers) < len(p.EphemeralContainers)
	if checkPhase(c.Phase) != nil {
		c.Phase = ""
	}
	return &c
}

func (t Toleration) valid() bool {
	return isPlain(t.Key) && isPlain(t.Operator) && isPlain(t.Value) && isPlain(t.Effect)
}

func (v Volume) valid() bool {
	return isPlain(v.Name) && isPlain(string(v.Type)) && isPlain(v.Medium)
}

func checkPhase(phase string) error {
	return oneOf("phase", phase, "Pending", "Running", "Succeeded", "Failed", "Unknown")
}

func oneOf(field, value string, allowed ...string) error {
	for _, a := range allowed {
		if value == a || value == "" {
			return nil
		}
	}
	return fmt.Errorf("%s is %.60q; want one of %s", field, value, strings.Join(allowed, ", "))
}

// IsName reports whether s can be a name or UID in Kubernetes: letters, digits and a
// few other characters, none of which needs quoting.
func IsName(s string) bool {
	if s == "" || len(s) > maxName {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '.', c == '_', c == ':':
		default:
			return false
		}
	}
	return true
}

// maxPlain bounds plain text: a qualified name is a prefix of 253 characters, a slash and 63
// more.
const maxPlain = 317

// isPlain reports whether s is plain text: printable ASCII in which JSON needs no escapes.
func isPlain(s string) bool {
	if len(s) > maxPlain {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case c < ' ', c > '~', c == '"', c == '\\', c == '<', c == '>', c == '&':
			return false
		}
	}
	return true
}

// quantities parses quantities; err is the first error.
type quantities struct{ err error }

func (q *quantities) amount(field, text string) *resource.Quantity {
	if text == "" {
		return nil
	}
	n, err := signal.ParseQuantity(text)
	if err == nil && n.Sign() < 0 {
		err = fmt.Errorf("%q is negative", text)
	}
	if err != nil {
		q.err = cmp.Or(q.err, fmt.Errorf("%s: %w", field, err))
		return nil
	}
	return &n
}

func (q *quantities) amounts(field string, a Amounts) evict.Amounts {
	return evict.Amounts{
		CPU: q.amount(field+".cpu", a.CPU), Memory: q.amount(field+".memory", a.Memory),
		EphemeralStorage: q.amount(field+".ephemeralStorage", a.EphemeralStorage),
	}
}

func (q *quantities) resources(field string, r Resources) evict.Resources {
	return evict.Resources{Requests: q.amounts(field+".requests", r.Requests), Limits: q.amounts(field+".limits", r.Limits)}
}

func (q *quantities) containers(field string, cs []Container) (list []evict.Container) {
	list = slices.Grow(list, len(cs))
	for _, c := range cs {
		list = append(list, evict.Container{Name: c.Name, Resources: q.resources(field+"."+c.Name, c.Resources), Sidecar: c.Sidecar})
	}
	return list
}
