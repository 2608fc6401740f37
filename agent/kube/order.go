package kube

import (
	"errors"
	"fmt"
	"math"
	"time"
	"unicode/utf8"
)

// Stage is how far the eviction of a pod is.
type Stage string

// The stages of an [Order], in their order. An eviction with a grace period begins with
// StageStopping, that of a pod of which no container has run with StageEnded, any other with
// StageKilled.
const (
	// StageStopping: the pod has a grace period, and nothing was killed. evictd-kube makes
	// the kubelet stop the pod.
	StageStopping Stage = "stopping"
	// StageKilled: SIGKILL was sent to the processes of the pod's containers, and some may
	// be left. The kubelet reports a pod that it does not restart (restart policy Never or
	// OnFailure) under its own verdict, so evictd-kube sets the condition DisruptionTarget
	// before that; for other pods it does nothing yet.
	StageKilled Stage = "killed"
	// StageWaiting is StageKilled after [WaitingEventDelay] for a pod that must not run
	// twice. evictd-kube emits an event.
	StageWaiting Stage = "waiting"
	// StageEnded: no process of the pod's containers is left, or the pod may run twice and
	// was waited for. evictd-kube writes the phase Failed.
	StageEnded Stage = "ended"
)

// WaitingEventDelay is how long evictd waits for the processes of a pod that must not run
// twice before an event says so.
const WaitingEventDelay = 10 * time.Second

// Order asks evictd-kube to report the eviction of a pod to the API server. evictd sends it
// again at each later stage and at the beginning of each session, until it withdraws it.
// evictd-kube carries out each stage once; it finds in the pod's object what was done.
type Order struct {
	// ID identifies the order: at most 64 characters of those of a name.
	ID        string `json:"id"`
	UID       string `json:"uid"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Stage     Stage  `json:"stage"`
	// Exclusive is why two instances of the pod must not run at the same time
	// ([Pod.Exclusive]); empty if they may.
	Exclusive string `json:"exclusive,omitempty"`
	// Reason and Message are those of the pod's status.
	Reason  string `json:"reason"`
	Message string `json:"message"`
	// Annotations are those of the event.
	Annotations map[string]string `json:"annotations,omitempty"`
	Decided     time.Time         `json:"decided"`
	// GraceSeconds is the grace period from StageStopping.
	GraceSeconds int64 `json:"graceSeconds,omitempty"`
	// Taint is the key of the taint that the node must have before the pod is reported Failed,
	// because its controller (a DaemonSet) would make it again on this node; empty for none.
	Taint string `json:"taint,omitempty"`
	// Fenced is set if the kubelet can't start a container of the pod again, whenever it sees the
	// report. It is known from StageEnded on.
	Fenced bool `json:"fenced,omitempty"`
}

// OrderID names an order that evictd withdraws: it has ended, or is void.
type OrderID struct {
	ID string `json:"id"`
}

// Answer is what became of an order in the API.
type Answer string

// The answers. All but AnswerMarked, AnswerAsserted and AnswerDelayed are final: the order needs
// nothing more of evictd-kube. AnswerAsserted may follow a final answer, and changes nothing.
const (
	// AnswerMarked: the condition DisruptionTarget is set.
	AnswerMarked Answer = "marked"
	// AnswerReported: the pod's phase is Failed, or (StageStopping of a pod that must not
	// run twice) the pod is deleted with its grace period.
	AnswerReported Answer = "reported"
	// AnswerAsserted: the kubelet had undone the report, and it was written again.
	AnswerAsserted Answer = "asserted"
	// AnswerDeleted: the pod was deleted, because its status could not be written for its
	// own size.
	AnswerDeleted Answer = "deleted"
	// AnswerGone: the pod is not in the API any more, or its name has another UID.
	AnswerGone Answer = "gone"
	// AnswerTerminating: the pod was being deleted already, and was left alone.
	AnswerTerminating Answer = "terminating"
	// AnswerForbidden: the API server refuses for good (403, or a policy). evictd lifts the
	// fence and evicts the pod no more, see [Orders.Forbidden].
	AnswerForbidden Answer = "forbidden"
	// AnswerDelayed: the API server could not be reached, and evictd-kube tries again.
	AnswerDelayed Answer = "delayed"
)

// Report answers an order.
type Report struct {
	ID     string `json:"id"`
	Answer Answer `json:"answer"`
	// Why is the reason, in one line with the remedy; empty if Answer says all.
	Why string `json:"why,omitempty"`
}

const (
	// maxOrderID is the maximum length of the ID of an order.
	maxOrderID = 64
	// maxMessage and maxAnnotations are the largest message of an order, and the most bytes that
	// all its annotations take. With both, also escaped in JSON, an order is a line of the
	// protocol.
	maxMessage, maxAnnotations = 4 << 10, 4 << 10
	// maxWhy is the longest reason of a report: what printable returns.
	maxWhy = maxText + len(ellipsis)
)

// key returns namespace/name, to be shown.
func (o *Order) key() string { return printable(o.Namespace + "/" + o.Name) }

// awaitsProcesses reports whether the report waits until the pod's killed processes have ended.
func (o *Order) awaitsProcesses() bool {
	return o.Exclusive != "" && (o.Stage == StageKilled || o.Stage == StageWaiting)
}

// check validates everything but the ID, which an order does not have from its beginning.
func (o *Order) check() error {
	for _, f := range []struct{ field, value string }{{"uid", o.UID}, {"namespace", o.Namespace}, {"name", o.Name}} {
		if !IsName(f.value) {
			return fmt.Errorf("order with the %s %.60q, which is not a name", f.field, f.value)
		}
	}
	switch o.Stage {
	case StageStopping, StageKilled, StageWaiting, StageEnded:
	default:
		return fmt.Errorf("order with the stage %.60q", o.Stage)
	}
	switch {
	case o.Reason == "" || !isPrintable(o.Reason, maxText):
		return errors.New("order without a reason, or with one that can't be printed")
	case !isPrintable(o.Message, maxMessage+len(ellipsis)):
		return errors.New("order with a message that can't be printed")
	case !isPrintable(o.Exclusive, maxText):
		return errors.New("order with a text that can't be printed")
	case sizeOf(o.Annotations) > maxAnnotations:
		return errors.New("order with annotations that are too long")
	case o.Taint != "" && !IsTaint(o.Taint):
		return fmt.Errorf("order with the taint %.60q, which is not evictd's", o.Taint)
	case o.GraceSeconds < 0 || o.GraceSeconds > math.MaxInt32:
		return fmt.Errorf("order with a grace period of %d seconds", o.GraceSeconds)
	}
	return nil
}

// IsTaint reports whether key is that of a taint that evictd-kube sets.
func IsTaint(key string) bool {
	for _, text := range NodeConditions {
		if text.Taint == key {
			return true
		}
	}
	return false
}

// sizeOf returns how many bytes annotations take.
func sizeOf(annotations map[string]string) (n int) {
	for key, value := range annotations {
		n += len(key) + len(value)
	}
	return n
}

// checkID returns an error if id can't be that of an order.
func checkID(id string) error {
	if len(id) > maxOrderID || !IsName(id) {
		return fmt.Errorf("order ID %.60q is not a name of at most %d characters", id, maxOrderID)
	}
	return nil
}

// known reports whether a is an answer.
func (a Answer) known() bool {
	switch a {
	case AnswerMarked, AnswerAsserted, AnswerDelayed:
		return true
	}
	return a.final()
}

// final reports whether nothing more is expected of evictd-kube.
func (a Answer) final() bool {
	switch a {
	case AnswerReported, AnswerDeleted, AnswerGone, AnswerTerminating, AnswerForbidden:
		return true
	}
	return false
}

// check validates a report.
func (r *Report) check() error {
	if err := checkID(r.ID); err != nil {
		return err
	}
	switch {
	case !r.Answer.known():
		return fmt.Errorf("report with the answer %.60q", r.Answer)
	case !isPrintable(r.Why, maxWhy):
		return fmt.Errorf("report with a reason that can't be printed or has more than %d bytes", maxWhy)
	}
	return nil
}

// isPrintable reports whether a text has at most longest bytes, all of characters that can be
// printed.
func isPrintable(s string, longest int) bool {
	if len(s) > longest || !utf8.ValidString(s) {
		return false
	}
	for _, r := range s {
		if !isPrint(r) {
			return false
		}
	}
	return true
}
