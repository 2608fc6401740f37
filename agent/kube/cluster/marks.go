package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/evictd/evictd/agent/kube"
	"github.com/evictd/evictd/agent/selffence"
)

// The back-off after marks could not be written. evictd makes a new advert long before the longest one.
const firstMarksBackoff, longestMarksBackoff = 200 * time.Millisecond, 10 * time.Second

// maxMarksRaces is how often marks are written again at once after another client has changed them.
const maxMarksRaces = 3

// marksAnswers takes the answers to marks. [kube.Feed] implements it.
type marksAnswers interface {
	ReportMarks(r *kube.MarksReport)
}

// Marks writes evictd's marks to the annotations of the Node object. It implements [kube.MarksHandler].
//
// Each write tests the values that it replaces, as they were in the last read or write: of two requests from the same
// value the API server carries out one, however late the other one arrives. evictd relies on that when it disarms the
// watchdog.
type Marks struct {
	node    string
	answers marksAnswers
	log     *slog.Logger
	wake    chan struct{}

	mu         sync.Mutex
	connection *connection     // nil before the first
	want       *kube.NodeMarks // nil while there is no session
	written    *kube.NodeMarks // the last that were written
	reach      reach
}

// NewMarks returns Marks for a node. Its answers go to a [kube.Feed].
func NewMarks(node string, answers marksAnswers, log *slog.Logger) *Marks {
	return &Marks{node: node, answers: answers, log: log, wake: make(chan struct{}, 1), reach: reach{contact: time.Now()}}
}

// SetMarks implements kube.MarksHandler.
func (m *Marks) SetMarks(want *kube.NodeMarks) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.want = want
	m.reach.set(want, m.written, time.Now())
	m.notify()
}

// connected makes c the connection for all further requests.
func (m *Marks) connected(c *client, reload func(error)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.connection = &connection{c, reload}
	m.notify()
}

func (m *Marks) notify() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// next returns what is to be written and with which connection; nil if there is nothing to do.
func (m *Marks) next() (*connection, *kube.NodeMarks) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.connection == nil || m.want == m.written {
		return nil, nil
	}
	return m.connection, m.want
}

// Run writes the marks until ctx ends.
func (m *Marks) Run(ctx context.Context) {
	var known *marksObject // the Node as it was last read or written; nil if it must be read
	backoff := firstMarksBackoff
	retry := time.NewTimer(0)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.wake:
		case <-retry.C:
		}
		c, want := m.next()
		if want == nil {
			continue
		}
		if m.Reach().Votes {
			known = nil // the node sends no advert that it does not know to be answered: see agent/selffence/peers
		}
		after, err := c.mark(ctx, m.node, known, want, m.touch)
		if ctx.Err() != nil {
			return
		}
		if answered(err) {
			m.touch()
		}
		if known = after; err != nil {
			m.log.Debug("could not write the marks of the Node; trying again", "node", m.node, "error", err)
			reason := c.explainMarks(m.node, err)
			c.renew(reason)
			m.answers.ReportMarks(&kube.MarksReport{Number: want.Number, Why: oneLine(reason.Error())})
			retry.Reset(backoff/2 + rand.N(backoff/2))
			backoff = min(2*backoff, longestMarksBackoff)
			continue
		}
		backoff = firstMarksBackoff
		m.answers.ReportMarks(&kube.MarksReport{Number: want.Number})
		m.mu.Lock()
		m.written = want
		m.reach.set(m.want, m.written, time.Now())
		m.mu.Unlock()
	}
}

// errNewerAdvert is returned if the Node has an advert that a later session has written.
var errNewerAdvert = errors.New("the Node has a newer advert of this boot: another evictd-kube writes for this node")

// errUnknownVersion is returned if the Node must be read before a mark is added.
var errUnknownVersion = errors.New("resource version of the Node is not known")

// mark writes marks, and returns the Node after that; nil if it must be read again. It calls writing before each write.
func (c *client) mark(ctx context.Context, node string, known *marksObject, want *kube.NodeMarks, writing func()) (*marksObject, error) {
	var err error
	for range maxMarksRaces {
		// Without a write only a read shows that the API server answers.
		if known == nil || known.has(want) {
			if known, err = c.readMarks(ctx, node); err != nil {
				return nil, err
			}
		}
		patch, after, err := known.change(want)
		switch {
		case errors.Is(err, errUnknownVersion):
			known = nil
			continue
		case err != nil:
			return nil, err
		}
		if len(patch) == 0 {
			return known, nil
		}
		writing()
		switch err := c.patchMarks(ctx, node, patch); nodeOutcomeOf(err) {
		case succeeded:
			return after, nil
		case conflict:
			known = nil
		default:
			return nil, err
		}
	}
	return nil, errors.New("other clients change the annotations of the Node again and again")
}

// readMarks reads the metadata of the Node.
func (c *client) readMarks(ctx context.Context, node string) (*marksObject, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	result := c.rest.Get().MaxRetries(0).Resource("nodes").Name(node).SetHeader("Accept", metadataOnly).Do(ctx)
	if err := result.Error(); err != nil { // which Raw does not decode
		return nil, err
	}
	content, err := result.Raw()
	if err != nil {
		return nil, err
	}
	var o struct{ Metadata metav1.ObjectMeta }
	if err := json.Unmarshal(content, &o); err != nil {
		return nil, fmt.Errorf("decode the metadata of the Node: %w", err)
	}
	return newMarksObject(&o.Metadata), nil
}

func (c *client) patchMarks(ctx context.Context, node string, patch []patchOperation) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	body, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	return c.rest.Patch(types.JSONPatchType).MaxRetries(0).Resource("nodes").Name(node).SetHeader("Accept", metadataOnly).Body(body).Do(ctx).Error()
}

// explainMarks returns an error about marks with its remedy.
func (c *client) explainMarks(node string, err error) error {
	switch result := nodeOutcomeOf(err); {
	case errors.Is(err, errNewerAdvert):
		return err
	case result == refused || result == tooLarge:
		return fmt.Errorf("API server %s refuses evictd's annotations of the Node: %w: let its admission policies admit those of deploy/kubernetes", c.files.server, err)
	case result == forbidden:
		return errors.New(lacks([]right{{"patch", "nodes", ""}}))
	default:
		return c.explainNode(node, result, err)
	}
}

// marksObject is the part of the Node object that marks need.
type marksObject struct {
	uid string
	// version is the resource version, empty after a write.
	version string
	// annotated is set if the Node has any annotation, and marks has those of evictd that it has.
	annotated bool
	marks     map[string]string
}

// markKeys are the annotations that evictd maintains.
var markKeys = [...]string{selffence.AnnotationWatchdog, selffence.AnnotationPlannedShutdown}

func newMarksObject(meta *metav1.ObjectMeta) *marksObject {
	o := &marksObject{uid: string(meta.UID), version: meta.ResourceVersion, annotated: len(meta.Annotations) > 0, marks: map[string]string{}}
	for _, key := range markKeys {
		if text, ok := meta.Annotations[key]; ok {
			o.marks[key] = text
		}
	}
	return o
}

// wanted returns the annotations that the Node should have; "" for none. The advert of a node without self-fencing only
// withdraws another one. Any other one is written: evictd arms the watchdog only after a write has shown that evictd-kube may.
func (o *marksObject) wanted(m *kube.NodeMarks) map[string]string {
	want := map[string]string{selffence.AnnotationWatchdog: m.Watchdog, selffence.AnnotationPlannedShutdown: m.PlannedShutdown}
	a, err := selffence.ParseAdvert(m.Watchdog)
	if _, present := o.marks[selffence.AnnotationWatchdog]; err == nil && a.Withdraws() && !present {
		want[selffence.AnnotationWatchdog] = ""
	}
	return want
}

// has reports whether the Node has the marks.
func (o *marksObject) has(m *kube.NodeMarks) bool {
	for key, text := range o.wanted(m) {
		if o.marks[key] != text {
			return false
		}
	}
	return true
}

// change returns the JSON patch after which a Node has the marks, empty if it has them, and the Node then. The patch
// tests the UID of the Node and each value that it replaces. A mark that is new tests the resource version instead.
func (o *marksObject) change(m *kube.NodeMarks) ([]patchOperation, *marksObject, error) {
	if o.has(m) {
		return nil, o, nil
	}
	advert, err := selffence.ParseAdvert(m.Watchdog)
	if err != nil {
		return nil, nil, fmt.Errorf("evictd's advert: %w", err)
	}
	current := o.marks[selffence.AnnotationWatchdog]
	if current != m.Watchdog && !advert.Replaces(current) {
		return nil, nil, errNewerAdvert
	}
	after := &marksObject{uid: o.uid, annotated: true, marks: map[string]string{}}
	patch := []patchOperation{{"test", "/metadata/uid", o.uid}}
	var changes []patchOperation
	added, want := false, o.wanted(m)
	for _, key := range markKeys {
		path, before := "/metadata/annotations/"+strings.ReplaceAll(key, "/", "~1"), o.marks[key]
		_, present := o.marks[key]
		if want[key] != "" {
			after.marks[key] = want[key]
		}
		switch {
		case before == want[key] && present == (want[key] != ""):
		case want[key] == "":
			changes = append(changes, patchOperation{"test", path, before}, patchOperation{Op: "remove", Path: path})
		case present:
			changes = append(changes, patchOperation{"test", path, before}, patchOperation{"replace", path, want[key]})
		default:
			added = true
			changes = append(changes, patchOperation{"add", path, want[key]})
		}
	}
	if added {
		if o.version == "" { // it is not known after a write
			return nil, nil, errUnknownVersion
		}
		patch = append(patch, patchOperation{"test", "/metadata/resourceVersion", o.version})
	}
	if !o.annotated {
		patch = append(patch, patchOperation{"add", "/metadata/annotations", map[string]string{}})
	}
	return append(patch, changes...), after, nil
}

// Drain waits until evictd has ended its session or has withdrawn its advert, or ctx ends: evictd and evictd-kube may be
// stopped at the same time, and evictd disarms the watchdog only after the withdrawal was accepted.
func (m *Marks) Drain(ctx context.Context) {
	for ticker := time.NewTicker(drainInterval); m.advertised(); {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// advertised reports whether evictd's advert is armed, or its withdrawal is not written.
func (m *Marks) advertised() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.want == nil {
		return false
	}
	a, err := selffence.ParseAdvert(m.want.Watchdog)
	return err == nil && (a.Armed || m.want != m.written)
}
