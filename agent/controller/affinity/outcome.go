package affinity

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/evictd/evictd/agent/affinity"
)

const (
	// manyBudgets is in the message of the status 500 for a pod with several PodDisruptionBudgets, which has no reason
	// (kubernetes, pkg/registry/core/pod/storage/eviction.go).
	manyBudgets = "more than one PodDisruptionBudget"
	// precondition is in the message of the status 409 for a pod with another UID, in different sentences (apiserver,
	// pkg/registry/rest/delete.go and pkg/storage/interfaces.go). The UID is the only precondition of an eviction.
	precondition = "precondition"
)

// outcomeOf returns how an eviction ended whose request returned err, and the least time to the next attempt.
func outcomeOf(err error) (affinity.OutcomeKind, time.Duration) {
	if err == nil {
		return affinity.Accepted, 0
	}
	var retry time.Duration
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
		retry = time.Duration(seconds) * time.Second
	}
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) {
		return affinity.RequestError, retry
	}
	status := answer.Status()
	switch {
	case status.Code == http.StatusTooManyRequests && ofBudget(&status):
		return affinity.Budgeted, retry
	case status.Code == http.StatusTooManyRequests:
		return affinity.Throttled, retry
	case status.Code == http.StatusInternalServerError && strings.Contains(status.Message, manyBudgets):
		return affinity.ManyBudgets, retry
	case status.Code == http.StatusNotFound,
		status.Code == http.StatusConflict && strings.Contains(strings.ToLower(status.Message), precondition):
		return affinity.Gone, 0
	case status.Code == http.StatusForbidden:
		return affinity.Forbidden, retry
	}
	return affinity.RequestError, retry
}

// ofBudget reports whether a PodDisruptionBudget refuses, and not the API server's own throttling.
func ofBudget(s *metav1.Status) bool {
	return s.Details != nil && slices.ContainsFunc(s.Details.Causes, func(c metav1.StatusCause) bool {
		return c.Type == policyv1.DisruptionBudgetCause
	})
}
