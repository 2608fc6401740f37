package scenario

import (
	"encoding/json"
	"io"
	"iter"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
)

// Header describes the start of a scenario.
type Header struct {
	Pods       []Pod       `json:"pods"`
	Thresholds []Threshold `json:"thresholds"`
}

// Pod is a pod with the values that follow from its resources.
type Pod struct {
	Pod        string      `json:"pod"` // namespace/name
	QoSClass   evict.QoS   `json:"qosClass"`
	Critical   bool        `json:"critical"`
	Containers []Container `json:"containers"` // regular containers, then init containers
}

// Container is a container and the oom_score_adj that the kubelet sets for it.
type Container struct {
	Name        string `json:"name"`
	OOMScoreAdj int    `json:"oomScoreAdj"`
}

// Threshold is a configured or derived threshold.
type Threshold struct {
	Signal      signal.Signal `json:"signal"`
	Operator    string        `json:"operator"` // always LessThan
	Value       string        `json:"value"`    // a quantity, or a percentage as configured
	GracePeriod string        `json:"gracePeriod"`
	MinReclaim  string        `json:"minReclaim"`
}

// Step is the result of one step.
type Step struct {
	At         string              `json:"at"`
	Conditions []signal.Condition  `json:"conditions"` // published after the step
	Met        []signal.Signal     `json:"met"`
	Waiting    []signal.Signal     `json:"waiting"` // met because of file cache, and not acted on yet
	Admission  Admission           `json:"admission"`
	Reclaim    []evict.ReclaimKind `json:"reclaim"`
	Ranking    []string            `json:"ranking"` // namespace/name of pods
	Exempt     []Exempt            `json:"exempt"`
	Added      []Pod               `json:"added"`
	Admitted   map[string]bool     `json:"admitted"` // by namespace/name
	Evictions  []Eviction          `json:"evictions"`
	Errors     []string            `json:"errors"`
}

// Admission says which kinds of new pods, without tolerations, the node accepts.
type Admission struct {
	Critical   bool `json:"critical"`
	Guaranteed bool `json:"Guaranteed"`
	Burstable  bool `json:"Burstable"`
	BestEffort bool `json:"BestEffort"`
}

// Exempt is a pod that can't be evicted, and why.
type Exempt struct {
	Pod    string `json:"pod"`
	Reason string `json:"reason"`
}

// Eviction is an eviction as the pod's status and event show it.
type Eviction struct {
	Pod                string            `json:"pod"`
	Signal             string            `json:"signal"` // or the limit that the pod exceeded
	GracePeriodSeconds int64             `json:"gracePeriodSeconds"`
	Reason             string            `json:"reason"`
	Message            string            `json:"message"`
	Annotations        map[string]string `json:"annotations"`
}

// Header returns the description of the start.
func (s *Scenario) Header() Header {
	h := Header{Pods: s.describe(s.pods), Thresholds: []Threshold{}}
	for _, t := range s.policy.Thresholds {
		h.Thresholds = append(h.Thresholds, Threshold{
			Signal: t.Signal, Operator: "LessThan", Value: t.Value.String(),
			GracePeriod: t.Grace.String(), MinReclaim: t.MinReclaim.String(),
		})
	}
	return h
}

// Replay yields the result of each step in order. Every call replays from the start.
func (s *Scenario) Replay() iter.Seq[Step] {
	return func(yield func(Step) bool) {
		r := s.begin()
		for i := range s.steps {
			if !yield(r.step(&s.steps[i])) {
				return
			}
		}
	}
}

// WriteJSON replays the scenario as JSON lines: the header, then the steps.
func (s *Scenario) WriteJSON(w io.Writer) error {
	return writeJSON(w, s.Header(), s.Replay())
}

// writeJSON writes a header and steps as JSON lines.
func writeJSON[S any](w io.Writer, header any, steps iter.Seq[S]) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	if err := e.Encode(header); err != nil {
		return err
	}
	for step := range steps {
		if err := e.Encode(step); err != nil {
			return err
		}
	}
	return nil
}

func (s *Scenario) describe(pods []pod) []Pod {
	described := make([]Pod, 0, len(pods))
	for i := range pods {
		p := &pods[i]
		one := Pod{Pod: p.Key(), QoSClass: p.QoSClass(), Critical: p.Critical(), Containers: []Container{}}
		for _, cs := range [][]evict.Container{p.Containers, p.InitContainers} {
			for j := range cs {
				one.Containers = append(one.Containers, Container{Name: cs[j].Name, OOMScoreAdj: p.OOMScoreAdj(&cs[j], s.oomCapacity)})
			}
		}
		described = append(described, one)
	}
	return described
}

func newStep(at time.Duration) Step {
	return Step{
		At: at.String(), Conditions: []signal.Condition{}, Met: []signal.Signal{}, Waiting: []signal.Signal{}, Reclaim: []evict.ReclaimKind{},
		Ranking: []string{}, Exempt: []Exempt{}, Added: []Pod{}, Admitted: map[string]bool{}, Evictions: []Eviction{}, Errors: []string{},
	}
}

// add adds the orders of one call of evict.Step to the result. Only the first call of a
// step adds what was observed; the others follow its reclaims.
func (s *Step) add(o *evict.Orders, first bool) {
	if first {
		s.Conditions = append(s.Conditions, o.Conditions...)
		s.Met = append(s.Met, o.Met...)
		for _, met := range o.Met {
			if slices.ContainsFunc(o.Waiting, func(k evict.ThresholdKey) bool { return k.Signal == met }) {
				s.Waiting = append(s.Waiting, met)
			}
		}
		for _, unreadable := range o.Unreadable {
			s.Errors = append(s.Errors, unreadable.String()+": unreadable")
		}
	}
	if o.Reclaim != nil {
		s.Reclaim = append(s.Reclaim, o.Reclaim.Kind)
	}
	if len(o.Ranking)+len(o.Exempt) > 0 {
		s.Ranking, s.Exempt = s.Ranking[:0], s.Exempt[:0]
	}
	for i := range o.Ranking {
		s.Ranking = append(s.Ranking, o.Ranking[i].Pod)
	}
	for i := range o.Exempt {
		s.Exempt = append(s.Exempt, Exempt{Pod: o.Exempt[i].Pod, Reason: o.Exempt[i].Reason})
	}
	for i := range o.Evict {
		e := &o.Evict[i]
		annotations := e.Annotations
		if annotations == nil {
			annotations = map[string]string{}
		}
		s.Evictions = append(s.Evictions, Eviction{
			Pod: e.Pod, Signal: e.Cause, GracePeriodSeconds: int64(e.Grace / time.Second),
			Reason: e.Reason, Message: e.Message, Annotations: annotations,
		})
	}
}

// describePods describes the pods that the step adds, and sets which new pods the node
// accepts under the conditions after the step.
func (s *Step) describePods(of *Scenario, st *step) {
	s.Added = append(s.Added, of.describe(st.add)...)
	admit := func(p *evict.Pod) bool { return evict.Admit(s.Conditions, p) }
	s.Admission = Admission{
		Critical:   admit(&evict.Pod{Static: true}),
		Guaranteed: admit(&evict.Pod{QoS: evict.Guaranteed}),
		Burstable:  admit(&evict.Pod{QoS: evict.Burstable}),
		BestEffort: admit(&evict.Pod{QoS: evict.BestEffort}),
	}
	for i := range st.admit {
		s.Admitted[st.admit[i].Key()] = admit(&st.admit[i].Pod)
	}
}
